//! Models whose weights change their number format: by `zagros quantize`, and when a run starts from one.

use serde_json::Value;
use zagros_fakes::s3::FakeS3;
use zagros_zip::ZipEq;

use super::fixture::{Fixture, checkpoints, damaged, read_files, with_sets};

/// The AUC of a model in `int8` may differ from that of the model in f32 by so much on 4,000 rows.
const AUC_DISTANCE: f64 = 0.002;
const PROBABILITY_DISTANCE: f64 = 0.02;
const INT8: [&str; 2] = ["--element", "int8"];

fn auc(fixture: &Fixture, model: &str) -> f64 {
    fixture.zagros(["eval", model, "--json"]).expect(0).json()["auc"].as_f64().expect("an AUC")
}

fn probabilities(fixture: &Fixture, model: &str) -> Vec<f64> {
    fixture.zagros(["predict", model, "test.txt", "-o", "scores.csv", "--force"]).expect(0);
    fixture.read("scores.csv").lines().skip(1).map(|line| line.parse().expect("a number")).collect()
}

#[test]
fn a_model_in_int8_is_whole_smaller_and_scores_as_the_one_in_f32() {
    let (fixture, run) = Fixture::trained(20_000, &["cluster.servers=2"]);
    let model = std::path::Path::new(&run).join("model");
    let old_files = read_files(&model);
    let done = fixture.zagros([&["quantize", &run, "-o", "served"], &INT8[..], &["--json"]].concat()).expect(0);
    let report = done.json();
    assert_eq!(report["tables"].as_array().map(Vec::len), Some(26));
    // Dim 4, with Adagrad: 16 bytes of state, and 8 of weights in place of 16.
    let table = &report["tables"][0];
    assert_eq!((&table["before"]["bytes_a_row"], &table["after"]["bytes_a_row"]), (&Value::from(32), &Value::from(24)));
    let bytes = |key: &str| report["row_bytes"][key].as_u64().expect("bytes");
    assert!(bytes("after") < bytes("before"), "{report}");
    assert_eq!(read_files(&model), old_files, "the model stays as it is");

    let (exact, rounded) = (probabilities(&fixture, &run), probabilities(&fixture, "served"));
    let distance = |(one, other): (&f64, &f64)| (one - other).abs();
    let largest = exact.iter().zip_eq(&rounded).map(distance).fold(0.0, f64::max);
    assert!(largest > 0.0 && largest < PROBABILITY_DISTANCE, "{largest}");
    let (exact, rounded) = (auc(&fixture, &run), auc(&fixture, "served"));
    assert!((exact - rounded).abs() < AUC_DISTANCE, "{exact} {rounded}");
    fixture.zagros(["inspect", "served", "--verify"]).expect(0);
    fixture.zagros(["inspect", "served", "--table", "C1"]).expect(0).prints(&["int8", "adagrad"]);
    fixture.zagros(["inspect", "served", "--table", "C1", "--export", "c1.safetensors", "--state"]).expect(0);

    // Without the state of the optimisers it scores the same, from fewer bytes.
    fixture.zagros([&["quantize", &run, "-o", "small", "--without-state"], &INT8[..]].concat()).expect(0);
    assert_eq!(probabilities(&fixture, "small"), probabilities(&fixture, "served"));
    let size = |folder: &str| read_files(&fixture.path(folder)).values().map(Vec::len).sum::<usize>();
    assert!(size("small") < size("served"), "{} {}", size("small"), size("served"));
    let start = ["train", "job.toml", "--fresh", "--from", "small", "--set", "embedding.element=int8"];
    fixture.zagros(start).expect(3).says(&["table `C1` has dim 4 of int8 with 2 words of sgd a row there"]);
}

#[test]
fn only_the_tables_that_are_named_change_and_any_format_becomes_any_other() {
    let (fixture, run) = Fixture::trained(500, &[]);
    fixture.zagros(["quantize", &run, "-o", "two", "--element", "f16", "--table", "C1", "--table", "C3"]).expect(0);
    // The servers take the rows only if job and files agree.
    fixture.zagros(["eval", "two"]).expect(0);
    let exported = |model: &str, table: &str| {
        fixture.zagros(["inspect", model, "--table", table, "--export", "t.safetensors", "--force"]).expect(0);
        std::fs::read(fixture.path("t.safetensors")).expect("exported")
    };
    assert_eq!(exported("two", "C2"), exported(&run, "C2"));
    assert_ne!(exported("two", "C1"), exported(&run, "C1"));
    let mut source = "two".to_owned();
    for element in ["int8", "bf16", "f32", "int8"] {
        let next = format!("{source}-{element}");
        fixture.zagros(["quantize", &source, "-o", &next, "--element", element]).expect(0);
        fixture.zagros(["eval", &next]).expect(0);
        source = next;
    }
}

#[test]
fn a_run_starts_from_a_model_of_another_format_in_one_process_and_in_several() {
    let (fixture, run) = Fixture::trained(20_000, &["cluster.servers=2"]);
    let first_auc = auc(&fixture, &run);
    let int8 = ["--from", &run, "--fresh", "--max-steps", "1", "--set", "embedding.element=int8"];
    for command in [&["train", "job.toml"][..], &["up", "job.toml", "--servers", "3"]] {
        let done = fixture.zagros([command, &int8].concat()).expect(0);
        let printed = [done.stdout, done.stderr].concat();
        assert!(printed.contains("table `C1`: f32 rows became int8"), "{printed}");
        let started = fixture.run_name();
        assert!(fixture.zagros(["inspect", &started, "--table", "C1"]).expect(0).stdout.contains("int8"));
        // One step of 256 samples on a trained model; a new one has an AUC of about a half.
        let started_auc = auc(&fixture, &started);
        assert!((started_auc - first_auc).abs() < 0.01, "{first_auc} {started_auc}");
    }
    // And back: a served model is trained on in f32.
    fixture.zagros([&["quantize", &run, "-o", "served"], &INT8[..]].concat()).expect(0);
    let done = fixture.zagros(["train", "job.toml", "--fresh", "--max-steps", "1", "--from", "served"]).expect(0);
    let printed = [done.stdout, done.stderr].concat();
    assert!(printed.contains("table `C1`: int8 rows became f32"), "{printed}");
}

#[test]
fn what_cannot_be_converted_is_refused_and_leaves_no_folder() {
    // One step that takes weights beyond 65504; without a test part nothing judges the model.
    let fixture = Fixture::new(500);
    fixture.write("job.toml", fixture.read("job.toml").replace("test = \"test.txt\"\n", ""));
    let sets = ["embedding.init={kind='uniform', bound=1000}", "embedding.optimizer={kind='sgd', lr=1000, l2=1}"];
    let train = ["train", "job.toml", "--fresh", "--set", sets[0], "--set", sets[1]];
    fixture.zagros([&train[..], &["--max-steps", "1"]].concat()).expect(0);
    let run = fixture.run_name();
    let rows = fixture.run_folder().join("model/rows-0-of-1.zrows");
    let quantize = |more: &[&str]| fixture.zagros([&["quantize", &run], more].concat());
    let refused = quantize(&["-o", "half", "--element", "f16"]).expect(3);
    refused.says(&["of table `C", "has the weight", "which f16 cannot hold", "zagros forget MODEL --table C"]);
    assert!(!fixture.path("half").exists());
    let start = fixture.zagros([&train[..], &["--from", &run, "--set", "embedding.element=f16"]].concat());
    start.expect(3).says(&["of table `C", "has the weight", "which f16 cannot hold"]);
    quantize(&["-o", "half", "--element", "bf16"]).expect(0);
    quantize(&["-o", "half", "--element", "bf16"]).expect(2).says(&["half exists", "name a new folder"]);
    quantize(&["-o", "x", "--element", "int8", "--table", "C99"]).expect(2).says(&["has no table `C99` of features"]);
    let same = quantize(&["-o", "x", "--element", "f32"]).expect(2);
    same.says(&["have f32 rows already", "there is nothing to convert"]);
    fixture.zagros(["quantize", "none", "-o", "x", "--element", "f16"]).expect(3).says(&["none does not exist"]);
    assert!(!fixture.path("x").exists());
    // As a command that was killed leaves it: another one leaves that alone, the same one starts over.
    let whole = read_files(&fixture.path("half"));
    std::fs::remove_file(fixture.path("half/manifest.json")).expect("there was one");
    fixture.zagros(["inspect", "half"]).expect(3).says(&["the save did not finish"]);
    quantize(&["-o", "half", "--element", "int8"]).expect(2).says(&["(without manifest.json), delete it first"]);
    quantize(&["-o", "half", "--element", "bf16"]).expect(0);
    assert_eq!(read_files(&fixture.path("half")), whole);
    std::fs::write(&rows, damaged(&std::fs::read(&rows).expect("rows"))).expect("written");
    quantize(&["-o", "x", "--element", "int8"]).expect(3).says(&["is not the file that was saved: its SHA-256"]);
    assert!(!fixture.path("x").exists());
}

/// Invariant CK-1: a target without a manifest is no model, and the manifest comes last.
#[test]
fn the_manifest_of_a_copy_in_a_store_is_written_last() {
    let store = FakeS3::start("models");
    let (fixture, run) = Fixture::trained(500, &[]);
    let fixture = fixture.with_environment(store.environment_variables());
    let copy = "s3://models/served";
    fixture.zagros([&["quantize", &run, "-o", copy], &INT8[..]].concat()).expect(0);
    let written: Vec<String> = store.request_log().into_iter().filter(|request| request.starts_with("PUT")).collect();
    assert_eq!(written.len(), 5, "{written:?}");
    assert!(written[4].contains("manifest.json"), "{written:?}");
    assert!((auc(&fixture, copy) - auc(&fixture, &run)).abs() < 0.02);
    let ended = fixture.zagros([&["quantize", &run, "-o", copy], &INT8[..]].concat()).expect(2);
    ended.says(&["s3://models/served exists"]);
}

/// A checkpoint whose rows are in several files becomes a model of one file for each server.
#[test]
fn a_checkpoint_with_deltas_becomes_a_model_without() {
    let fixture = Fixture::new(20_000);
    let sets = ["train.epochs=50", "checkpoint.every_steps=20", "checkpoint.deltas=3"];
    fixture.start_to_checkpoint(3, with_sets(&["train", "job.toml"], &sets)).interrupt();
    let has_delta = |folder: &std::path::PathBuf| read_files(folder).keys().any(|name| name.contains(".delta-"));
    let checkpoint = checkpoints(&fixture.run_folder()).into_iter().find(has_delta).expect("a delta");
    let checkpoint = checkpoint.display().to_string();
    fixture.zagros([&["quantize", &checkpoint, "-o", "served"], &INT8[..]].concat()).expect(0);
    let names: Vec<String> = read_files(&fixture.path("served")).into_keys().collect();
    let expected = ["dense.safetensors", "job.toml", "manifest.json", "optimizer.safetensors", "rows-0-of-1.zrows"];
    assert_eq!(names, expected);
    assert!((auc(&fixture, &checkpoint) - auc(&fixture, "served")).abs() < AUC_DISTANCE);
}
