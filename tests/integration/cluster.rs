//! `zagros up`: the same run as separate processes. They listen where the job says, and `zagros status` finds a run by its folder.

use std::net::TcpListener;

use rustix::process::Signal;
use zagros_tests::assert_contains;

use super::fixture::{Fixture, http_get};
use super::watch::has_logs_by_role_level_and_age;

/// Its lines are for people: no field is empty or looks like a type.
#[test]
fn lines_carry_the_role_and_the_model_is_saved_by_every_server() {
    let fixture = Fixture::new(4_000);
    let run = fixture.zagros(["up", "job.toml", "--servers", "2"]).expect(0);
    assert_contains(&run.stderr, &["coordinator", "embedding server 0", "embedding server 1", "dense worker 0"]);
    assert_contains(&run.stderr, &["µs of CPU a sample in all processes", "reason=run finished"]);
    for leak in ["Reported(", "address=\"\""] {
        assert!(!run.stderr.contains(leak), "{leak} in\n{}", run.stderr);
    }
    let folder = fixture.run_folder();
    assert!(!folder.join("row-log").exists() && !folder.join("cold-rows").exists(), "servers delete their logs");
    assert_eq!(std::fs::read_dir(fixture.path("runs")).expect("runs").count(), 1, "there are only folders of runs");
    let manifest = fixture.read_run_json("model/manifest.json");
    assert_eq!(manifest["row_files"].as_array().map(Vec::len), Some(2), "{manifest}");
    let summary = fixture.summary();
    assert_eq!(fixture.evaluate()["auc"], summary["evaluation"]["auc"]);
    let cost = |figure: &str| summary["cost"][figure].as_f64().unwrap_or_default();
    let (own, all) = (cost("cpu_us_per_sample"), cost("cpu_us_per_sample_of_all"));
    assert!(0.0 < own && own < all, "{summary}");
    has_logs_by_role_level_and_age(&fixture);
}

/// Enough epochs that the run goes on for as long as it is asked.
const LONG: [&str; 3] = ["up", "job.toml", "--set=train.epochs=1000"];

/// The first of so many ports in a row that are free, below those that the system gives to others.
fn free_ports(count: u16) -> u16 {
    let first = 20_000 + u16::try_from(std::process::id() % 8_000).expect("it fits");
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let mut found = (first..32_000).step_by(usize::from(count));
    found.find(|port| (*port..port + count).all(is_free)).expect("free ports")
}

#[test]
fn ports_that_the_job_gives_are_those_that_are_served() {
    let fixture = Fixture::new(4_000);
    let port = free_ports(4);
    let (coordinator, admin) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", port + 1));
    let sets = [format!("--set=cluster.coordinator={coordinator}"), format!("--set=cluster.admin={admin}")];
    let mut run = fixture.start(LONG.into_iter().chain(sets.iter().map(String::as_str)));
    run.wait_for_line("dense worker 0     │ step ");
    let status = fixture.zagros(["status", "--json", "--coordinator", &coordinator]).expect(0).json();
    assert_eq!(status["state"], "training");
    for (place, metric) in [(1, "zagros_coordinator_"), (2, "zagros_embedding_"), (3, "zagros_worker_")] {
        let address = format!("127.0.0.1:{}", port + place);
        assert!(http_get(&address, "/metrics").contains(metric), "{metric} at {address}");
    }
    run.interrupt();
}

fn is_healthy_and_has_metrics(fixture: &Fixture) {
    for (role, metric) in [
        ("coordinator", "zagros_coordinator_"),
        ("embedding-server-0", "zagros_embedding_"),
        ("dense-worker-0", "zagros_worker_"),
    ] {
        let outcome = fixture.read_run_json(&format!("roles/{role}.json"));
        let address = outcome["admin"].as_str().expect("an address");
        assert!(http_get(address, "/healthz").starts_with("HTTP/1.1 200"), "{role}");
        assert!(http_get(address, "/readyz").starts_with("HTTP/1.1 200"), "{role}");
        assert!(http_get(address, "/metrics").contains(metric), "{role}");
    }
}

#[test]
fn a_live_run_serves_health_metrics_and_status_and_says_when_it_is_over() {
    let fixture = Fixture::new(4_000);
    let run = fixture.start_until("dense worker 0     │ step ", LONG.into_iter().chain(["--servers", "2"]));
    assert!(fixture.run_folder().join("row-log/server-1/lineage.json").exists(), "a log lies in the folder of its run");
    is_healthy_and_has_metrics(&fixture);
    let folder = fixture.run_name();
    let coordinator = fixture.read_run_json("roles/coordinator.json");
    let address = coordinator["address"].as_str().expect("an address");
    fixture.zagros(["status", "--coordinator", address]).expect(0).prints(&["embedding server 1"]);
    for named in [&[folder.as_str()][..], &[], &["--coordinator", address]] {
        let status = fixture.zagros([&["status", "--json"], named].concat()).expect(0).json();
        assert_eq!((&status["job"], &status["state"]), (&"small".into(), &"training".into()), "{named:?}");
        assert_eq!(status["members"].as_array().map(Vec::len), Some(3), "{named:?}: {status}");
    }
    run.signal(Signal::TERM);
    run.finish().expect(143);
    fixture.zagros(["status", &folder]).expect(4).says(&["no run is live in", "zagros logs", "report.html"]);
    fixture.zagros(["status", "nowhere"]).expect(2).says(&["there is no run folder nowhere"]);
}

#[test]
fn every_command_takes_the_job_file_in_the_same_way() {
    let fixture = Fixture::new(2_000);
    let plan = fixture.zagros(["up", "job.toml", "--servers", "2", "--workers", "2", "--dry-run"]).expect(0);
    plan.prints(&["2 embedding server(s), 2 dense worker(s)"]);
    assert!(!fixture.path("runs").exists(), "a plan is no run");
    // Each is known by the job's own error, which comes after the command line was understood.
    for role in ["coordinator", "embedding-server", "dense-worker", "train", "up"] {
        fixture.zagros([role, "job.toml", "--set", "train.sed=3"]).expect(2).says(&["train.sed", "seed"]);
    }
    for role in ["coordinator", "embedding-server", "dense-worker"] {
        fixture.zagros([role, "--config", "job.toml", "--set", "train.sed=3"]).expect(2).says(&["train.sed"]);
        fixture.zagros([role]).expect(2).says(&["JOB"]);
    }
}
