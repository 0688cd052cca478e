//! Checkpoints in an S3-compatible object store: runs go on from there, and a store that fails is reported.

use rustix::process::Signal;
use zagros_fakes::s3::{FakeS3, S3Fault};
use zagros_tests::signal_process;

use super::faults::pid;
use super::fixture::{Fixture, damaged, with_sets};
use super::resume::{SYNC, assert_ends_undisturbed, assert_undisturbed, losses};
use super::saved_model::with_variable;

const STORED: [&str; 2] = ["--set", "checkpoint.folder=s3://models/ads"];

fn checkpoints(store: &FakeS3) -> Vec<String> {
    let folder = |key: &String| key.rsplit_once('/').map(|(folder, _)| folder.to_owned());
    let mut folders: Vec<String> =
        store.object_keys().iter().filter_map(folder).filter(|folder| folder.contains("/resume-")).collect();
    folders.dedup();
    folders
}

fn train(more: &[&'static str]) -> Vec<&'static str> {
    [&with_sets(&["train", "job.toml"], &SYNC)[..], &STORED, more].concat()
}

fn interrupted(fixture: &Fixture, store: &FakeS3) {
    fixture.start_to_checkpoint(3, train(&["--set", "train.epochs=50"])).interrupt();
    assert_eq!(checkpoints(store).len(), 2, "{:?}", store.object_keys());
}

/// Invariants CK-1 and CK-2, where the rows, the rest and the manifest are objects.
#[test]
fn a_run_that_dies_goes_on_bit_by_bit_from_a_store_also_on_another_machine() {
    let (store, broken) = Fixture::with_store(20_000);
    broken.start_to_checkpoint(1, train(&[])).kill();
    assert!(store.object_keys().iter().any(|key| key.ends_with("/manifest.json")), "{:?}", store.object_keys());
    assert!(!broken.run_folder().join("checkpoints").exists());
    let mut second = broken.start_until("going on after step", train(&[]));
    second.wait_for_line("checkpoint after step");
    second.kill();
    // Another machine has no run folder.
    assert_eq!(losses(&broken).1, 1);
    std::fs::remove_dir_all(broken.path("runs")).expect("the runs are gone");
    broken.zagros(train(&[])).expect(0).says(&["going on after step", "s3://models/ads/small-"]);
    assert_ends_undisturbed(&broken);
    assert_eq!(store.object_keys(), Vec::<String>::new(), "a run that came to its end leaves nothing");
}

#[test]
fn servers_write_and_read_their_own_rows_on_any_number_of_them() {
    let (store, broken) = Fixture::with_store(20_000);
    let up =
        |servers: &'static str| [&with_sets(&["up", "job.toml", "--servers", servers], &SYNC)[..], &STORED].concat();
    let first = broken.start_to_checkpoint(1, up("2"));
    let rows = |server: &str| store.object_keys().iter().any(|key| key.ends_with(server));
    assert!(rows("rows-0-of-2.zrows") && rows("rows-1-of-2.zrows"), "{:?}", store.object_keys());
    signal_process(pid(&broken, "dense-worker-0"), Signal::KILL);
    let ended = first.finish().expect(4);
    ended.says(&["did memory run out?", "the same command goes on after step", "s3://models/ads/small-"]);
    broken.zagros(up("1")).expect(0).says(&["cluster.servers: 2 → 1", "going on after step"]);
    assert_undisturbed(&broken, 1);
}

#[test]
fn a_store_that_is_away_costs_a_checkpoint_and_no_training() {
    let (store, fixture) = Fixture::with_store(20_000);
    store.inject_fault(S3Fault::Fails, "PUT /models/ads/small-", usize::MAX);
    let mut run = fixture.start(train(&["--set", "train.epochs=500", "--set", "cluster.timeout_seconds=2"]));
    let outcome = run.wait_for_line("no checkpoint was written; training goes on");
    assert!(outcome.contains("s3://models/ads/small-") && outcome.contains("AWS_ENDPOINT_URL is right"), "{outcome}");
    assert_eq!(checkpoints(&store), Vec::<String>::new());
    store.clear_faults();
    run.wait_for_line("checkpoint after step");
    run.interrupt();
    assert!(!checkpoints(&store).is_empty());
}

#[test]
fn wrong_credentials_no_bucket_and_no_store_are_reported_before_training() {
    let (store, fixture) = Fixture::with_store(500);
    let outcome = fixture.zagros(train(&["--set", "checkpoint.folder=s3://other/ads"]));
    outcome.expect(2).says(&["there is no such bucket", "make the bucket"]);
    let fixture = with_variable(&store, fixture, "AWS_ACCESS_KEY_ID", Some("someone-else"));
    let outcome = fixture.zagros(train(&[])).expect(2).says(&["InvalidAccessKeyId", "check AWS_ACCESS_KEY_ID"]);
    assert!(!outcome.stderr.contains("someone-else") && !outcome.stderr.contains("test-secret"), "{}", outcome.stderr);
    fixture.zagros([&["up", "job.toml"], &STORED[..]].concat()).expect(2).says(&["check AWS_ACCESS_KEY_ID"]);
    let fixture = with_variable(&store, fixture, "AWS_ENDPOINT_URL", Some("http://127.0.0.1:1"));
    let away = fixture.zagros(train(&["--set", "cluster.timeout_seconds=2"]));
    away.expect(4).says(&["s3://models/ads", "http://127.0.0.1:1", "AWS_ENDPOINT_URL is right"]);
    let fixture = with_variable(&store, fixture, "AWS_ALLOW_HTTP", Some("false"));
    fixture.zagros(train(&[])).expect(2).says(&["set AWS_ALLOW_HTTP=true"]);
    assert!(!fixture.path("runs").exists(), "nothing was started");
    assert_eq!(store.object_keys(), Vec::<String>::new());
}

#[test]
fn a_checkpoint_without_a_manifest_is_none_and_goes_away() {
    let (store, fixture) = Fixture::with_store(20_000);
    interrupted(&fixture, &store);
    let [older, newest] = checkpoints(&store).try_into().expect("two");
    store.remove_object(&format!("{newest}/manifest.json"));
    let step = older.rsplit('-').next().expect("a step").trim_start_matches('0').to_owned();
    let mut second = fixture.start(train(&["--set", "train.epochs=500"]));
    second.wait_for_line(&format!("going on after step {step}"));
    for _ in 0..3 {
        second.wait_for_line("checkpoint after step");
    }
    second.interrupt();
    let kept = checkpoints(&store);
    assert!(kept.len() == 2 && !kept.contains(&older), "{kept:?}");
    for folder in kept {
        assert!(store.object_content(&format!("{folder}/manifest.json")).is_some(), "{folder}");
    }
}

#[test]
fn a_damaged_part_is_named_and_an_earlier_checkpoint_is_taken() {
    let (store, fixture) = Fixture::with_store(20_000);
    interrupted(&fixture, &store);
    let damage = |checkpoint: &str| {
        let rows = format!("{checkpoint}/rows-0-of-1.zrows");
        store.put_object(&rows, damaged(&store.object_content(&rows).expect("rows")));
    };
    damage(&checkpoints(&store).pop().expect("a checkpoint"));
    let mut run = fixture.start(train(&["--set", "train.epochs=500"]));
    run.wait_for_line("a checkpoint is damaged; an earlier one is taken");
    run.wait_for_line("going on after step");
    run.interrupt();
    checkpoints(&store).iter().for_each(|checkpoint| damage(checkpoint));
    let refused = fixture.zagros(train(&[])).expect(3);
    refused.says(&["is intact", "rows-0-of-1.zrows is not the file that was saved", "--fresh"]);
}
