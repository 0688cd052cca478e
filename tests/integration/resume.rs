//! Runs that are killed, interrupted or changed, and go on.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use zagros_tests::signal_process;

use crate::faults::pid;
use crate::fixture::Fixture;

const SYNC: [&str; 6] = ["--set", "train.mode=sync", "--set", "train.epochs=3", "--set", "checkpoint.every_steps=20"];

/// Loss by step of the newest run, as far as it was not gone back on, and how often it was.
pub(crate) fn losses(fixture: &Fixture) -> (BTreeMap<u64, String>, usize) {
    let text = std::fs::read_to_string(fixture.run_folder().join("metrics.jsonl")).expect("metrics.jsonl");
    let (mut losses, mut resumed) = (BTreeMap::new(), 0);
    // A killed process may leave half a line.
    for line in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let step = line["step"].as_u64().unwrap_or_default();
        match line["type"].as_str() {
            Some("step") => _ = losses.insert(step, line["loss"].to_string()),
            Some("resumed") => {
                losses.retain(|earlier, _| *earlier <= step);
                resumed += 1;
            }
            _ => {}
        }
    }
    (losses, resumed)
}

/// What must be the same in the end.
pub(crate) fn end(fixture: &Fixture) -> [Value; 5] {
    let summary = fixture.summary();
    ["outcome", "steps", "samples", "rows", "evaluation"].map(|key| summary[key].clone())
}

fn runs(fixture: &Fixture) -> usize {
    std::fs::read_dir(fixture.path("runs")).map_or(0, Iterator::count)
}

/// Invariant CK-2, with real processes: one that is killed and one that is asked to stop.
#[test]
fn a_run_of_one_process_that_dies_goes_on_bit_by_bit() {
    let (whole, broken) = (Fixture::new(20_000), Fixture::new(20_000));
    let train = [&["train", "job.toml"], &SYNC[..]].concat();
    whole.zagros(train.iter().copied()).expect(0);
    let mut first = broken.start(train.iter().copied());
    first.wait_for_line("checkpoint after step");
    first.signal(Signal::KILL);
    first.finish();
    let mut second = broken.start(train.iter().copied());
    second.wait_for_line("going on after step");
    second.wait_for_line("checkpoint after step");
    second.signal(Signal::INT);
    let stopped = second.finish().expect(130);
    assert!(stopped.stdout.contains("goes on from here"), "{}", stopped.stdout);
    broken.zagros(train.iter().copied()).expect(0).says(&["going on after step"]);
    assert_eq!((runs(&broken), losses(&broken)), (1, (losses(&whole).0, 2)));
    assert_eq!(end(&broken), end(&whole));
    // Now that it is over, the same command is another run.
    broken.zagros(train.iter().copied()).expect(0);
    assert_eq!(runs(&broken), 2);
}

#[test]
fn a_killed_worker_ends_the_run_and_the_next_goes_on_bit_by_bit() {
    let (whole, broken) = (Fixture::new(20_000), Fixture::new(20_000));
    let up = [&["up", "job.toml", "--servers", "2", "--workers", "2"], &SYNC[..]].concat();
    whole.zagros(up.iter().copied()).expect(0);
    let mut first = broken.start(up.iter().copied());
    first.wait_for_line("checkpoint after step");
    signal_process(pid(&broken, "dense-worker-1"), Signal::KILL);
    first.finish().expect(4).says(&["dense worker 1", "killed by signal 9"]);
    // On one server less: rows are the same wherever they are.
    let fewer = [&["up", "job.toml", "--servers", "1", "--workers", "2"], &SYNC[..]].concat();
    broken.zagros(fewer.iter().copied()).expect(0).says(&["cluster.servers: 2 → 1", "going on after step"]);
    assert_eq!(losses(&broken), (losses(&whole).0, 1));
    assert_eq!(end(&broken), end(&whole));
}

#[test]
fn a_job_that_means_something_else_does_not_go_on() {
    let fixture = Fixture::new(20_000);
    let train = ["train", "job.toml", "--set", "checkpoint.every_steps=10", "--set", "train.epochs=50"];
    let mut first = fixture.start(train);
    first.wait_for_line("checkpoint after step");
    first.signal(Signal::INT);
    first.finish().expect(130);
    let changed = ["--set", "model.top=[8]", "--set", "train.epochs=1"];
    let refused = fixture.zagros([&train[..], &changed].concat());
    refused.expect(2).says(&["model.top: [16] → [8]", "--fresh"]);
    let fresh = fixture.zagros([&train[..], &changed, &["--fresh"]].concat()).expect(0);
    assert!(!fresh.stderr.contains("going on") && runs(&fixture) == 2, "{}", fresh.stderr);
    // The newest run is over: nothing to go on with, so nothing that could be refused either.
    fixture.zagros([&train[..], &changed].concat()).expect(0);
}

/// A server that stands still delays the checkpoint and the pushes after the cut, and nothing is lost.
#[test]
fn a_server_that_is_paused_while_a_checkpoint_is_cut_holds_nothing_up_for_good() {
    let fixture = Fixture::new(20_000);
    let up = ["up", "job.toml", "--servers", "2", "--set", "checkpoint.every_steps=25", "--set", "train.epochs=2"];
    let mut run = fixture.start(up);
    run.wait_for_line("checkpoint after step");
    let paused = pid(&fixture, "embedding-server-1");
    signal_process(paused, Signal::STOP);
    std::thread::sleep(Duration::from_secs(3));
    signal_process(paused, Signal::CONT);
    run.finish().expect(0);
    assert_eq!(fixture.summary()["outcome"], "finished");
    assert!(!fixture.run_folder().join("checkpoints/resume-000000000025").exists());
}
