//! A real Prometheus scrapes a real cluster: every dashboard and rule has data, and an alert names a server that is gone.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use zagros_tests::{
    ChildGuard, RunningCommand, dashboard_queries, dashboards, prometheus_tool, repository, signal_process,
};

use super::faults::pid;
use super::fixture::{Fixture, with_sets};

/// The run has all that has metrics. A process that stands still is not declared dead while Prometheus looks at it.
const SETS: [&str; 11] = [
    // A server with a log comes back.
    "cluster.durability=checkpoint",
    "train.epochs=1000",
    "data.validation_share=0.1",
    "eval.group_by=C1",
    "checkpoint.every_seconds=2",
    "cluster.servers=2",
    "cluster.workers=2",
    "cluster.memory=256 KiB",
    "cluster.cold_folder=cold",
    "cluster.timeout_seconds=45",
    "cluster.lease_seconds=45",
];

fn start(fixture: &Fixture) -> RunningCommand {
    let mut run = fixture
        .start_to_checkpoint(1, with_sets(&["up", "job.toml", "--prometheus-targets", "targets/local.json"], &SETS));
    run.wait_for_line("validation after step");
    run
}

/// A dashboard's query as Grafana would send it.
fn filled(expression: &str, run: &str) -> String {
    let variables = [("$__rate_interval", "10s"), ("$run", run), ("$server", ".*"), ("$index", ".*")];
    variables.iter().fold(expression.to_owned(), |text, (name, value)| text.replace(name, value))
}

fn panel_queries(run: &str) -> Vec<(String, String, String)> {
    let queries = |(name, dashboard): (String, Value)| {
        let queries = dashboard_queries(&dashboard).into_iter();
        queries.map(move |(title, query)| (name.clone(), title, filled(&query, run))).collect::<Vec<_>>()
    };
    dashboards().into_iter().flat_map(queries).collect()
}

fn numbers(values: &[f64]) -> usize {
    values.iter().filter(|value| !value.is_nan()).count()
}

#[test]
fn every_panel_and_rule_has_data_and_a_server_that_stands_still_or_dies_is_reported() {
    let fixture = Fixture::new(20_000);
    let Some(prometheus) = RunningPrometheus::start(fixture.folder()) else { return };
    let run = start(&fixture);
    let name = fixture.run_folder().file_name().expect("a name").to_string_lossy().into_owned();
    prometheus.wait("all five roles answer", || prometheus.query("sum(up)") == [5.0]);

    println!("| dashboard | panel | query | series |\n|---|---|---|---|");
    let queries = panel_queries(&name);
    assert!(queries.len() > 90, "{} queries", queries.len());
    for (dashboard, title, query) in queries {
        prometheus.wait(&format!("{dashboard}, {title} has data: {query}"), || numbers(&prometheus.query(&query)) > 0);
        println!("| {dashboard} | {title} | `{query}` | {} |", prometheus.query(&query).len());
    }
    check_rules(&prometheus);

    let server = pid(&fixture, "embedding-server-1");
    let down = |index: &str| ("ZagrosEmbeddingServerDown".to_owned(), index.to_owned());
    assert!(!prometheus.firing().contains(&down("1")), "{:?}", prometheus.firing());
    signal_process(server, Signal::STOP);
    prometheus.wait("the server that stands still is reported", || prometheus.firing().contains(&down("1")));
    assert!(!prometheus.firing().contains(&down("0")), "the other server answers: {:?}", prometheus.firing());
    signal_process(server, Signal::CONT);
    prometheus.wait("its alert ends when it goes on", || !prometheus.firing().contains(&down("1")));

    signal_process(server, Signal::KILL);
    // A process that failed stays listed after its end, or no alert would fire.
    run.finish().expect(4).says(&["embedding server 1", "killed by signal 9"]);
    prometheus.wait("the dead server is reported", || prometheus.firing().contains(&down("1")));
    let coordinator = ("ZagrosCoordinatorDown".to_owned(), "0".to_owned());
    prometheus.wait("the run that is over is reported", || prometheus.firing().contains(&coordinator));
}

fn check_rules(prometheus: &RunningPrometheus) {
    let (mut recorded, mut alerts) = (0, 0);
    for rule in prometheus.rules() {
        let name = rule["name"].as_str().expect("a name").to_owned();
        assert_eq!(rule["health"], "ok", "{name}: {rule}");
        match rule["type"].as_str() {
            Some("recording") => {
                recorded += 1;
                prometheus.wait(&format!("{name} has data"), || numbers(&prometheus.query(&name)) > 0);
                println!("| rules | {name} | `{}` | {} |", query_of(&rule), prometheus.query(&name).len());
            }
            _ => alerts += 1,
        }
    }
    assert!(recorded >= 7 && alerts >= 16, "{recorded} recording rules, {alerts} alerts");
}

fn query_of(rule: &Value) -> String {
    rule["query"].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_run_that_ended_well_leaves_no_targets() {
    let fixture = Fixture::new(4_000);
    let run = ["up", "job.toml", "--prometheus-targets", "targets/local.json"];
    fixture.zagros(run).expect(0);
    assert_eq!(fixture.read("targets/local.json"), "[]");
    fixture.write("file", "");
    let refused = ["up", "job.toml", "--prometheus-targets", "file/below.json"];
    fixture.zagros(refused).expect(2).says(&["file/below.json", "--prometheus-targets"]);
}

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
