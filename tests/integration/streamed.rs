//! Streamed weights in processes of their own: killed servers, a worker that is killed, and what its memory holds.

use rustix::process::Signal;
use zagros_tests::{RunningCommand, signal_process};

use crate::faults::pid;
use crate::fixture::Fixture;

const ROWS: u32 = 20_000;
const EPOCHS: u64 = 6;
/// A layer of several tiles on each server.
const SETS: [&str; 6] = [
    "train.mode=sync",
    "train.weights=streamed",
    "train.epochs=6",
    "cluster.durability=process",
    "model={kind='ffnn', hidden=[512, 256]}",
    "checkpoint.every_steps=20",
];

fn up(fixture: &Fixture, servers: &str, sets: &[&str]) -> RunningCommand {
    let sets = sets.iter().flat_map(|set| ["--set", *set]);
    fixture.start(["up", "job.toml", "--servers", servers, "--workers", "1"].into_iter().chain(sets))
}

/// Invariants DP-3 and MB-6: a layer's gradient is applied once, and the tiles come back with the log.
#[test]
fn servers_that_are_killed_change_no_bit_of_streamed_weights() {
    let fixture = Fixture::new(ROWS);
    up(&fixture, "2", &SETS).finish().expect(0);
    let undisturbed = fixture.losses();
    let mut run = up(&fixture, "2", &SETS);
    run.wait_for_line("epoch 0 is complete");
    for kill in 1..=4 {
        let server = kill % 2;
        signal_process(pid(&fixture, &format!("embedding-server-{server}")), Signal::KILL);
        run.wait_for_line(&format!("embedding server {server} is back with its rows"));
        run.wait_for_line(&format!("epoch {kill} is complete"));
    }
    run.finish().expect(0);
    assert_eq!(fixture.summary()["samples"].as_u64(), Some(EPOCHS * u64::from(ROWS)));
    // Bit for bit, and those of weights that the worker has.
    assert_eq!(fixture.losses(), undisturbed);
    let sets: Vec<&str> = SETS.into_iter().filter(|set| !set.contains("streamed")).collect();
    up(&fixture, "2", &sets).finish().expect(0);
    assert_eq!(fixture.losses(), undisturbed);
}

/// The only worker of a run ends it. The same command goes on from the newest checkpoint, whose tiles any number of servers takes.
#[test]
fn a_run_whose_worker_was_killed_goes_on_from_the_tiles_of_a_checkpoint() {
    let fixture = Fixture::new(ROWS);
    up(&fixture, "2", &SETS).finish().expect(0);
    let whole = fixture.losses();
    let mut run = up(&fixture, "3", &SETS);
    run.wait_for_line("epoch 2 is complete");
    signal_process(pid(&fixture, "dense-worker-0"), Signal::KILL);
    run.finish().expect(4);
    up(&fixture, "1", &SETS).finish().expect(0);
    assert_eq!(fixture.losses().last(), whole.last());
    let model = fixture.run_folder().join("model").display().to_string();
    let scored = fixture.zagros(["eval", &model, "--set", "cluster.servers=3", "--json"]).expect(0);
    assert!(scored.stdout.contains("auc"), "{}", scored.stdout);
    let tables = fixture.zagros(["inspect", &model]).expect(0);
    assert!(tables.stdout.contains("(dense) layers.0.weight"), "{}", tables.stdout);
}
