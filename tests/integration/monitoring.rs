//! A real Prometheus scrapes a real cluster: every dashboard and rule has data, and an alert names a server that is gone.

mod prometheus;

use prometheus::RunningPrometheus;
use rustix::process::Signal;
use serde_json::Value;
use zagros_tests::{RunningCommand, dashboard_queries, dashboards, signal_process};

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
