//! Models in an S3-compatible object store: written, found, scored and inspected there, and what is wrong with one told
//! by its name.

use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;
use zagros_fake_s3::FakeS3;
use zagros_tests::Run;

use crate::fixture::Fixture;

/// A store, and runs that know of it.
fn stored(rows: u32) -> (FakeS3, Fixture) {
    let store = FakeS3::start("models");
    let fixture = Fixture::new(rows).with_environment(store.environment());
    (store, fixture)
}

/// As the fixture's, but for one variable.
fn with(store: &FakeS3, fixture: Fixture, name: &str, value: Option<&str>) -> Fixture {
    let mut environment = store.environment();
    environment.retain(|(key, _)| key != name);
    environment.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    fixture.with_environment(environment)
}

fn json(run: Run) -> Value {
    serde_json::from_str(&run.expect(0).stdout).expect("JSON")
}

/// Folder of the newest checkpoint, below the bucket, of a run that was stopped.
fn checkpoint(store: &FakeS3, fixture: &Fixture) -> String {
    let sets = ["train.epochs=50", "checkpoint.every_steps=20", "checkpoint.folder=s3://models/ads"];
    let sets = sets.into_iter().flat_map(|set| ["--set", set]);
    let mut run = fixture.start(["up", "job.toml", "--servers", "2"].into_iter().chain(sets));
    run.wait_for_line("checkpoint after step");
    run.signal(Signal::INT);
    run.finish().expect(130);
    let manifests = store.keys().into_iter().filter_map(|key| Some(key.strip_suffix("/manifest.json")?.to_owned()));
    manifests.filter(|folder| folder.contains("/resume-")).max().expect("a checkpoint")
}

/// Copies what is below a folder of the store.
fn copy(store: &FakeS3, folder: &str, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for key in store.keys().iter().filter(|key| key.starts_with(folder)) {
        let name = key.rsplit('/').next().expect("a name");
        std::fs::write(to.join(name), store.object(key).expect("it is there")).expect("it is copied");
    }
}

fn damage(store: &FakeS3, key: &str) -> Vec<u8> {
    let good = store.object(key).expect("an object");
    let mut bytes = good.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    store.put(key, bytes);
    good
}

#[test]
fn a_model_is_scored_and_inspected_where_it_is_as_a_copy_on_a_disk_would_be() {
    let (store, fixture) = stored(20_000);
    let folder = checkpoint(&store, &fixture);
    let url = format!("s3://models/{folder}");
    copy(&store, &folder, &fixture.path("copy"));
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
    let written = store.requests().iter().filter(|request| request.starts_with("PUT")).count();
    fixture.zagros(["eval", &url]).expect(0);
    assert_eq!(store.requests().iter().filter(|request| request.starts_with("PUT")).count(), written);
}

#[test]
fn what_is_missing_or_damaged_in_a_store_is_named() {
    let (store, fixture) = stored(20_000);
    let folder = checkpoint(&store, &fixture);
    let url = format!("s3://models/{folder}");
    let above = url.rsplit_once('/').expect("a run").0;
    for command in ["eval", "inspect"] {
        fixture.zagros([command, above]).expect(3).says(&["holds no model", "give one of the folders in it: resume-"]);
        fixture.zagros([command, "s3://models/none"]).expect(3).says(&["s3://models/none holds no model"]);
    }
    let rows = format!("{folder}/rows-0-of-2.zrows");
    let good = damage(&store, &rows);
    let told = format!("s3://models/{rows} is damaged");
    fixture.zagros(["eval", &url]).expect(4).says(&[&told, "CRC-32"]);
    fixture.zagros(["inspect", &url]).expect(3).says(&[&told]);
    let verified = fixture.zagros(["inspect", &url, "--verify"]).expect(3);
    assert!(verified.stdout.contains(&format!("s3://models/{rows}")), "{}", verified.stdout);
    store.remove(&rows);
    fixture.zagros(["inspect", &url]).expect(3).says(&[&format!("cannot read s3://models/{rows}"), "it is not there"]);
    store.put(&rows, good);
    let dense = format!("{folder}/dense.safetensors");
    let bytes = store.object(&dense).expect("weights");
    store.put(&dense, &bytes[..bytes.len() / 2]);
    fixture.zagros(["eval", &url]).expect(3).says(&[&url, "dense.safetensors"]);
    store.remove(&format!("{folder}/job.toml"));
    fixture.zagros(["eval", &url]).expect(3).says(&[&url, "has no job.toml"]);
    store.put(&format!("{folder}/manifest.json"), "{");
    fixture.zagros(["inspect", &url]).expect(3).says(&[&format!("{url}/manifest.json is damaged")]);
}

#[test]
fn a_store_that_cannot_be_asked_for_a_model_is_told() {
    let (store, fixture) = stored(500);
    for command in ["eval", "inspect"] {
        let ask = |fixture: &Fixture, url: &str| fixture.zagros([command, url, "--patience", "2"]);
        ask(&fixture, "s3://other/ads").expect(2).says(&["there is no such bucket"]);
        ask(&fixture, "gs://models/ads").expect(2).says(&["only s3:// and file:// are known"]);
    }
    let wrong = with(&store, fixture, "AWS_ACCESS_KEY_ID", Some("someone-else"));
    let told = wrong.zagros(["eval", "s3://models/ads"]).expect(2).says(&["InvalidAccessKeyId"]);
    assert!(!told.stderr.contains("someone-else") && !told.stderr.contains("test-secret"), "{}", told.stderr);
    let half = with(&store, wrong, "AWS_ACCESS_KEY_ID", None);
    half.zagros(["eval", "s3://models/ads"]).expect(2).says(&["correct the environment"]);
    let away = with(&store, half, "AWS_ENDPOINT_URL", Some("http://127.0.0.1:1"));
    let told = away.zagros(["eval", "s3://models/ads", "--patience", "2"]).expect(4);
    told.says(&["s3://models/ads", "http://127.0.0.1:1", "is AWS_ENDPOINT_URL right", "--patience"]);
}
