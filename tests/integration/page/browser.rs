//! Chromium without a window, spoken to over two pipes in the DevTools protocol (`--remote-debugging-pipe`): messages
//! are JSON, each ended by a zero byte.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use zagros_tests::ChildGuard;

const TIMEOUT: Duration = Duration::from_secs(60);
const FLAGS: &str = "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync \
                     --disable-background-networking --disable-component-update --disable-extensions --hide-scrollbars \
                     --remote-debugging-pipe about:blank";
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

pub(super) struct PageBrowser {
    /// The shell became the browser, whose other processes end with it.
    _process: ChildGuard,
    to: File,
    messages: Receiver<Value>,
    session: Option<String>,
    calls: u64,
    asked: Vec<String>,
    /// What the page, or the browser about it, complained of.
    complaints: Vec<String>,
    _profile: TempDir,
}

impl PageBrowser {
    /// `None`, with a note, where there is no Chromium; on a build server that is a failure.
    pub(super) fn start() -> Option<Self> {
        let Some(program) = find() else {
            let is_build_server = std::env::var("CI").is_ok_and(|ci| ci == "true");
            assert!(!is_build_server, "Chromium was not found: run sh scripts/fetch_chromium.sh");
            println!("skipped: Chromium was not found; sh scripts/fetch_chromium.sh installs it");
            return None;
        };
        let profile = tempfile::tempdir().expect("a folder for the profile");
        let (to, from) = (pipe(profile.path(), "to"), pipe(profile.path(), "from"));
        // A shell puts the pipes where the browser looks for them.
        let process = Command::new("sh")
            .args(["-c", "program=$1; to=$2; from=$3; shift 3; exec \"$program\" \"$@\" 3<\"$to\" 4>\"$from\"", "sh"])
            .args([&program, &to, &from])
            .arg(format!("--user-data-dir={}", profile.path().join("profile").display()))
            .args(FLAGS.split(' '))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("Chromium starts");
        // Each end waits for the other to be opened.
        let to_browser = OpenOptions::new().write(true).open(to).expect("the pipe to the browser");
        let from = File::open(from).expect("the pipe from the browser");
        let (sender, messages) = mpsc::channel();
        std::thread::spawn(move || {
            let messages = BufReader::new(from).split(0).map_while(Result::ok);
            messages.filter_map(|text| serde_json::from_slice(&text).ok()).try_for_each(|message| sender.send(message))
        });
        let mut browser = Self {
            _process: ChildGuard(process),
            to: to_browser,
            messages,
            session: None,
            calls: 0,
            asked: Vec::new(),
            complaints: Vec::new(),
            _profile: profile,
        };
        browser.attach();
        Some(browser)
    }

    fn attach(&mut self) {
        let page = self.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = self.call("Target.attachToTarget", json!({ "targetId": page, "flatten": true }));
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Network", "Runtime", "Log"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
    }

    /// As wide as a screen, light or dark.
    pub(super) fn look(&mut self, width: u32, height: u32, scheme: &str) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let scheme = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", scheme);
    }

    pub(super) fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", json!({ "url": url }));
        assert!(opened.get("errorText").is_none(), "{url}: {opened}");
        self.wait("the page is there", "location.href !== 'about:blank' && document.readyState === 'complete'");
    }

    pub(super) fn value(&mut self, expression: &str) -> Value {
        let outcome = self.call("Runtime.evaluate", json!({ "expression": expression, "returnByValue": true }));
        assert!(outcome.get("exceptionDetails").is_none(), "{expression}: {outcome}");
        outcome["result"]["value"].clone()
    }

    pub(super) fn text(&mut self, selector: &str) -> String {
        let text = self.value(&format!("document.querySelector({selector:?})?.innerText ?? ''"));
        text.as_str().unwrap_or_default().to_owned()
    }

    pub(super) fn wait(&mut self, what: &str, expression: &str) {
        let deadline = Instant::now() + TIMEOUT;
        while self.value(&format!("Boolean({expression})")) != Value::Bool(true) {
            if Instant::now() >= deadline {
                let shown = self.text("body");
                panic!("not within {TIMEOUT:?}: {what}; complaints: {:?}; the page says:\n{shown}", self.complaints());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The page as a picture, where `ZAGROS_SCREENSHOTS` names a folder for it.
    pub(super) fn picture(&mut self, name: &str) {
        let Some(folder) = std::env::var_os("ZAGROS_SCREENSHOTS").map(PathBuf::from) else { return };
        let shot = self.call("Page.captureScreenshot", json!({ "format": "png", "captureBeyondViewport": true }));
        let encoded = shot["data"].as_str().expect("a picture").to_owned();
        let file = File::create(folder.join(format!("{name}.png"))).expect("a file for the picture");
        let mut decoder =
            Command::new("base64").arg("-d").stdin(Stdio::piped()).stdout(file).spawn().expect("base64 starts");
        decoder.stdin.take().expect("its input").write_all(encoded.as_bytes()).expect("base64 reads");
        assert!(decoder.wait().expect("base64 ends").success(), "the picture is not base64");
    }

    pub(super) fn asked(&mut self) -> Vec<String> {
        self.take_messages();
        self.asked.clone()
    }

    pub(super) fn complaints(&mut self) -> Vec<String> {
        self.take_messages();
        self.complaints.clone()
    }

    fn take_messages(&mut self) {
        while let Ok(message) = self.messages.try_recv() {
            self.note(&message);
        }
    }

    fn note(&mut self, message: &Value) {
        let parameters = &message["params"];
        match message["method"].as_str() {
            Some("Network.requestWillBeSent") => {
                self.asked.push(parameters["request"]["url"].as_str().unwrap_or_default().to_owned());
            }
            Some("Runtime.exceptionThrown") => self.complaints.push(parameters["exceptionDetails"].to_string()),
            Some("Log.entryAdded") => self.complaints.push(parameters["entry"]["text"].to_string()),
            _ => {}
        }
    }

    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).expect("the browser listens");
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let answer = self.messages.recv_timeout(left);
            let answer = answer.unwrap_or_else(|error| panic!("the browser has not answered {method}: {error}"));
            if answer["id"] == self.calls {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.note(&answer);
        }
    }
}

fn find() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let all = std::env::split_paths(&folders).flat_map(|folder| NAMES.map(|name| folder.join(name)));
    all.into_iter().find(|program| program.is_file())
}

fn pipe(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    let made = Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
    assert!(made.success(), "no pipe at {}", path.display());
    path
}
