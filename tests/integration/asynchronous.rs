//! Mode `async` and slow servers, with every role a process of its own.

use rustix::process::Signal;
use zagros_tests::{assert_contains, signal_process};

use super::faults::pid;
use super::fixture::{Fixture, checkpoints, read_json, with_sets};
use super::workers::assert_two_learn_as_one;

const TWO: [&str; 6] = ["up", "job.toml", "--servers", "2", "--workers", "2"];

#[test]
fn asynchronous_workers_learn_what_one_learns_and_the_model_scores_as_reported() {
    let fixture = Fixture::new(20_000);
    // With fewer epochs the AUC still rises fast, and the difference depends on who is how fast.
    assert_two_learn_as_one(&fixture, &["train.epochs=5"], &["train.mode=async"], 0.03);
    let summary = fixture.summary();
    assert!(summary["staleness"]["max"].as_u64().is_some_and(|max| max <= 4), "{}", summary["staleness"]);
    // The table of the dense network is called what it is.
    fixture.zagros(["inspect", &fixture.run_folder().display().to_string()]).expect(0).prints(&["(dense)"]);
}

/// The test of the rows that are trained on is in `dense-worker/tests/one_process/rejoin.rs`.
#[test]
fn a_killed_asynchronous_worker_is_started_again_and_the_run_ends_well() {
    let fixture = Fixture::new(20_000);
    // The other one trains on meanwhile, and must not be done before the killed one is back.
    let sets = ["--set", "train.mode=async", "--set", "train.epochs=80", "--set", "checkpoint.every_steps=100"];
    let mut run = fixture.start_to_checkpoint(1, TWO.into_iter().chain(sets));
    signal_process(pid(&fixture, "dense-worker-1"), Signal::KILL);
    run.wait_for_line("dense worker 1 was killed by signal 9; starting it again (2 restarts left");
    run.wait_for_line("training continues after step");
    run.finish().expect(0);
    let summary = fixture.summary();
    let (outcome, epochs) = (&summary["outcome"], summary["epochs"].as_array().map(Vec::len));
    assert_eq!((outcome, epochs), (&"finished".into(), Some(80)), "{summary}");
    assert!(summary["evaluation"]["auc"].as_f64().is_some_and(|auc| auc > 0.6), "{}", summary["evaluation"]);
}

/// Invariant RK-4. No epoch ends while worker 1 stands still, so training is not over when worker 2 is asked to end.
#[test]
fn an_asynchronous_worker_that_is_asked_to_end_leaves_and_every_sample_counts_once() {
    let fixture = Fixture::new(20_000);
    let sets = ["train.mode=async", "train.epochs=15", "cluster.min_workers=2", "cluster.lease_seconds=60"];
    let mut run = fixture.start_until("epoch 1/", with_sets(&["up", "job.toml", "--workers", "3"], &sets));
    signal_process(pid(&fixture, "dense-worker-1"), Signal::STOP);
    signal_process(pid(&fixture, "dense-worker-2"), Signal::TERM);
    run.wait_for_line("asked to end, and the run goes on without this worker");
    signal_process(pid(&fixture, "dense-worker-1"), Signal::CONT);
    run.finish().expect(0).says(&["dense worker 2 left: the run goes on without it", "with dense workers 0, 1"]);
    let summary = fixture.summary();
    assert_eq!((&summary["outcome"], &summary["samples"]), (&"finished".into(), &300_000.into()));
    assert_eq!(summary["epochs"].as_array().map(Vec::len), Some(15));
}

/// Epoch that the newest complete checkpoint of the newest run is in.
fn checkpointed_epoch(fixture: &Fixture) -> u64 {
    let newest = checkpoints(&fixture.run_folder()).pop().expect("one is complete");
    read_json(&newest.join("training.json"))["epoch"].as_u64().expect("an epoch")
}

/// Up to the checkpoint each sample was trained on once in each epoch, and after it so is what was left.
#[test]
fn a_killed_run_of_asynchronous_workers_goes_on_with_another_number_of_them() {
    let fixture = Fixture::new(4_000);
    let up = |workers: &'static str, epochs: String, more: &[&str]| {
        let epochs = format!("train.epochs={epochs}");
        let mode = ["--restarts", "0", "--set", "train.mode=async", "--set", &epochs];
        let run = ["up", "job.toml", "--servers", "2", "--workers", workers].into_iter().chain(mode);
        fixture.start(run.chain(more.iter().copied()))
    };
    up("2", "1".to_owned(), &[]).finish().expect(0);
    let samples = fixture.summary()["samples"].as_u64().expect("samples");
    let mut first = up("2", "10000".to_owned(), &["--set", "checkpoint.every_seconds=0.5"]);
    first.wait_for_line("checkpoint after step");
    signal_process(pid(&fixture, "dense-worker-1"), Signal::KILL);
    first.finish().expect(4).says(&["dense worker 1"]);
    let epochs = checkpointed_epoch(&fixture) + 2;
    let second = up("3", epochs.to_string(), &[]).finish();
    second.expect(0).says(&["cluster.workers: 2 → 3", "going on after step"]);
    let summary = fixture.summary();
    assert_eq!((&summary["outcome"], summary["samples"].as_u64()), (&"finished".into(), Some(samples * epochs)));
}

#[test]
fn a_server_that_stands_still_is_named_and_training_goes_on_after_it() {
    let fixture = Fixture::new(4_000);
    let mut run =
        fixture.start(["up", "job.toml", "--servers", "2", "--set", "train.epochs=100", "--set", "train.staleness=2"]);
    run.wait_for_line("step ");
    let server = pid(&fixture, "embedding-server-1");
    signal_process(server, Signal::STOP);
    let outcome = run.wait_for_line("is slow");
    assert_contains(&outcome, &["embedding server 1 (127.0.0.1:", "of 3 batches are under way"]);
    signal_process(server, Signal::CONT);
    run.wait_for_line("embedding server 1 (127.0.0.1:");
    run.finish().expect(0);
    let summary = fixture.summary();
    assert_eq!((&summary["outcome"], &summary["staleness"]["max"]), (&"finished".into(), &2.into()));
}
