//! `zagros scale`: servers come and go while a run trains, and training does not notice.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use zagros_tests::signal_process;

use crate::faults::pid;
use crate::fixture::Fixture;

/// Mode `sync`: the losses are the same bit for bit for any number of embedding servers (invariant DP-5).
const SYNC: [&str; 6] = ["up", "job.toml", "--set=train.mode=sync", "--set=train.epochs=1000", "--servers", "2"];

fn scale_of(fixture: &Fixture) -> Value {
    let status = fixture.zagros(["status", "--json"]).expect(0);
    serde_json::from_str::<Value>(&status.stdout).expect("JSON")["scale"].take()
}

/// Asks for so many servers, and waits until the run has them.
fn scale(fixture: &Fixture, servers: u32, says: &str) {
    let done = fixture.zagros(["scale", &format!("servers={servers}")]).expect(0);
    assert!(done.stdout.contains(says), "{}", done.stdout);
}

/// Waits until a run that somebody else scales has so many servers.
fn wait_for_servers(fixture: &Fixture, servers: u32) {
    let mut tries = 0;
    loop {
        let scale = scale_of(fixture);
        if scale["servers"] == servers && scale["buckets_left"] == 0 {
            return;
        }
        tries += 1;
        assert!(tries < 600, "{servers} servers are not reached: {scale}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Invariants DP-3, DP-5 and PL-2.
#[test]
fn a_run_whose_servers_come_and_go_learns_what_an_undisturbed_run_learns() {
    let fixture = Fixture::new(20_000);
    let mut run = fixture.start(SYNC);
    run.wait_for_line("dense worker 0     │ step ");
    scale(&fixture, 4, "4 embedding servers; moved");
    assert!(pid(&fixture, "embedding-server-3") > 0, "`up` has started it");
    scale(&fixture, 3, "3 embedding servers; moved");
    signal_process(pid(&fixture, "embedding-server-2"), Signal::TERM);
    wait_for_servers(&fixture, 2);
    let moved = scale_of(&fixture);
    assert!(moved["rows_moved"].as_u64() > Some(0) && moved["bytes_moved"].as_u64() > Some(0), "{moved}");
    assert!(moved["moves_committed"].as_u64() >= Some(5), "{moved}");
    run.signal(Signal::INT);
    run.finish().expect(130);
    let mut losses = fixture.losses();
    // A run that is stopped while it reads may cut its last batch short.
    losses.pop();
    let steps = losses.len().to_string();
    fixture.zagros(SYNC.into_iter().chain(["--fresh", "--max-steps", &steps])).expect(0);
    assert_eq!(losses, fixture.losses(), "a loss differs within {steps} steps");
}

#[test]
fn what_cannot_be_scaled_is_refused_with_the_reason() {
    let fixture = Fixture::new(4_000);
    fixture.zagros(["scale", "servers=0"]).expect(2).says(&["servers=0"]);
    fixture.zagros(["scale", "servers=2", "--run", "runs/none"]).expect(2).says(&["there is no run folder"]);
    let mut run = fixture.start(["up", "job.toml", "--set=train.epochs=1000", "--set=cluster.buckets=64"]);
    run.wait_for_line("step ");
    fixture.zagros(["scale", "servers=65"]).expect(2).says(&["65 servers cannot share 64 buckets"]);
    fixture.zagros(["scale", "servers=1", "workers=3"]).expect(2).says(&["the run has 1 dense workers"]);
    scale(&fixture, 1, "0 buckets have to move");
    run.signal(Signal::INT);
    run.finish().expect(130);
}
