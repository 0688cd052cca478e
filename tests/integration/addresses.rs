//! `zagros up` listens where the job says, and `zagros status` finds a run by its folder.

use std::net::TcpListener;

use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::{Fixture, http_get};

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
    let status = fixture.zagros(["status", "--json", "--coordinator", &coordinator]).expect(0);
    let status: Value = serde_json::from_str(&status.stdout).expect("JSON");
    assert_eq!(status["state"], "training");
    for (place, metric) in [(1, "zagros_coordinator_"), (2, "zagros_embedding_"), (3, "zagros_worker_")] {
        let address = format!("127.0.0.1:{}", port + place);
        assert!(http_get(&address, "/metrics").contains(metric), "{metric} at {address}");
    }
    run.signal(Signal::INT);
    run.finish().expect(130);
}

#[test]
fn status_asks_the_run_of_a_folder_and_says_when_it_is_over() {
    let fixture = Fixture::new(4_000);
    let mut run = fixture.start(LONG);
    run.wait_for_line("dense worker 0     │ step ");
    let folder = fixture.run_folder().display().to_string();
    for named in [&["status", "--json", &folder][..], &["status", "--json"]] {
        let status = fixture.zagros(named.iter().copied()).expect(0);
        let status: Value = serde_json::from_str(&status.stdout).expect("JSON");
        assert_eq!((&status["job"], &status["state"]), (&"small".into(), &"training".into()), "{named:?}");
    }
    run.signal(Signal::INT);
    run.finish().expect(130);
    fixture.zagros(["status", &folder]).expect(4).says(&["no run is live in", "zagros logs", "report.html"]);
    fixture.zagros(["status", "nowhere"]).expect(2).says(&["there is no run folder nowhere"]);
}

#[test]
fn every_command_takes_the_job_file_in_the_same_way() {
    let fixture = Fixture::new(2_000);
    let plan = fixture.zagros(["up", "job.toml", "--servers", "2", "--workers", "2", "--dry-run"]).expect(0);
    assert!(plan.stdout.contains("2 embedding server(s), 2 dense worker(s)"), "{}", plan.stdout);
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
