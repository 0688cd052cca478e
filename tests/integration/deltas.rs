//! Runs whose checkpoints write what has changed.

use std::path::{Path, PathBuf};

use serde_json::Value;
use zagros_fakes::s3::FakeS3;

use super::fixture::{Fixture, with_sets};
use super::resume::{SYNC, assert_undisturbed};

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
