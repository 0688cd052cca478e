//! How `zagros up` ends a run early: workers save while servers and coordinator live, and no process waits for a dead one.

use rustix::process::Signal;
use serde_json::Value;
use zagros_tests::signal_process;

use crate::faults::pid;
use crate::fixture::Fixture;

const LONG: [&str; 7] =
    ["up", "job.toml", "--set", "cluster.workers=2", "--set", "cluster.servers=2", "--set=train.epochs=1000"];

/// The first worker to end is no reason to end the servers: the other one still saves the model by them.
#[test]
fn workers_that_are_stopped_save_everything_before_the_servers_end() {
    let fixture = Fixture::new(20_000);
    let mut run = fixture.start(LONG);
    run.wait_for_line("dense worker 0     │ step ");
    run.signal(Signal::INT);
    let ended = run.finish().expect(130);
    ended.says(&["stopping: the dense workers finish their step and save", "a second Ctrl-C ends everything"]);
    let log = std::fs::read_to_string(fixture.run_folder().join("logs/coordinator.log")).expect("a log");
    assert!(!log.contains("run failed"), "{log}");
    let place = |text: &str| log.find(text).unwrap_or_else(|| panic!("no {text:?} in\n{log}"));
    let workers = place("dense worker 0 left").max(place("dense worker 1 left"));
    let servers = place("embedding server 0 left").min(place("embedding server 1 left"));
    assert!(workers < servers, "servers left before workers:\n{log}");
    let summary = fixture.summary();
    assert_eq!(summary["outcome"], "interrupted");
    let manifest = std::fs::read(fixture.run_folder().join("model/manifest.json")).expect("a model");
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    assert_eq!(manifest["steps"], summary["steps"], "{manifest}");
    let steps = summary["steps"].as_u64().expect("steps");
    assert!(fixture.run_folder().join(format!("checkpoints/resume-{steps:012}")).is_dir(), "no checkpoint of the end");
}

/// The test ends long before ten minutes have passed.
#[test]
fn a_run_that_lost_a_server_waits_for_nobody() {
    let fixture = Fixture::new(20_000);
    // A server with a log comes back.
    let sets = ["--set", "cluster.timeout_seconds=600", "--set", "cluster.durability=checkpoint"];
    let mut run = fixture.start(LONG.into_iter().chain(sets));
    run.wait_for_line("dense worker 0     │ step ");
    signal_process(pid(&fixture, "embedding-server-1"), Signal::KILL);
    run.finish().expect(4).says(&["embedding server 1 was killed by signal 9"]);
}

#[test]
fn a_second_interrupt_ends_every_process_at_once() {
    let fixture = Fixture::new(20_000);
    let mut run = fixture.start(LONG.into_iter().chain(["--set", "cluster.timeout_seconds=600"]));
    run.wait_for_line("dense worker 0     │ step ");
    // It can neither finish its step nor save.
    let worker = pid(&fixture, "dense-worker-1");
    signal_process(worker, Signal::STOP);
    run.signal(Signal::INT);
    run.wait_for_line("stopping: ");
    run.signal(Signal::INT);
    run.finish().expect(130).says(&["dense worker 1 is killed", "since the last checkpoint is lost"]);
}
