//! The end of a run: until model and summary are written, its checkpoints are there to go on from.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::fixture::Fixture;

const TRAIN: [&str; 6] = ["train", "job.toml", "--set", "train.epochs=3", "--set", "checkpoint.every_steps=20"];

fn checkpoints(run: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(run.join("checkpoints")) else { return Vec::new() };
    let paths = entries.map(|entry| entry.expect("readable").path());
    paths.filter(|path| path.join("manifest.json").is_file()).collect()
}

/// Invariant CK-5. A summary that cannot be written, for something is in its place.
#[test]
fn a_run_that_cannot_write_its_summary_keeps_its_checkpoints() {
    let fixture = Fixture::new(20_000);
    let mut first = fixture.start(TRAIN);
    first.wait_for_line("checkpoint after step");
    let run = fixture.run_folder();
    std::fs::create_dir(run.join("summary.json")).expect("something is in the way");
    let failed =
        first.finish().expect(6).says(&["cannot write", "summary.json", "move the file or folder that is in the way"]);
    assert!(!failed.stderr.contains("this is a bug"), "{}", failed.stderr);
    assert!(run.join("model/manifest.json").is_file() && !checkpoints(&run).is_empty());
    std::fs::remove_dir(run.join("summary.json")).expect("it is moved");
    fixture.zagros(TRAIN).expect(0).says(&["going on after step"]);
    assert_eq!(fixture.run_folder(), run);
    assert_eq!((fixture.summary()["complete"].clone(), checkpoints(&run)), (true.into(), Vec::new()));
}

/// Killed at whatever moment after the model is there: either all is written, or there is something to go on from.
#[test]
fn a_run_that_is_killed_after_its_model_loses_nothing() {
    let fixture = Fixture::new(4_000);
    let train = [&TRAIN[..4], &["--set", "checkpoint.every_steps=5", "--set", "output.keep_best=1"]].concat();
    let train =
        [&train[..], &["--set", "data.validation_share=0.2", "--set", "train.early_stop={patience=50}"]].concat();
    for _ in 0..4 {
        let mut run = fixture.start(train.iter().copied());
        run.wait_for_line("checkpoint after step");
        let folder = fixture.run_folder();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !folder.join("model/manifest.json").is_file() {
            assert!(Instant::now() < deadline, "no model");
            std::thread::yield_now();
        }
        // It may have ended by itself.
        run.kill();
        let is_over = folder.join("summary.json").is_file() && fixture.summary()["complete"] == true;
        assert!(is_over || !checkpoints(&folder).is_empty(), "neither a summary nor a checkpoint in {folder:?}");
        let again = fixture.zagros(train.iter().copied()).expect(0);
        assert_eq!(again.stderr.contains("going on after step"), !is_over, "{}", again.stderr);
        assert_eq!(fixture.run_folder() == folder, !is_over);
    }
}

/// Between the summary and the end of its process; what is left then is of no use to anyone.
#[test]
fn checkpoints_of_a_run_that_is_over_are_not_gone_on_from() {
    let fixture = Fixture::new(4_000);
    let train = ["train", "job.toml", "--set", "train.epochs=50", "--set", "checkpoint.every_steps=5"];
    let mut first = fixture.start(train);
    first.wait_for_line("checkpoint after step");
    first.signal(Signal::INT);
    first.finish().expect(130);
    let run = fixture.run_folder();
    assert!(!checkpoints(&run).is_empty());
    let mut summary = fixture.summary();
    assert_eq!(summary["complete"], false);
    (summary["complete"], summary["outcome"]) = (true.into(), "finished".into());
    std::fs::write(run.join("summary.json"), summary.to_string()).expect("it is written");
    let short = [&train[..2], &["--set", "train.epochs=1"]].concat();
    let next = fixture.zagros(short).expect(0);
    assert!(!next.stderr.contains("going on") && fixture.run_folder() != run, "{}", next.stderr);
    assert_eq!(checkpoints(&run), Vec::<PathBuf>::new());
}

#[test]
fn a_folder_that_cannot_be_written_is_reported_once_with_its_own_code() {
    let fixture = Fixture::new(500);
    fixture.write("file", "in the way");
    for command in ["train", "up"] {
        let outcome = fixture.zagros([command, "job.toml", "--set", "output.folder=file/runs"]).expect(6);
        let outcome = outcome.says(&["cannot create file/runs", "name another folder"]).stderr;
        assert!(outcome.matches("file/runs").count() == 1 && !outcome.contains("bug"), "{outcome}");
    }
    let outcome = fixture.zagros(["train", "job.toml", "--set", "output.model_folder=file/models"]).expect(6);
    outcome.says(&["file/models", "`output.model_folder`"]);
}
