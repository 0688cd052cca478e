//! A real Prometheus on a free port of loopback, with this repository's configuration at a quicker pace.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use zagros_tests::{ChildGuard, prometheus_tool, repository};

const TIMEOUT: Duration = Duration::from_secs(90);
const ANSWER: Duration = Duration::from_secs(20);

/// It ends with this.
pub(crate) struct RunningPrometheus {
    _process: ChildGuard,
    address: String,
}

impl RunningPrometheus {
    /// Scrapes what is listed in `folder/targets`, every second. `None` where there is no Prometheus.
    pub(crate) fn start(folder: &Path) -> Option<Self> {
        let program = prometheus_tool("prometheus")?;
        configure(folder);
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = free.local_addr().expect("an address").to_string();
        drop(free);
        let log = std::fs::File::create(folder.join("prometheus.log")).expect("a log file");
        let process = Command::new(program)
            .args(["--config.file", "prometheus.yml", "--storage.tsdb.path", "tsdb"])
            .args(["--web.listen-address", &address])
            .current_dir(folder)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("prometheus starts");
        let prometheus = Self { _process: ChildGuard(process), address };
        prometheus
            .wait("Prometheus is ready", || prometheus.get("/-/ready").is_some_and(|answer| answer.contains(" 200 ")));
        Some(prometheus)
    }

    /// Looks every half second until it is so.
    #[track_caller]
    pub(crate) fn wait(&self, what: &str, is_so: impl Fn() -> bool) {
        let since = Instant::now();
        while !is_so() {
            assert!(since.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}; firing: {:?}", self.firing());
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    pub(crate) fn query(&self, expression: &str) -> Vec<f64> {
        let answer = self.api(&format!("query?query={}", percent_encoded(expression)));
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        let series = answer["data"]["result"].as_array().expect("a vector");
        let value = |one: &Value| one["value"][1].as_str().and_then(|text| text.parse().ok());
        series.iter().map(|one| value(one).expect("a number")).collect()
    }

    /// Every rule, of which kind it is in its `type`.
    pub(crate) fn rules(&self) -> Vec<Value> {
        let answer = self.api("rules");
        let groups = answer["data"]["groups"].as_array().cloned().unwrap_or_default();
        groups.into_iter().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect()
    }

    pub(crate) fn firing(&self) -> Vec<(String, String)> {
        let Some(answer) = self.get("/api/v1/alerts") else { return Vec::new() };
        let answer = body(&answer);
        let alerts = answer["data"]["alerts"].as_array().cloned().unwrap_or_default();
        let label = |alert: &Value, name: &str| alert["labels"][name].as_str().unwrap_or_default().to_owned();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        firing.map(|alert| (label(alert, "alertname"), label(alert, "index"))).collect()
    }

    fn api(&self, call: &str) -> Value {
        body(&self.get(&format!("/api/v1/{call}")).expect("Prometheus answers"))
    }

    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        stream.set_read_timeout(Some(ANSWER)).expect("a deadline");
        // Of version 1.0, so that the answer comes in one piece.
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }
}

/// A copy of `monitoring/` in which a second stands for every interval.
fn configure(folder: &Path) {
    let monitoring = repository().join("monitoring");
    let read = |name: &str| std::fs::read_to_string(monitoring.join(name)).expect("a file of monitoring/");
    let quick = |text: &str, keys: &[&str]| {
        let quickened = |line: &str| match line.split_once(": ") {
            Some((key, _)) if keys.contains(&key.trim()) => format!("{key}: 1s\n"),
            _ => format!("{line}\n"),
        };
        text.lines().map(quickened).collect::<String>()
    };
    let intervals = ["scrape_interval", "scrape_timeout", "evaluation_interval", "refresh_interval"];
    std::fs::create_dir_all(folder.join("rules")).expect("a folder of the test");
    let write = |name: &str, text: String| std::fs::write(folder.join(name), text).expect("a file of the test");
    write("prometheus.yml", quick(&read("prometheus.yml"), &intervals));
    write("rules/recording.yml", read("rules/recording.yml"));
    write("rules/alerts.yml", quick(&read("rules/alerts.yml"), &["for"]));
}

fn body(answer: &str) -> Value {
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error} in {answer}"))
}

fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |encoded, byte| match byte {
        byte if byte.is_ascii_alphanumeric() => encoded + char::from(byte).encode_utf8(&mut [0; 1]),
        byte => encoded + &format!("%{byte:02X}"),
    })
}
