//! The live page as a person sees it: a real cluster, a real browser, at the width of a desk and of a phone.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use zagros_tests::{ChildGuard, RunningCommand, signal_process};

use super::faults::pid;
use super::fixture::{Fixture, http_get, http_get_as, with_sets};

/// Shows a state in which each text is markup, to a page that would take it for that; counts what became of it.
const EVIL: &str = r#"(() => {
    const evil = '<img src="x" onerror="document.body.remove()"><script>document.body.remove()</' + 'script>';
    const next = structuredClone(run);
    Object.assign(next, { job: evil, state: evil, reason: evil, warnings: [evil] });
    next.members.forEach((member) => Object.assign(member, { name: evil, state: evil, address: evil }));
    next.evaluations.forEach((evaluation) => (evaluation.part = evil));
    adopt(next, true);
    const shown = ['h1', '#reason', '#warnings li'].every((place) => document.querySelector(place).innerText === evil);
    return [shown, document.querySelectorAll('img, main script').length];
})()"#;

const SETS: [&str; 8] = [
    "name=criteo-small",
    "train.epochs=1000",
    "data.validation_share=0.1",
    "checkpoint.every_seconds=2",
    "cluster.servers=2",
    "cluster.workers=2",
    "cluster.timeout_seconds=60",
    "cluster.lease_seconds=20",
];

fn start(fixture: &Fixture) -> (RunningCommand, String) {
    let mut run = fixture.start(with_sets(&["up", "job.toml"], &SETS));
    let line = run.wait_for_line("live page: http://127.0.0.1:");
    let url = line.split("live page: ").nth(1).expect("an address").trim().to_owned();
    (run, url)
}

/// Nothing reaches beyond the screen to the right.
fn fits(browser: &mut PageBrowser) {
    let widths = browser.value("[document.documentElement.scrollWidth, window.innerWidth]");
    assert!(widths[0].as_u64() <= widths[1].as_u64(), "the page is wider than the screen: {widths}");
}

#[test]
fn a_person_sees_the_run_its_trouble_and_its_end() {
    let fixture = Fixture::new(60_000);
    let Some(mut browser) = PageBrowser::start() else { return };
    let (mut run, url) = start(&fixture);
    browser.look(1280, 900, "light");
    browser.open(&url);
    browser.wait("training is shown", "document.getElementById('state').innerText.includes('training')");
    browser.wait("curves are drawn", "document.querySelectorAll('#charts polyline').length >= 3");
    browser.wait("an evaluation is shown", "document.querySelector('#evaluations td')");
    browser.wait(
        "validation is drawn beside training",
        "['#loss', '#auc'].every((chart) => document.querySelectorAll(`${chart} polyline.orange, ${chart} circle.orange`).length >= 2)",
    );
    browser.wait("a checkpoint is shown", "document.querySelector('#checkpoints td')");

    for (selector, words) in [
        ("#lead", &["epoch", "of 1000", "step", "running for"][..]),
        ("#progress", &["epoch", "splits done", "%"]),
        ("#speed", &["throughput", "/s"]),
        ("#area", &["validation AUC", "0."]),
        ("#stale", &["staleness", "of 4"]),
        ("#servers", &["server 0", "server 1", "buckets (50 %)", "512", "hit rate", "MiB", "lookup p99"]),
        ("#workers", &["worker 0", "worker 1", "waiting for rows", "network", "parse"]),
        ("#evaluations", &["validation"]),
    ] {
        let text = browser.text(selector);
        words.iter().for_each(|word| assert!(text.contains(word), "no {word:?} in {selector}: {text}"));
    }
    fits(&mut browser);
    if std::env::var_os("ZAGROS_SCREENSHOTS").is_some() {
        browser.wait("there is something to look at", "run.history.length > 45");
    }
    browser.picture("page-1280-light");
    browser.look(1280, 900, "dark");
    browser.picture("page-1280-dark");
    for scheme in ["light", "dark"] {
        browser.look(390, 844, scheme);
        fits(&mut browser);
        browser.picture(&format!("page-390-{scheme}"));
    }

    // The page names a server that stands still.
    let server = pid(&fixture, "embedding-server-1");
    signal_process(server, Signal::STOP);
    browser.wait(
        "the silent server is reported",
        "document.getElementById('findings').innerText.includes('embedding server 1 shows no sign of life')",
    );
    browser.picture("page-390-slow");
    signal_process(server, Signal::CONT);
    browser.wait(
        "the finding goes when it answers",
        "!document.getElementById('findings').innerText.includes('no sign of life')",
    );

    assert_eq!(browser.value(EVIL), serde_json::json!([true, 0]), "what is text became markup");
    browser.wait("the next event puts it right", "document.querySelector('h1').innerText === 'criteo-small'");

    // The browser asked this server and no other one, and had nothing to complain of.
    let asked = browser.asked();
    assert!(asked.iter().any(|asked| asked == &format!("{url}events")), "{asked:?}");
    assert!(asked.iter().all(|asked| asked.starts_with(&url)), "{asked:?}");
    assert_eq!(browser.complaints(), [""; 0], "the browser complains");

    run.signal(Signal::INT);
    browser.wait("the end is reported", "document.getElementById('state').innerText.includes('interrupted')");
    browser.wait("the outcome is reported", "document.getElementById('ended').innerText.includes('The run is over')");
    run.wait_for_line("interrupted");
    run.finish().expect(130);
}

#[test]
fn a_coordinator_that_is_silent_and_killed_comes_back_on_the_page() {
    let fixture = Fixture::new(60_000);
    let Some(mut browser) = PageBrowser::start() else { return };
    let (run, url) = start(&fixture);
    browser.open(&url);
    browser.wait("training is shown", "document.getElementById('state').innerText.includes('training')");
    let coordinator = pid(&fixture, "coordinator");
    signal_process(coordinator, Signal::STOP);
    browser.wait(
        "the lost connection is reported",
        "document.getElementById('connection').innerText.includes('Connection lost since')",
    );
    // `zagros up` starts it again in place.
    signal_process(coordinator, Signal::KILL);
    browser.wait(
        "training is shown again",
        "document.getElementById('connection').innerText === '' && document.getElementById('state').innerText.includes('training')",
    );
    run.interrupt();
}

#[test]
fn programs_get_the_status_and_other_hosts_get_nothing() {
    let fixture = Fixture::new(60_000);
    let (run, url) = start(&fixture);
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    let status = http_get(address, "/status");
    let status: Value = serde_json::from_str(status.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON");
    assert_eq!(status["job"], "criteo-small");
    for path in ["/", "/status", "/metrics"] {
        let refused = http_get_as("evil.example", address, path);
        assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("serves this machine only"), "{refused}");
    }
    let page = http_get(address, "/");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("content-security-policy: default-src 'none'"), "{page}");
    assert!(!page.contains("criteo-small"), "the job's name is in the document, where it would have to be escaped");
    run.interrupt();
}

const TIMEOUT: Duration = Duration::from_secs(60);
const FLAGS: &str = "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync \
                     --disable-background-networking --disable-component-update --disable-extensions --hide-scrollbars \
                     --remote-debugging-pipe about:blank";
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

struct PageBrowser {
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
    fn start() -> Option<Self> {
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
    fn look(&mut self, width: u32, height: u32, scheme: &str) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let scheme = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", scheme);
    }

    fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", json!({ "url": url }));
        assert!(opened.get("errorText").is_none(), "{url}: {opened}");
        self.wait("the page is there", "location.href !== 'about:blank' && document.readyState === 'complete'");
    }

    fn value(&mut self, expression: &str) -> Value {
        let outcome = self.call("Runtime.evaluate", json!({ "expression": expression, "returnByValue": true }));
        assert!(outcome.get("exceptionDetails").is_none(), "{expression}: {outcome}");
        outcome["result"]["value"].clone()
    }

    fn text(&mut self, selector: &str) -> String {
        let text = self.value(&format!("document.querySelector({selector:?})?.innerText ?? ''"));
        text.as_str().unwrap_or_default().to_owned()
    }

    fn wait(&mut self, what: &str, expression: &str) {
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
    fn picture(&mut self, name: &str) {
        let Some(folder) = std::env::var_os("ZAGROS_SCREENSHOTS").map(PathBuf::from) else { return };
        let shot = self.call("Page.captureScreenshot", json!({ "format": "png", "captureBeyondViewport": true }));
        let encoded = shot["data"].as_str().expect("a picture").to_owned();
        let file = File::create(folder.join(format!("{name}.png"))).expect("a file for the picture");
        let mut decoder =
            Command::new("base64").arg("-d").stdin(Stdio::piped()).stdout(file).spawn().expect("base64 starts");
        decoder.stdin.take().expect("its input").write_all(encoded.as_bytes()).expect("base64 reads");
        assert!(decoder.wait().expect("base64 ends").success(), "the picture is not base64");
    }

    fn asked(&mut self) -> Vec<String> {
        self.take_messages();
        self.asked.clone()
    }

    fn complaints(&mut self) -> Vec<String> {
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
