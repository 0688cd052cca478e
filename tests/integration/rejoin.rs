//! A dense worker's process is killed in mid-run and another one takes its place: the run goes on.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use zagros_fakes::s3::{FakeS3, S3Fault};
use zagros_tests::signal_process;

use crate::faults::pid;
use crate::fixture::Fixture;
use crate::workers::RoleProcesses;

const ROWS: u32 = 20_000;
const EPOCHS: u64 = 8;

#[test]
fn killed_workers_come_back_one_after_the_other_and_the_run_goes_on() {
    let fixture = Fixture::new(ROWS);
    let epochs = format!("train.epochs={EPOCHS}");
    let sets = [epochs.as_str(), "checkpoint.every_steps=50", "checkpoint.keep=1"];
    let (roles, [mut first, mut second]) = RoleProcesses::start(&fixture, &sets);
    first.wait_for_line("checkpoint after step");

    signal_process(roles.worker(1), Signal::KILL);
    second.wait_for_end();
    let lost = first.wait_for_line("dense worker 1 lost after step");
    let mut second = roles.start_worker(1, &sets);
    let back = first.wait_for_line("training continues after step");
    second.wait_for_line("training continues after step");
    println!("{lost}\n{back}");

    first.wait_for_line("checkpoint after step");
    let step = |line: &str| line.split("after step ").nth(1).and_then(number).expect("a step");
    signal_process(roles.worker(0), Signal::KILL);
    first.wait_for_end();
    let lost = second.wait_for_line("dense worker 0 lost after step");
    let mut first = roles.start_worker(0, &sets);
    // Not from the checkpoint: the other one is further.
    let back = first.wait_for_line("training continues after step");
    println!("{lost}\n{back}");
    assert!(step(&back) >= step(&lost));
    assert!(back.contains("from the state of dense worker 1"), "{back}");

    let (first, second) = (first.finish().expect(0), second.finish().expect(0));
    assert!(!first.stderr.contains("going on after step"), "{}", first.stderr);
    let summary = fixture.summary();
    let samples = summary["samples"].as_u64().expect("samples");
    let auc = summary["evaluation"]["auc"].as_f64().expect("an AUC");
    println!("{samples} samples of {}, AUC {auc:.4}\n{}", EPOCHS * u64::from(ROWS), second.stderr);
    // At most what one worker reads of an epoch is trained on twice, for each worker that was lost.
    assert!((EPOCHS * u64::from(ROWS)..=(EPOCHS + 2) * u64::from(ROWS)).contains(&samples), "{samples}");
    assert!(auc > 0.65, "AUC {auc}");
    assert_eq!(fixture.run_folders().len(), 1, "the new process went on in another folder");
}

#[test]
fn a_worker_that_is_killed_is_started_again_unless_that_is_not_wanted() {
    let fixture = Fixture::new(ROWS);
    let arguments = ["up", "job.toml", "--workers", "2", "--set", "train.epochs=10"];
    let mut run = fixture.start(arguments);
    run.wait_for_line("epoch 1/");
    signal_process(pid(&fixture, "dense-worker-1"), Signal::KILL);
    run.wait_for_line("dense worker 1 was killed by signal 9; starting it again (2 restarts left");
    run.finish().expect(0).says(&["dense worker 1 lost after step", "training continues after step"]);
    assert!(fixture.summary()["samples"].as_u64() >= Some(10 * u64::from(ROWS)));

    let mut run = fixture.start(arguments.into_iter().chain(["--restarts", "0"]));
    run.wait_for_line("epoch 1/");
    signal_process(pid(&fixture, "dense-worker-1"), Signal::KILL);
    run.finish().expect(4).says(&["dense worker 1 was killed by signal 9"]);
}

/// As on a machine that swaps. The others do not wait for their timeout, which is longer than this test may take; and
/// it is taken back, or started again where it is fenced.
#[test]
fn a_worker_that_stood_still_for_longer_than_its_lease_ends_no_run() {
    let fixture = Fixture::new(ROWS);
    let sets = ["train.epochs=10", "cluster.lease_seconds=2", "cluster.timeout_seconds=3600"];
    let sets = sets.into_iter().flat_map(|set| ["--set", set]);
    let mut run = fixture.start(["up", "job.toml", "--workers", "2"].into_iter().chain(sets));
    run.wait_for_line("epoch 1/");
    let second = pid(&fixture, "dense-worker-1");
    signal_process(second, Signal::STOP);
    run.wait_for_line("dense worker 1 lost after step");
    signal_process(second, Signal::CONT);
    run.wait_for_line("training continues after step");
    run.finish().expect(0);
    assert!(fixture.summary()["samples"].as_u64() >= Some(10 * u64::from(ROWS)));
}

#[test]
fn where_enough_are_left_the_run_goes_on_without_a_killed_worker() {
    let fixture = Fixture::new(ROWS);
    let sets = ["train.epochs=10", "cluster.min_workers=1", "cluster.lease_seconds=2", "cluster.timeout_seconds=8"];
    let sets = sets.into_iter().flat_map(|set| ["--set", set]);
    let mut run = fixture.start(["up", "job.toml", "--workers", "2", "--restarts", "0"].into_iter().chain(sets));
    run.wait_for_line("epoch 1/");
    signal_process(pid(&fixture, "dense-worker-1"), Signal::KILL);
    run.wait_for_line("dense worker 1 was killed by signal 9; 1 workers are left and continue without it");
    let ended = run.finish().expect(0);
    ended.says(&[
        "the run continues with 1 of its workers",
        "training continues after step",
        "with dense worker 0 alone",
    ]);
    // At least every row once an epoch, by this one worker from then on.
    assert!(fixture.summary()["samples"].as_u64() >= Some(10 * u64::from(ROWS)));
}

/// Invariant RK-6. The store of the model answers no write until worker 0 is killed.
#[test]
fn a_first_worker_that_is_killed_while_it_saves_is_replaced_and_its_replacement_saves() {
    let store = FakeS3::start("models");
    let fixture = Fixture::new(ROWS).with_environment(store.environment_variables());
    let sets = [
        "output.model_folder=s3://models/ads",
        "train.epochs=3",
        "data.validation_share=0.2",
        "train.early_stop={patience=9}",
        "checkpoint.every_steps=20",
    ];
    let sets = sets.into_iter().flat_map(|set| ["--set", set]);
    let mut run = fixture.start(["up", "job.toml", "--workers", "2"].into_iter().chain(sets));
    // At its start the run has tried whether it may write there.
    run.wait_for_line("checkpoint after step");
    store.inject_fault(S3Fault::Hangs, "P", usize::MAX);
    let (deadline, tried) = (Instant::now() + Duration::from_secs(120), store.request_log().len());
    while store.request_log().len() == tried {
        assert!(Instant::now() < deadline, "worker 0 saves no model");
        std::thread::sleep(Duration::from_millis(20));
    }
    signal_process(pid(&fixture, "dense-worker-0"), Signal::KILL);
    run.wait_for_line("dense worker 0 was killed by signal 9; starting it again");
    store.clear_faults();
    run.finish().expect(0).says(&["dense worker 0 is lost", "from the state of dense worker 1"]);
    let summary = fixture.summary();
    assert_eq!(summary["complete"], true);
    assert!(summary["evaluation"]["auc"].as_f64() > Some(0.6), "{summary}");
    let model = store.object_keys().into_iter().filter(|key| key.ends_with("/manifest.json")).count();
    assert_eq!(model, 1, "{:?}", store.object_keys());
    let scored = fixture.zagros(["eval", &fixture.run_folder().display().to_string(), "--json"]).expect(0);
    let scored: Value = serde_json::from_str(&scored.stdout).expect("JSON");
    assert_eq!(scored["auc"], summary["evaluation"]["auc"]);
}

/// The digits that a text begins with, between which may be commas.
fn number(text: &str) -> Option<u64> {
    let digits = text.chars().take_while(|letter| letter.is_ascii_digit() || *letter == ',');
    digits.filter(char::is_ascii_digit).collect::<String>().parse().ok()
}
