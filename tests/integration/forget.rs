//! `zagros forget`: rows are gone from a model, its checkpoints and its deltas, or from the servers of a run that trains, and every
//! other row is as it was.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;
use zagros_tests::signal_process;

use super::faults::pid_in;
use super::fixture::{Fixture, checkpoints, read_files, read_json, with_sets};
use super::resume::losses;

/// Values of column C1 that training met: the first is forgotten.
fn values(fixture: &Fixture) -> Vec<String> {
    let text = fixture.read("train.txt");
    let mut values: Vec<String> = text.lines().filter_map(|line| line.split('\t').nth(14)).map(str::to_owned).collect();
    values.sort();
    values.dedup();
    values.retain(|value| !value.is_empty());
    assert!(values.len() > 3, "{values:?}");
    values
}

fn row(fixture: &Fixture, model: &str, value: &str) -> Option<Value> {
    let shown = fixture.zagros(["inspect", model, "--table", "C1", "--value", value, "--json"]);
    let mut row: Value = match shown.code() {
        Some(3) => return None,
        _ => shown.expect(0).json(),
    };
    for place in ["file", "block"] {
        row.as_object_mut().expect("an object").remove(place);
    }
    Some(row)
}

fn forget(fixture: &Fixture, model: &str, value: &str) -> Value {
    fixture.zagros(["forget", model, "--table", "C1", "--value", value, "--json"]).expect(0).json()
}

fn manifest(folder: &Path) -> Value {
    read_json(&folder.join("manifest.json"))
}

/// Every file is named by the manifest, and intact.
fn is_whole(fixture: &Fixture, folder: &Path) {
    fixture.zagros(["inspect", &folder.display().to_string(), "--verify"]).expect(0);
    let named = manifest(folder)["row_files"].as_array().map_or(0, Vec::len);
    let found = read_files(folder).keys().filter(|name| name.contains(".zrows")).count();
    assert_eq!(found, named, "files that no manifest names: {}", folder.display());
}

#[test]
fn a_row_is_gone_from_a_model_and_every_other_row_stays() {
    let fixture = Fixture::new(500);
    fixture.zagros(["train", "job.toml", "--set", "cluster.servers=2"]).expect(0);
    let run = fixture.run_folder();
    let (model, run) = (run.join("model"), run.display().to_string());
    let values = values(&fixture);
    let export = |table: &str, file: &str| {
        fixture.zagros(["inspect", &run, "--table", table, "--export", file, "--state"]).expect(0);
        fs::read(fixture.path(file)).expect("exported")
    };
    let others: Vec<_> = values[1..].iter().map(|value| row(&fixture, &run, value)).collect();
    let (before, c2) = (manifest(&model), export("C2", "before.safetensors"));

    fixture.write("gone.txt", format!("{}\nnobody\n", values[0]));
    let asked = ["forget", run.as_str(), "--table", "C1", "--values", "gone.txt"];
    let ended = fixture.zagros([&asked[..], &["--dry-run"]].concat()).expect(0);
    ended.prints(&["1 row(s) would be removed", "nothing has changed"]);
    assert!(row(&fixture, &run, &values[0]).is_some() && !Path::new(&run).join("forgotten.jsonl").exists());

    let done = fixture.zagros(asked).expect(0).stdout;
    assert!(done.contains("1 row(s) removed") && done.contains("1 id(s) have no row in any"), "{done}");
    assert!(!done.contains("--values and --value take"), "{done}");
    let by_id = fixture.zagros(["forget", &run, "--table", "C1", "--id", "68"]).expect(0).stdout;
    assert!(by_id.contains("an id is the hash of a value in the data; --values and --value take"), "{by_id}");
    assert_eq!(row(&fixture, &run, &values[0]), None);
    assert_eq!(values[1..].iter().map(|value| row(&fixture, &run, value)).collect::<Vec<_>>(), others);
    assert_eq!(export("C2", "after.safetensors"), c2);
    is_whole(&fixture, &model);
    let new_manifest = manifest(&model);
    assert_eq!(new_manifest["rows"].as_u64().map(|rows| rows + 1), before["rows"].as_u64());
    fixture.zagros(["eval", &run, "--json"]).expect(0);

    let audit = fixture.read(&format!("{run}/forgotten.jsonl"));
    let lines: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((lines.len(), &lines[0]["row"], &lines[0]["table"]), (1, &Value::from(true), &Value::from("C1")));
    assert_eq!(lines[0]["manifest_before"], before["manifest_sha256"]);
    assert_eq!(lines[0]["manifest_after"], new_manifest["manifest_sha256"]);
    assert_eq!(forget(&fixture, &run, &values[0])["saves"][0]["rows"], 0);
    assert_eq!(manifest(&model), new_manifest, "there is nothing to do again");
}

/// A process that ends between manifest and job leaves the new content beside the old one.
#[test]
fn an_id_is_gone_from_a_fitted_vocabulary_too() {
    let fixture = Fixture::new(500);
    let features = "features.categorical=[{column='C1', vocabulary={min_count=1}}, 'C2']";
    fixture.zagros(["train", "job.toml", "--set", features]).expect(0);
    let run = fixture.run_folder();
    let (model, run) = (run.join("model"), run.display().to_string());
    let value = values(&fixture).swap_remove(0);
    let jobs = [model.join("job.toml"), Path::new(&run).join("job.toml")];
    // 16 digits an id.
    let digits = |job: &PathBuf| {
        let text = fs::read_to_string(job).expect("a job");
        text.split("ids = \"").nth(1).and_then(|rest| rest.split('"').next()).map_or(0, str::len)
    };
    let listed = || jobs.each_ref().map(|job| digits(job) / 16);
    let ids = listed()[0];
    assert!(ids > 3 && listed() == [ids; 2], "{ids}");
    let old_job = fs::read(&jobs[0]).expect("a job");
    let ended = fixture.zagros(["forget", &run, "--table", "C1", "--value", &value, "--dry-run"]).expect(0);
    ended.prints(&["1 row(s), 1 id(s) in a vocabulary would be removed"]);
    let done = forget(&fixture, &run, &value);
    assert_eq!((&done["saves"][0]["rows"], &done["saves"][0]["vocabulary"]), (&Value::from(1), &Value::from(1)));
    assert_eq!(listed(), [ids - 1; 2]);
    is_whole(&fixture, &model);
    fixture.zagros(["eval", &run, "--json"]).expect(0);
    let audit = fixture.read(&format!("{run}/forgotten.jsonl"));
    assert!(audit.contains("\"vocabulary\":true") && audit.contains("\"job.toml\""), "{audit}");
    // As after a kill when the manifest was replaced and the job was not.
    let new_job = fs::read(&jobs[0]).expect("a job");
    fs::write(model.join("job.toml.next"), &new_job).expect("written");
    fs::write(&jobs[0], old_job).expect("written");
    fixture.zagros(["eval", &run, "--json"]).expect(0);
    fixture.zagros(["inspect", &run, "--verify"]).expect(0);
    assert_eq!(forget(&fixture, &run, &value)["saves"][0]["vocabulary"], 0);
    assert_eq!((fs::read(&jobs[0]).expect("a job"), model.join("job.toml.next").exists()), (new_job, false));
}

#[test]
fn what_cannot_be_forgotten_is_refused_with_the_reason() {
    let (fixture, run) = Fixture::trained(500, &[]);
    let refused = |arguments: &[&str], texts: &[&str]| {
        fixture.zagros([&["forget", run.as_str()], arguments].concat()).expect(2).says(texts);
    };
    refused(&["--table", "C91", "--id", "5"], &["there is no table `C91`", "did you mean `C9`?"]);
    refused(&["--table", "C1"], &["no id is named", "--values FILE"]);
    fixture.write("ids.txt", "5\nu17\n");
    refused(&["--table", "C1", "--ids", "ids.txt"], &["ids.txt:2", "is no id"]);
    fixture.zagros(["forget", "nowhere", "--table", "C1", "--id", "5"]).expect(3).says(&["nowhere does not exist"]);
}

/// Invariant CK-6: the deltas of a run are files of each other. The run goes on from what is left.
#[test]
fn a_row_is_gone_from_checkpoints_with_deltas_and_the_run_goes_on() {
    let fixture = Fixture::new(20_000);
    // A checkpoint that comes while the one before is written is skipped: so there are many epochs.
    let deltas = ["checkpoint.every_steps=20", "checkpoint.deltas=4", "checkpoint.keep=20", "train.epochs=15"];
    let train = with_sets(&["train", "job.toml", "--set", "cluster.servers=2"], &deltas);
    let value = values(&fixture).swap_remove(0);
    fixture.start_to_checkpoint(4, train.iter().copied()).kill();
    let run = fixture.run_folder();
    let found = checkpoints(&run);
    let has_delta = |folder: &PathBuf| manifest(folder)["row_files"].to_string().contains("delta");
    assert!(found.len() > 2 && found.iter().any(has_delta), "{found:?}");
    let newest = found.last().expect("a checkpoint").display().to_string();
    let single = fixture.zagros(["forget", &newest, "--table", "C1", "--value", &value]).expect(2);
    single.says(&["is one checkpoint of a run", "name the run folder"]);
    let done = forget(&fixture, &run.display().to_string(), &value);
    assert_eq!(done["saves"].as_array().map(Vec::len), Some(found.len()));
    for folder in &found {
        is_whole(&fixture, folder);
        assert_eq!(row(&fixture, &folder.display().to_string(), &value), None, "{}", folder.display());
    }
    fixture.zagros(train).expect(0).says(&["going on after step"]);
    assert_eq!(losses(&fixture).1, 1, "it was resumed");
}

#[test]
fn a_row_is_gone_from_a_model_in_a_store() {
    let (store, fixture) = Fixture::with_store(500);
    fixture.zagros(["train", "job.toml", "--set", "output.model_folder=s3://models/ads"]).expect(0);
    let run = fixture.run_name();
    let value = values(&fixture).swap_remove(0);
    assert!(row(&fixture, &run, &value).is_some());
    let done = forget(&fixture, &run, &value);
    assert_eq!((&done["saves"][0]["rows"], done["saves"].as_array().map(Vec::len)), (&Value::from(1), Some(1)));
    assert_eq!(row(&fixture, &run, &value), None);
    let model = done["saves"][0]["save"].as_str().expect("a place").to_owned();
    fixture.zagros(["inspect", &model, "--verify"]).expect(0);
    assert_eq!(store.object_keys().iter().filter(|key| key.ends_with(".zrows")).count(), 1);
}

/// The data of the run name the first value no more. Returns that value, another one, and the arguments of the run.
fn prepare(fixture: &Fixture) -> ([String; 2], Vec<String>) {
    fixture.zagros(["train", "job.toml", "--set", "train.max_steps=20"]).expect(0);
    let model = fixture.run_folder().join("model").display().to_string();
    let mut learned = values(fixture).into_iter().filter(|value| row(fixture, &model, value).is_some());
    let values = [learned.next().expect("a row"), learned.next().expect("another row")];
    let gone = values[0].clone();
    let text = fixture.read("train.txt");
    let is_kept = |line: &&str| line.split('\t').nth(14) != Some(gone.as_str());
    let kept: Vec<&str> = text.lines().filter(is_kept).collect();
    fixture.write("later.txt", kept.join("\n") + "\n");
    let sets = [
        "data.train=later.txt",
        "train.epochs=1000",
        "checkpoint.every_steps=20",
        "checkpoint.deltas=4",
        "checkpoint.keep=50",
        "output.folder=live",
    ];
    let sets = sets.into_iter().flat_map(|set| ["--set".to_owned(), set.to_owned()]);
    let run = ["up", "job.toml", "--servers", "2", "--from", &model].map(str::to_owned);
    ([gone, values[1].clone()], run.into_iter().chain(sets).collect())
}

fn newest(run: &Path) -> String {
    checkpoints(run).pop().expect("a checkpoint").display().to_string()
}

#[test]
fn a_row_that_a_live_run_forgets_stays_gone_after_kills_and_after_an_earlier_state_is_loaded() {
    let fixture = Fixture::new(20_000);
    let ([gone, other], arguments) = prepare(&fixture);
    let start = || fixture.start(arguments.iter().map(String::as_str));
    let mut training = start();
    training.wait_for_line("checkpoint after step");
    training.wait_for_line("checkpoint after step");
    let run = fixture.newest_run("live");
    let name = run.display().to_string();
    let first = checkpoints(&run).swap_remove(0);
    assert!(row(&fixture, &first.display().to_string(), &gone).is_some(), "the run has the row from its first model");

    let wrong = fixture.zagros(["forget", &name, "--table", "C91", "--value", &gone]).expect(2);
    wrong.says(&["there is no table `C91`", "did you mean `C9`?"]);
    let ended = fixture.zagros(["forget", &name, "--table", "C1", "--value", &gone, "--dry-run"]).expect(0);
    ended.prints(&["would remove their rows", "still in"]);
    assert!(!run.join("forgotten.jsonl").exists());
    let done = forget(&fixture, &name, &gone);
    assert_eq!((&done["removed"], &done["trains"]), (&Value::from(1), &Value::from(true)), "{done}");
    assert!(done["still_held_by"].as_array().is_some_and(|saves| !saves.is_empty()), "{done}");
    assert_eq!(forget(&fixture, &name, &gone)["removed"], 0, "a retry finds nothing");
    let audit = std::fs::read_to_string(run.join("forgotten.jsonl")).expect("an audit file");
    assert!(audit.lines().count() == 1 && audit.contains("\"save\":\"embedding servers\""), "{audit}");

    for server in ["embedding-server-0", "embedding-server-1"] {
        signal_process(pid_in(&run, server), Signal::KILL);
    }
    let old_count = checkpoints(&run).len();
    while checkpoints(&run).len() < old_count + 2 {
        training.wait_for_line("checkpoint after step");
    }
    training.interrupt();
    let last = newest(&run);
    assert_eq!(row(&fixture, &last, &gone), None, "{last}");
    assert!(row(&fixture, &last, &other).is_some());

    // All that was saved after the row was gone is lost: the run goes back to a state that still has it.
    for later in checkpoints(&run).into_iter().filter(|folder| *folder != first) {
        std::fs::remove_dir_all(later).expect("a checkpoint is deleted");
    }
    let mut again = start();
    again.wait_for_line("checkpoint after step");
    again.interrupt();
    let last = newest(&run);
    assert_ne!(last, first.display().to_string());
    assert_eq!(row(&fixture, &last, &gone), None, "{last}");
    assert!(row(&fixture, &first.display().to_string(), &gone).is_some());

    // Now that no run trains, the same command cleans the checkpoints.
    fixture.zagros(["forget", &name, "--table", "C1", "--value", &gone]).expect(0);
    for folder in checkpoints(&run) {
        let folder = folder.display().to_string();
        assert_eq!(row(&fixture, &folder, &gone), None, "{folder}");
        fixture.zagros(["inspect", &folder, "--verify"]).expect(0);
    }
}
