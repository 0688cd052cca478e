//! Checkpoints in an S3-compatible object store: runs go on from there, and a store that fails is reported.
//! Models in an S3-compatible object store: written, found, scored and inspected there, and errors that name what is wrong.

use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;
use zagros_fakes::s3::{FakeS3, S3Fault};
use zagros_tests::{FinishedCommand, signal_process};

use super::faults::pid;
use super::fixture::{Fixture, damaged, with_sets};
use super::resume::{SYNC, assert_ends_undisturbed, assert_undisturbed, end, losses};

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

const FILES: [&str; 6] = [
    "dense.safetensors",
    "job.toml",
    "manifest.json",
    "optimizer.safetensors",
    "rows-0-of-2.zrows",
    "rows-1-of-2.zrows",
];

pub(crate) fn with_variable(store: &FakeS3, fixture: Fixture, name: &str, value: Option<&str>) -> Fixture {
    let mut environment = store.environment_variables();
    environment.retain(|(key, _)| key != name);
    environment.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    fixture.with_environment(environment)
}

fn json(run: FinishedCommand) -> Value {
    run.expect(0).json()
}

/// Folder of the newest checkpoint, below the bucket, of a run that was stopped.
fn checkpoint(store: &FakeS3, fixture: &Fixture) -> String {
    let sets = ["train.epochs=50", "checkpoint.every_steps=20", "checkpoint.folder=s3://models/ads"];
    fixture.start_to_checkpoint(1, with_sets(&["up", "job.toml", "--servers", "2"], &sets)).interrupt();
    let manifests =
        store.object_keys().into_iter().filter_map(|key| Some(key.strip_suffix("/manifest.json")?.to_owned()));
    manifests.filter(|folder| folder.contains("/resume-")).max().expect("a checkpoint")
}

fn copy(store: &FakeS3, folder: &str, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for key in store.object_keys().iter().filter(|key| key.starts_with(folder)) {
        let name = key.rsplit('/').next().expect("a name");
        std::fs::write(to.join(name), store.object_content(key).expect("it is there")).expect("it is copied");
    }
}

fn damage(store: &FakeS3, key: &str) -> Vec<u8> {
    let good = store.object_content(key).expect("an object");
    store.put_object(key, damaged(&good));
    good
}

#[test]
fn a_model_in_a_store_is_used_where_it_is_and_what_is_missing_or_damaged_is_named() {
    let (store, fixture) = Fixture::with_store(20_000);
    let folder = checkpoint(&store, &fixture);
    is_scored_and_inspected_as_a_copy_on_a_disk(&store, &fixture, &folder);
    what_is_missing_or_damaged_is_named(&store, &fixture, &folder);
}

fn is_scored_and_inspected_as_a_copy_on_a_disk(store: &FakeS3, fixture: &Fixture, folder: &str) {
    let url = format!("s3://models/{folder}");
    copy(store, folder, &fixture.path("copy"));
    // Nothing of the run is needed.
    std::fs::remove_dir_all(fixture.path("runs")).expect("the runs are gone");
    let scored = json(fixture.zagros(["eval", &url, "--json"]));
    assert_eq!(scored["samples"], 4000);
    assert_eq!(scored, json(fixture.zagros(["eval", "copy", "--json"])));
    for more in [&["--json"][..], &["--table", "C1", "--json"], &["--verify", "--json"]] {
        let there = json(fixture.zagros([&["inspect", url.as_str()], more].concat()));
        assert_eq!(there, json(fixture.zagros([&["inspect", "copy"], more].concat())), "{more:?}");
    }
    let rows = format!("{url}/rows-1-of-2.zrows");
    let tables = json(fixture.zagros(["inspect", &rows, "--json"]));
    assert_eq!(tables.as_array().map(Vec::len), Some(26));
    let export = ["inspect", &url, "--table", "C1", "--export", "c1.parquet"];
    fixture.zagros(export).expect(0);
    assert!(fixture.path("c1.parquet").is_file());
    // Nothing was written to look at it.
    let written = store.request_log().iter().filter(|request| request.starts_with("PUT")).count();
    fixture.zagros(["eval", &url]).expect(0);
    assert_eq!(store.request_log().iter().filter(|request| request.starts_with("PUT")).count(), written);
}

fn what_is_missing_or_damaged_is_named(store: &FakeS3, fixture: &Fixture, folder: &str) {
    let url = format!("s3://models/{folder}");
    let parent = url.rsplit_once('/').expect("a run").0;
    for command in ["eval", "inspect"] {
        fixture.zagros([command, parent]).expect(3).says(&["holds no model", "give one of the folders in it: resume-"]);
        fixture.zagros([command, "s3://models/none"]).expect(3).says(&["s3://models/none holds no model"]);
    }
    let rows = format!("{folder}/rows-0-of-2.zrows");
    let good = damage(store, &rows);
    let outcome = format!("s3://models/{rows} is damaged");
    fixture.zagros(["eval", &url]).expect(3).says(&[&outcome, "CRC-32"]);
    fixture.zagros(["inspect", &url, "--unchecked"]).expect(3).says(&[&outcome]);
    let changed = "rows-0-of-2.zrows is not the file that was saved";
    fixture.zagros(["inspect", &url]).expect(3).says(&[&url, changed]);
    fixture.zagros(["inspect", &url, "--verify"]).expect(3).prints(&[&format!("s3://models/{rows}")]);
    store.remove_object(&rows);
    let ended = fixture.zagros(["inspect", &url]).expect(3);
    ended.says(&[&format!("cannot read s3://models/{rows}"), "the object does not exist"]);
    fixture.zagros(["eval", &url]).expect(3).says(&[&format!("s3://models/{rows}")]);
    // Whole, and of the other server: what it has is in the manifest, and twice in the files.
    let other = store.object_content(&format!("{folder}/rows-1-of-2.zrows")).expect("rows");
    store.put_object(&rows, other);
    for command in ["eval", "inspect"] {
        fixture.zagros([command, &url]).expect(3).says(&["rows-0-of-2.zrows", "is not the file that was saved"]);
    }
    store.put_object(&rows, good);
    let dense = format!("{folder}/dense.safetensors");
    let bytes = store.object_content(&dense).expect("weights");
    store.put_object(&dense, &bytes[..bytes.len() / 2]);
    fixture.zagros(["eval", &url]).expect(3).says(&[&url, "dense.safetensors"]);
    store.remove_object(&format!("{folder}/job.toml"));
    fixture.zagros(["eval", &url]).expect(3).says(&[&url, "job.toml is missing"]);
    store.put_object(&format!("{folder}/manifest.json"), "{");
    fixture.zagros(["inspect", &url]).expect(3).says(&[&url, "manifest.json is damaged"]);
}

#[test]
fn a_store_that_cannot_be_asked_for_a_model_is_an_error() {
    let (store, fixture) = Fixture::with_store(500);
    for command in ["eval", "inspect"] {
        let ask = |fixture: &Fixture, url: &str| fixture.zagros([command, url, "--timeout", "2"]);
        ask(&fixture, "s3://other/ads").expect(2).says(&["there is no such bucket"]);
        ask(&fixture, "gs://models/ads").expect(2).says(&["only s3:// and file:// are supported"]);
    }
    let wrong = with_variable(&store, fixture, "AWS_ACCESS_KEY_ID", Some("someone-else"));
    let outcome =
        wrong.zagros(["eval", "s3://models/ads"]).expect(2).says(&["the request was refused; check AWS_ACCESS_KEY_ID"]);
    assert!(!outcome.stderr.contains("someone-else") && !outcome.stderr.contains("test-secret"), "{}", outcome.stderr);
    let half = with_variable(&store, wrong, "AWS_ACCESS_KEY_ID", None);
    half.zagros(["eval", "s3://models/ads"]).expect(2).says(&["correct the environment"]);
    let away = with_variable(&store, half, "AWS_ENDPOINT_URL", Some("http://127.0.0.1:1"));
    let outcome = away.zagros(["eval", "s3://models/ads", "--timeout", "2"]).expect(4);
    outcome.says(&["s3://models/ads", "http://127.0.0.1:1", "AWS_ENDPOINT_URL is right", "--timeout"]);
}

const TO_STORE: &str = "output.model_folder=s3://models/ads";

fn model(store: &FakeS3) -> Vec<String> {
    store.object_keys().into_iter().filter(|key| key.contains("/model/")).collect()
}

#[test]
fn servers_send_the_model_to_a_store_and_the_run_says_where_it_is() {
    let (store, fixture) = Fixture::with_store(20_000);
    let ran = fixture.zagros(["up", "job.toml", "--servers", "2", "--set", TO_STORE]).expect(0);
    let folder = fixture.run_folder();
    let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
    let url = format!("s3://models/ads/{name}/model");
    ran.says(&[&url]);
    assert_eq!(model(&store), FILES.map(|file| format!("ads/{name}/model/{file}")));
    assert!(!folder.join("model").exists());
    let summary = fixture.summary();
    assert_eq!(summary["model"], url.as_str());
    let page = std::fs::read_to_string(folder.join("report.html")).expect("a page");
    assert!(page.contains(&url), "the page says where the model is");
    let run = folder.display().to_string();
    let parent = url.rsplit_once('/').expect("a run").0;
    for named in [run.as_str(), parent, &url] {
        let again = json(fixture.zagros(["eval", named, "--json", "--set", "cluster.servers=3"]));
        assert_eq!(again, summary["evaluation"], "{named}");
        fixture.zagros(["inspect", named, "--verify"]).expect(0);
    }
    store.remove_object(&format!("ads/{name}/model/manifest.json"));
    fixture.zagros(["eval", &run]).expect(3).says(&[&url, "there is no manifest.json any more"]);
}

#[test]
fn a_model_goes_to_another_folder_and_is_found_from_anywhere() {
    let fixture = Fixture::new(500);
    fixture.train(&["output.model_folder=models"]);
    let run = fixture.run_folder();
    let model = fixture.path("models").join(run.file_name().expect("a name")).join("model");
    assert!(model.join("manifest.json").is_file() && !run.join("model").exists());
    let evaluation = fixture.summary()["evaluation"].clone();
    let run = run.display().to_string();
    let scored = zagros_tests::zagros(["eval", &run, "--json"]);
    assert_eq!(json(scored), evaluation);
    zagros_tests::zagros(["inspect", &run, "--verify"]).expect(0);
}

/// What was trained is not lost with the store that the model was to go to.
#[test]
fn a_model_that_a_store_does_not_take_is_saved_by_the_same_command_later() {
    let (store, fixture) = Fixture::with_store(20_000);
    let sets = [TO_STORE, "train.mode=sync", "checkpoint.every_steps=20", "cluster.timeout_seconds=5"];
    let up = || with_sets(&["up", "job.toml", "--servers", "2"], &sets);
    store.inject_fault(S3Fault::Fails, "PUT /models/ads/small-", usize::MAX);
    let failed = fixture.zagros(up()).expect(4);
    failed.says(&["could not save its rows", "s3://models/ads/small-", "AWS_ENDPOINT_URL is right"]);
    assert_eq!((fixture.summary()["model"].clone(), model(&store)), (Value::Null, Vec::new()));
    store.clear_faults();
    fixture.zagros(up()).expect(0).says(&["going on after step"]);
    let whole = Fixture::new(20_000);
    whole.train(&["train.mode=sync"]);
    assert_eq!(end(&fixture), end(&whole));
    assert_eq!(model(&store).len(), FILES.len());
    assert_eq!(store.open_uploads(), 0);
}

#[test]
fn a_folder_for_the_model_that_cannot_be_is_refused_before_training() {
    let (_store, fixture) = Fixture::with_store(500);
    for command in ["train", "up"] {
        let outcome = fixture.zagros([command, "job.toml", "--set", "output.model_folder=s3://other/ads"]);
        outcome.expect(2).says(&["there is no such bucket", "`output.model_folder`"]);
    }
    let outcome = fixture.zagros(["train", "job.toml", "--set", "output.model_folder=gs://models"]);
    outcome.expect(2).says(&["`output.model_folder` names no folder", "give a path, or s3://bucket/prefix"]);
    assert!(!fixture.path("runs").exists(), "nothing was started");
}
