//! Runs that are killed, interrupted or changed, and go on.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use zagros_tests::signal_process;

use super::faults::pid;
use super::fixture::{Fixture, with_sets};

pub(crate) const SYNC: [&str; 3] = ["train.mode=sync", "train.epochs=3", "checkpoint.every_steps=20"];

/// Loss by step of the newest run, as far as it was not gone back on, and how often it was.
pub(crate) fn losses(fixture: &Fixture) -> (BTreeMap<u64, String>, usize) {
    let (mut losses, mut resumed) = (BTreeMap::new(), 0);
    for line in fixture.metrics() {
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

/// Losses and end of a run of [`SYNC`] on 20,000 rows. Any number of servers gives the same, bit for bit (invariant DP-5).
fn undisturbed() -> &'static (BTreeMap<u64, String>, [Value; 5]) {
    static UNDISTURBED: OnceLock<(BTreeMap<u64, String>, [Value; 5])> = OnceLock::new();
    UNDISTURBED.get_or_init(|| {
        let fixture = Fixture::new(20_000);
        fixture.train(&SYNC);
        (losses(&fixture).0, end(&fixture))
    })
}

/// A run of [`SYNC`] on 20,000 rows by one worker, which went back so many times, has learned the same bit by bit.
#[track_caller]
pub(crate) fn assert_undisturbed(fixture: &Fixture, resumed: usize) {
    let (whole_losses, whole_end) = undisturbed();
    assert_eq!(losses(fixture), (whole_losses.clone(), resumed));
    assert_eq!(end(fixture), *whole_end);
}

/// As [`assert_undisturbed`], of a run whose first losses another machine has.
pub(crate) fn assert_ends_undisturbed(fixture: &Fixture) {
    let (whole_losses, whole_end) = undisturbed();
    let later = losses(fixture).0;
    assert!(!later.is_empty() && later.iter().all(|(step, loss)| whole_losses.get(step) == Some(loss)));
    assert_eq!(end(fixture), *whole_end);
}

fn runs(fixture: &Fixture) -> usize {
    fixture.run_folders().len()
}

/// Invariant CK-2, with real processes: one that is killed and one that is asked to stop.
#[test]
fn a_run_of_one_process_that_dies_goes_on_bit_by_bit() {
    let broken = Fixture::new(20_000);
    let train = || with_sets(&["train", "job.toml"], &SYNC);
    broken.start_to_checkpoint(1, train()).kill();
    let mut second = broken.start_until("going on after step", train());
    second.wait_for_line("checkpoint after step");
    second.interrupt().prints(&["goes on from here"]);
    broken.zagros(train()).expect(0).says(&["going on after step"]);
    assert_eq!(runs(&broken), 1);
    assert_undisturbed(&broken, 2);
    // Now that it is over, the same command is another run.
    broken.zagros(train()).expect(0);
    assert_eq!(runs(&broken), 2);
}

#[test]
fn a_killed_worker_ends_the_run_and_the_next_goes_on_bit_by_bit() {
    let (whole, broken) = (Fixture::new(20_000), Fixture::new(20_000));
    let up = |servers: &'static str| with_sets(&["up", "job.toml", "--servers", servers, "--workers", "2"], &SYNC);
    whole.zagros(up("2")).expect(0);
    let first = broken.start_to_checkpoint(1, [&up("2")[..], &["--restarts", "0"]].concat());
    signal_process(pid(&broken, "dense-worker-1"), Signal::KILL);
    first.finish().expect(4).says(&["dense worker 1", "killed by signal 9"]);
    // On one server less: rows are the same wherever they are.
    broken.zagros(up("1")).expect(0).says(&["cluster.servers: 2 → 1", "going on after step"]);
    assert_eq!(losses(&broken), (losses(&whole).0, 1));
    assert_eq!(end(&broken), end(&whole));
}

pub(crate) fn interrupt(fixture: &Fixture, sets: &[&'static str]) -> PathBuf {
    let train = with_sets(&["train", "job.toml"], &["checkpoint.every_steps=10", "train.epochs=50"]);
    fixture.start_to_checkpoint(1, [&train[..], sets].concat()).interrupt();
    fixture.run_folder()
}

/// An experiment with another learning rate is not the end of the one before.
#[test]
fn a_job_that_learns_otherwise_is_a_run_of_its_own_unless_asked_to_go_on() {
    let fixture = Fixture::new(20_000);
    let run = interrupt(&fixture, &["--set", "optimizer.lr=0.001"]);
    let short = ["train", "job.toml", "--set", "train.epochs=1", "--set", "optimizer.lr=0.01"];
    let outcome = fixture.zagros(short).expect(0);
    let outcome =
        outcome.says(&["a new run", "learned differently", "optimizer.lr: 0.001 → 0.01", "--resume continues"]).stderr;
    assert!(!outcome.contains("going on after step") && fixture.run_folder() != run, "{outcome}");
    let new = fixture.run_folder();
    // The other one is still there for the job that learns as it did, and goes on on request for any.
    let mut same = fixture.start(["train", "job.toml", "--set", "train.epochs=60", "--set", "optimizer.lr=0.001"]);
    let going_on = same.wait_for_line("going on after step");
    assert!(going_on.contains(&run.file_name().expect("a name").to_string_lossy().into_owned()), "{going_on}");
    same.interrupt();
    std::fs::remove_dir_all(new).expect("the new run is removed");
    // The test does not know how far the run came before it heard of the signal.
    let mut up =
        fixture.start(["up", "job.toml", "--set", "train.epochs=60", "--set", "optimizer.lr=0.02", "--resume"]);
    up.wait_for_line("going on after step");
    up.interrupt().says(&["optimizer.lr: 0.001 → 0.02", "going on after step"]);
    assert_eq!(runs(&fixture), 1);
}

#[test]
fn a_run_folder_that_is_not_there_is_a_fault_of_the_command_line() {
    let fixture = Fixture::new(100);
    for folder in ["gone", "job.toml"] {
        let worker = ["dense-worker", "--config", "job.toml", "--folder", folder];
        fixture.zagros(worker).expect(2).says(&[&format!("there is no run folder {folder}"), "leave --folder out"]);
    }
}

#[test]
fn a_job_that_learns_otherwise_or_means_something_else_does_not_go_on_in_a_run_of_another() {
    let fixture = Fixture::new(20_000);
    let run = interrupt(&fixture, &[]);
    // A folder that is named is the one to train in; there is no other to start anew in. Where the machine is busy the run is some
    // epochs on.
    let worker = ["dense-worker", "--config", "job.toml", "--folder", &run.display().to_string()];
    let sets = ["train.batch_size=128", "cluster.timeout_seconds=1", "train.epochs=50"];
    let outcome = fixture.zagros(with_sets(&worker, &sets)).expect(2);
    outcome.says(&["the job learns differently than the run in", "train.batch_size: 256 → 128", "--resume continues"]);
    let changed = ["train", "job.toml", "--set", "model.top=[8]", "--set", "train.epochs=1"];
    fixture.zagros([&changed[..], &["--resume"]].concat()).expect(2).says(&["model.top: [16] → [8]", "--fresh"]);
    let outcome = fixture.zagros(changed).expect(0);
    outcome.says(&["a new run", "the values that it learned would lose their meaning", "model.top: [16] → [8]"]);
    assert_eq!(runs(&fixture), 2);
    assert!(run.join("checkpoints").is_dir(), "the other one is left alone");
    // The newest run of this job is over: nothing to go on with.
    fixture.zagros([&changed[..], &["--fresh"]].concat()).expect(0);
    assert_eq!(runs(&fixture), 3);
}

/// The coordinator would refuse it, and trying again would not help.
#[test]
fn a_run_beyond_the_epochs_that_are_asked_for_now_is_refused_before_anything_starts() {
    let fixture = Fixture::new(2_000);
    // 8 steps an epoch, the first checkpoint after step 10.
    interrupt(&fixture, &[]);
    let outcome = fixture.zagros(["train", "job.toml", "--set", "train.epochs=1"]).expect(2);
    outcome.says(&["`train.epochs` is 1 now", "raise train.epochs, or start over with --fresh"]);
}

/// By the clock the run before is the newer one.
#[test]
fn the_last_run_goes_on_though_the_clock_was_set_back() {
    let fixture = Fixture::new(20_000);
    let earlier = interrupt(&fixture, &[]);
    let future = earlier.with_file_name("small-20990101-000000");
    std::fs::rename(&earlier, &future).expect("it is renamed");
    let last = interrupt(&fixture, &["--fresh"]);
    assert!(last > future, "{last:?} is before {future:?}");
    // The interrupted run may be some epochs on where the machine is busy.
    let short = ["train", "job.toml", "--set", "train.epochs=50", "--set", "train.max_steps=400"];
    fixture.zagros(short).expect(0).says(&["going on after step", "small-20990101-000000-2"]);
}

/// A server that stands still delays the checkpoint and the pushes after the cut, and nothing is lost.
#[test]
fn a_server_that_is_paused_while_a_checkpoint_is_cut_holds_nothing_up_for_good() {
    let fixture = Fixture::new(20_000);
    let up = ["up", "job.toml", "--servers", "2", "--set", "checkpoint.every_steps=25", "--set", "train.epochs=2"];
    let run = fixture.start_to_checkpoint(1, up);
    let paused = pid(&fixture, "embedding-server-1");
    signal_process(paused, Signal::STOP);
    std::thread::sleep(Duration::from_secs(3));
    signal_process(paused, Signal::CONT);
    run.finish().expect(0);
    assert_eq!(fixture.summary()["outcome"], "finished");
    assert!(!fixture.run_folder().join("checkpoints/resume-000000000025").exists());
}
