//! `zagros scale`: servers come and go while a run trains, and training does not notice.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use zagros_tests::{RunningCommand, signal_process};

use super::faults::pid;
use super::fixture::{Fixture, http_get, wait_for};
use super::memory;

/// Mode `sync`: the losses are the same bit for bit for any number of embedding servers (invariant DP-5).
const SYNC: [&str; 6] = ["up", "job.toml", "--set=train.mode=sync", "--set=train.epochs=1000", "--servers", "2"];

/// How long a test waits for moves.
const MOST: Duration = Duration::from_secs(60);

fn scale_of(fixture: &Fixture) -> Value {
    fixture.zagros(["status", "--json"]).expect(0).json()["scale"].take()
}

fn scale(fixture: &Fixture, servers: u32, says: &str) {
    let done = fixture.zagros(["scale", &format!("servers={servers}")]).expect(0);
    assert!(done.stdout.contains(says), "{}", done.stdout);
}

fn wait_for_servers(fixture: &Fixture, servers: u32) {
    wait_for(MOST, || {
        let scale = scale_of(fixture);
        let is_reached = scale["servers"] == servers && scale["buckets_left"] == 0;
        if is_reached { Ok(()) } else { Err(format!("{servers} servers are not reached: {scale}")) }
    });
}

/// Stops the run. An undisturbed one of as many steps has the same losses.
fn assert_undisturbed(fixture: &Fixture, run: RunningCommand, job: &[&str]) {
    run.interrupt();
    let mut losses = fixture.losses();
    // A run that is stopped while it reads may cut its last batch short.
    losses.pop();
    let steps = losses.len().to_string();
    fixture.zagros([job, &["--fresh", "--max-steps", &steps]].concat()).expect(0);
    assert_eq!(losses, fixture.losses(), "a loss differs within {steps} steps");
}

/// Invariants DP-3, DP-5 and PL-2.
#[test]
fn a_run_whose_servers_come_and_go_learns_what_an_undisturbed_run_learns() {
    let fixture = Fixture::new(20_000);
    let run = fixture.start_until("dense worker 0     │ step ", SYNC);
    scale(&fixture, 4, "4 embedding servers; moved");
    assert!(pid(&fixture, "embedding-server-3") > 0, "`up` has started it");
    scale(&fixture, 3, "3 embedding servers; moved");
    signal_process(pid(&fixture, "embedding-server-2"), Signal::TERM);
    wait_for_servers(&fixture, 2);
    let moved = scale_of(&fixture);
    assert!(moved["rows_moved"].as_u64() > Some(0) && moved["bytes_moved"].as_u64() > Some(0), "{moved}");
    assert!(moved["moves_committed"].as_u64() >= Some(5), "{moved}");
    assert_undisturbed(&fixture, run, &SYNC);
}

/// Invariants TI-1, DU-1 and DP-5: rows beyond memory move from two servers to three and back, and a server is killed during each change.
#[test]
fn rows_beyond_memory_move_and_a_killed_server_costs_a_move_and_nothing_else() {
    let fixture = memory::fixture();
    let limit = memory::limit();
    let job =
        ["up", "shared.toml", "--set=train.mode=sync", "--set=train.epochs=1000", "--servers", "2", "--set", &limit];
    let mut run = fixture.start_until("dense worker 0     │ step ", job);
    fixture.zagros(["scale", "servers=3", "--no-wait"]).expect(0);
    run.wait_for_line("embedding server 2");
    signal_process(pid(&fixture, "embedding-server-1"), Signal::KILL);
    wait_for_servers(&fixture, 3);
    let outcome = fixture.read_run_json("roles/embedding-server-2.json");
    let admin = outcome["admin"].as_str().expect("an address").to_owned();
    wait_for(MOST, || {
        let cold = memory::metric(&http_get(&admin, "/metrics"), r#"cold_rows{server="2"}"#);
        if cold > 0 { Ok(()) } else { Err("no row of the new server lies beyond its memory".to_owned()) }
    });
    fixture.zagros(["scale", "servers=2", "--no-wait"]).expect(0);
    signal_process(pid(&fixture, "embedding-server-0"), Signal::KILL);
    wait_for_servers(&fixture, 2);
    let moved = scale_of(&fixture);
    assert!(moved["rows_moved"].as_u64() > Some(10_000) && moved["moves_committed"].as_u64() >= Some(4), "{moved}");
    println!("{moved}");
    assert_undisturbed(&fixture, run, &job);
}

/// Invariant DP-5: an id is admitted at the same lookup, because its exact count moves.
#[test]
fn ids_that_are_counted_move_and_the_run_learns_what_an_undisturbed_run_learns() {
    let fixture = Fixture::new(20_000);
    let count = "--set=embedding.admission={ kind = \"count\", min_count = 40 }";
    let run = fixture.start_until("dense worker 0     │ step ", SYNC.into_iter().chain([count]));
    scale(&fixture, 3, "3 embedding servers; moved");
    scale(&fixture, 2, "2 embedding servers; moved");
    assert_undisturbed(&fixture, run, &[&SYNC[..], &[count]].concat());
}

#[test]
fn what_cannot_be_scaled_is_refused_with_the_reason() {
    let fixture = Fixture::new(4_000);
    fixture.zagros(["scale", "servers=0"]).expect(2).says(&["servers=0"]);
    fixture.zagros(["scale", "servers=2", "--run", "runs/none"]).expect(2).says(&["there is no run folder"]);
    let run = fixture.start_until("step ", ["up", "job.toml", "--set=train.epochs=1000", "--set=cluster.buckets=64"]);
    fixture.zagros(["scale", "servers=65"]).expect(2).says(&["65 servers cannot share 64 buckets"]);
    let refused = fixture.zagros(["scale", "servers=1", "workers=3"]).expect(2);
    refused.says(&["the run has 1 dense workers", "cluster.max_workers"]);
    scale(&fixture, 1, "0 buckets have to move");
    run.interrupt();
}

/// Invariant RK-5, and CK-2 with another number of workers: 1 → 3 → 2, stopped with 2, resumed with 1.
#[test]
fn workers_come_and_go_while_the_run_trains_and_a_stopped_run_resumes_with_another_number() {
    let fixture = Fixture::new(20_000);
    let up = |epochs: u32, workers: &'static str| {
        let sets = [format!("--set=train.epochs={epochs}"), "--set=data.shuffle_rows=2000".to_owned()];
        let fixed = ["up", "job.toml", "--set=cluster.max_workers=4", "--workers", workers].map(str::to_owned);
        fixed.into_iter().chain(sets).collect::<Vec<_>>()
    };
    let mut run = fixture.start_until("dense worker 0     │ step ", up(1000, "1").iter().map(String::as_str));
    let both = fixture.zagros(["scale", "servers=2", "workers=3"]).expect(0);
    let says = |said: &str| assert!(both.stdout.contains(said), "{}", both.stdout);
    ["2 embedding servers and 3 dense workers are wanted", "; 3 dense workers"].into_iter().for_each(says);
    assert!(pid(&fixture, "dense-worker-2") > 0, "`up` has started it");
    let status = fixture.zagros(["status"]).expect(0);
    assert!(status.stdout.contains("3 dense workers") && status.stdout.contains("dense worker 2"), "{}", status.stdout);
    let two = fixture.zagros(["scale", "workers=2"]).expect(0);
    assert!(two.stdout.contains("; 2 dense workers"), "{}", two.stdout);
    fixture.zagros(["scale", "workers=5"]).expect(2).says(&["4 dense workers at most (`cluster.max_workers`)"]);
    // A worker that is killed is started again, and the one that has left is not.
    signal_process(pid(&fixture, "dense-worker-1"), Signal::KILL);
    run.wait_for_line("starting it again");
    // A run that is stopped while a worker is lost saves nothing.
    run.wait_for_line("training continues after step");
    let status = fixture.zagros(["status", "--json"]).expect(0);
    let epoch = status.json()["epoch"].as_u64().expect("an epoch");
    run.signal(Signal::INT);
    // A worker may have left before `up` has asked it to: the coordinator's line is there either way.
    run.finish().expect(130).says(&["dense worker 2 left: the run goes on without it"]);
    assert_eq!(fixture.summary()["outcome"], "interrupted");

    let epochs = u32::try_from(epoch).expect("few") + 3;
    fixture.zagros(up(epochs, "1").iter().map(String::as_str)).expect(0);
    let summary = fixture.summary();
    assert_eq!(summary["outcome"], "finished");
    assert_eq!(summary["epochs"].as_array().map(Vec::len), Some(epochs as usize));
    println!("{} samples in {} steps", summary["samples"], summary["steps"]);
}

#[test]
fn each_sample_counts_once_while_workers_come_and_go() {
    come_and_go("--set=train.mode=hybrid");
}

#[test]
fn each_sample_counts_once_while_asynchronous_workers_come_and_go() {
    come_and_go("--set=train.mode=async");
}

fn come_and_go(mode: &str) {
    let fixture = Fixture::new(20_000);
    let sets = ["--set=train.epochs=40", "--set=cluster.max_workers=3", "--set=data.shuffle_rows=2000", mode];
    let run = fixture.start_until("dense worker 0     │ step ", ["up", "job.toml"].into_iter().chain(sets));
    fixture.zagros(["scale", "workers=3"]).expect(0);
    fixture.zagros(["scale", "workers=2"]).expect(0);
    run.finish().expect(0);
    let summary = fixture.summary();
    assert_eq!((&summary["outcome"], &summary["samples"]), (&"finished".into(), &800_000.into()));
    assert_eq!(summary["epochs"].as_array().map(Vec::len), Some(40));
}
