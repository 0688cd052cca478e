//! Mode `sync` sends the lookup of a batch with the push of the step before it, and learns the bits of a run that sends it after.

use rustix::process::Signal;
use serde_json::Value;
use zagros_tests::signal_process;

use super::faults::pid;
use super::fixture::Fixture;

/// Rows that could expire are looked up once all pushes of the step before are acknowledged. In so many steps none does.
const SEQUENTIAL: &str = "embedding.eviction.ttl={steps=4000000000}";
const WITH_PUSH: &str = "embedding.eviction={}";

/// Losses of all steps, the scores and the numbers of rows.
type Learned = (Vec<f64>, Value, Value);

fn arguments<'a>(workers: &'a str, servers: &'a str, set: &'a str) -> impl Iterator<Item = &'a str> {
    let sets = ["--set", "train.mode=sync", "--set", "train.epochs=3", "--set", set];
    ["up", "job.toml", "--workers", workers, "--servers", servers].into_iter().chain(sets)
}

fn learned(fixture: &Fixture) -> Learned {
    let summary = fixture.summary();
    (fixture.losses(), summary["evaluation"].clone(), summary["rows"].clone())
}

#[test]
fn lookups_that_are_sent_with_pushes_change_no_bit_of_a_sync_run() {
    let fixture = Fixture::new(6_000);
    for workers in ["1", "2"] {
        fixture.zagros(arguments(workers, "1", SEQUENTIAL)).expect(0);
        let sequential = learned(&fixture);
        assert!(!sequential.0.is_empty());
        for servers in ["1", "3"] {
            fixture.zagros(arguments(workers, servers, WITH_PUSH)).expect(0);
            assert_eq!(learned(&fixture), sequential, "{workers} workers, {servers} servers");
        }
    }
}

/// Invariant DP-3. The server that comes back has not counted which pushes of the step it has.
#[test]
fn a_server_that_is_killed_changes_no_bit_of_a_sync_run_whose_lookups_wait_for_pushes() {
    let fixture = Fixture::new(12_000);
    fixture.zagros(arguments("2", "1", SEQUENTIAL)).expect(0);
    let sequential = learned(&fixture);
    let durable = ["--set", "cluster.durability=process"];
    let mut run = fixture.start(arguments("2", "3", WITH_PUSH).chain(durable));
    for epoch in 0..2 {
        run.wait_for_line(&format!("epoch {epoch} is complete"));
        signal_process(pid(&fixture, &format!("embedding-server-{epoch}")), Signal::KILL);
        run.wait_for_line(&format!("embedding server {epoch} is back with its rows"));
    }
    run.finish().expect(0);
    assert_eq!(learned(&fixture), sequential);
}
