//! Runs whose checkpoints write what has changed.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::Fixture;
use crate::resume::{end, losses};

const UP: [&str; 9] = [
    "up",
    "job.toml",
    "--set",
    "train.mode=sync",
    "--set",
    "train.epochs=3",
    "--set",
    "checkpoint.every_steps=20",
    "--servers",
];

fn up(servers: &'static str) -> Vec<&'static str> {
    [&UP[..], &[servers, "--set", "checkpoint.deltas=4"]].concat()
}

/// The newest checkpoint, and its files of rows.
fn newest(run: &Path) -> (PathBuf, Vec<String>) {
    let checkpoints = std::fs::read_dir(run.join("checkpoints")).expect("there are checkpoints");
    let folders = checkpoints.map(|entry| entry.expect("readable").path());
    let newest = folders.filter(|folder| folder.join("manifest.json").exists()).max().expect("there is a checkpoint");
    let manifest = std::fs::read(newest.join("manifest.json")).expect("a manifest");
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    let files = manifest["row_files"].as_array().expect("files of rows");
    let files = files.iter().filter_map(|file| Some(file.as_str()?.to_owned())).collect();
    (newest, files)
}

/// Invariants CK-2 and CK-6: the checkpoint is read by whoever reads checkpoints, and the run that resumes from it on another
/// number of servers is the same bit for bit.
#[test]
fn a_run_that_resumes_from_deltas_is_the_same_bit_by_bit() {
    let (whole, broken) = (Fixture::new(20_000), Fixture::new(20_000));
    whole.zagros(up("2")).expect(0);
    let mut first = broken.start(up("2"));
    for _ in 0..4 {
        first.wait_for_line("checkpoint after step");
    }
    first.signal(Signal::KILL);
    first.finish();
    let (checkpoint, files) = newest(&broken.run_folder());
    assert!(files.len() >= 6 && files.iter().any(|file| file == "rows-1-of-2.delta-2.zrows"), "{files:?}");
    let checkpoint = checkpoint.display().to_string();
    broken.zagros(["inspect", &checkpoint, "--verify"]).expect(0).says(&["every checksum agrees"]);
    broken.zagros(["inspect", &checkpoint, "--table", "C1", "--export", "c1.parquet"]).expect(0);
    broken.zagros(["eval", &checkpoint, "--json"]).expect(0);
    broken.zagros(up("1")).expect(0).says(&["cluster.servers: 2 → 1", "going on after step"]);
    assert_eq!(losses(&broken), (losses(&whole).0, 1));
    assert_eq!(end(&broken), end(&whole));
}
