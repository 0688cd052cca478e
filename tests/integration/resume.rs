//! Runs that are killed, interrupted or changed, and go on.
//! Runs whose checkpoints write what has changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use zagros_fakes::s3::FakeS3;
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

/// Four checkpoints of a run that is killed, whose command is this one with so many servers.
fn killed_after_deltas<'a>(fixture: &Fixture, more: &[&'a str]) -> impl Fn(&'a str) -> Vec<&'a str> {
    let sets = [&SYNC[..], &["checkpoint.deltas=4", "checkpoint.keep=20"], more].concat();
    let up = move |servers| with_sets(&["up", "job.toml", "--servers", servers], &sets);
    fixture.start_to_checkpoint(4, up("2")).kill();
    up
}

fn is_whole(fixture: &Fixture, checkpoint: &str) {
    let verified = fixture.zagros(["inspect", checkpoint, "--verify"]).expect(0);
    verified.prints(&["delta-1.zrows", "every checksum agrees"]);
    fixture.zagros(["inspect", checkpoint, "--table", "C1", "--export", "c1.parquet"]).expect(0);
}

/// In a run of so few rows the deltas are soon half as large as the file that they follow, and all rows are written
/// again: so checkpoints are deleted from the newest on, up to one with a delta.
fn newest_with_a_delta(run: &Path) -> (PathBuf, Vec<String>) {
    let entries = std::fs::read_dir(run.join("checkpoints")).expect("there are checkpoints");
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    folders.sort();
    for folder in folders.into_iter().rev() {
        let manifest = std::fs::read(folder.join("manifest.json")).unwrap_or_default();
        let manifest: Value = serde_json::from_slice(&manifest).unwrap_or_default();
        let files = manifest["row_files"].as_array().into_iter().flatten();
        let files: Vec<String> = files.filter_map(|file| Some(file.as_str()?.to_owned())).collect();
        if files.iter().any(|file| file.contains("delta")) {
            return (folder, files);
        }
        std::fs::remove_dir_all(folder).expect("a checkpoint is deleted");
    }
    panic!("no checkpoint has a delta");
}

/// Invariants CK-2 and CK-6, on another number of servers too.
#[test]
fn a_run_that_resumes_from_deltas_is_the_same_bit_by_bit() {
    let broken = Fixture::new(20_000);
    let up = killed_after_deltas(&broken, &[]);
    let (checkpoint, files) = newest_with_a_delta(&broken.run_folder());
    assert_eq!(files[..2], ["rows-0-of-2.zrows", "rows-0-of-2.delta-1.zrows"]);
    let checkpoint = checkpoint.display().to_string();
    is_whole(&broken, &checkpoint);
    broken.zagros(["eval", &checkpoint, "--json"]).expect(0);
    broken.zagros(up("1")).expect(0).says(&["cluster.servers: 2 → 1", "going on after step"]);
    assert_undisturbed(&broken, 1);
}

/// The newest checkpoint in a store that names files of earlier ones, after all younger ones are deleted.
fn newest_of_several_folders(store: &FakeS3) -> String {
    let mut manifests: Vec<String> =
        store.object_keys().into_iter().filter(|key| key.ends_with("/manifest.json")).collect();
    manifests.sort();
    for key in manifests.into_iter().rev() {
        let manifest: Value =
            serde_json::from_slice(&store.object_content(&key).unwrap_or_default()).unwrap_or_default();
        let files = manifest["row_files"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let folder = key.trim_end_matches("/manifest.json").to_owned();
        if files.filter(|file| file.starts_with("../resume-")).count() == 2 {
            return folder;
        }
        store.object_keys().iter().filter(|key| key.starts_with(&folder)).for_each(|key| store.remove_object(key));
    }
    panic!("no checkpoint names files of another: {:?}", store.object_keys());
}

/// The same in an object store, where a checkpoint names the files of earlier ones.
#[test]
fn a_run_that_resumes_from_deltas_in_a_store_is_the_same_bit_by_bit() {
    let (store, broken) = Fixture::with_store(20_000);
    let up = killed_after_deltas(&broken, &["checkpoint.folder=s3://models/ads"]);
    is_whole(&broken, &format!("s3://models/{}", newest_of_several_folders(&store)));
    broken.zagros(up("1")).expect(0).says(&["cluster.servers: 2 → 1", "going on after step"]);
    assert_undisturbed(&broken, 1);
    assert_eq!(store.object_keys(), Vec::<String>::new(), "a run that came to its end leaves nothing");
}
