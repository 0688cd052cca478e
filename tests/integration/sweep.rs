//! `zagros sweep`: a grid, resuming, halving, trials that fail, and what is refused.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::fixture::{Fixture, read_json, with_sets};

/// A job with a validation part, whose trials are bit for bit the same each time.
fn fixture(rows: u32) -> Fixture {
    let fixture = Fixture::new(rows);
    let job = fixture
        .read("job.toml")
        .replace("threads = 1\n[embedding]", "threads = 1\nvalidation_share = 0.2\n[embedding]");
    let job = job.replace("[train]", "[train]\nmode = \"sync\"");
    fixture.write("job.toml", job);
    fixture
}

const GRID: [&str; 6] =
    ["sweep", "job.toml", "--grid", "embedding.optimizer.lr=0.01,0.1", "--grid", "embedding.dim=2,4"];

fn folder(fixture: &Fixture) -> PathBuf {
    fixture.path("runs/small-sweep")
}

fn report(fixture: &Fixture) -> Value {
    fixture.read_json("runs/small-sweep/sweep.json")
}

/// What must be the same, however often the sweep was interrupted: all but times.
fn outcome(fixture: &Fixture) -> Vec<Vec<Value>> {
    let trials = report(fixture)["trials"].as_array().expect("trials").clone();
    let keys = ["trial", "values", "rungs", "auc", "logloss", "steps", "failed"];
    trials.iter().map(|trial| keys.iter().map(|key| trial[*key].clone()).collect()).collect()
}

fn runs_of(trial: &Path) -> usize {
    let entries = std::fs::read_dir(trial).expect("a trial's folder").filter_map(Result::ok);
    entries.filter(|entry| entry.path().join("job.toml").is_file()).count()
}

#[test]
fn a_grid_is_trained_and_one_that_is_killed_and_stopped_goes_on_to_the_same_table() {
    let whole = fixture(4_000);
    let done = whole.zagros(GRID).expect(0);
    done.prints(&["embedding.optimizer.lr", "the best job", "zagros train"]);
    let table = outcome(&whole);
    the_best_job_is_written_and_trains(&whole);
    other_grids_are_refused_in_its_folder(&whole);
    goes_on_to_the_same_table(&fixture(4_000), &table);
}

fn the_best_job_is_written_and_trains(fixture: &Fixture) {
    let report = report(fixture);
    let trials = report["trials"].as_array().expect("trials");
    assert_eq!((trials.len(), &report["best"]), (4, &trials[0]["trial"]));
    let aucs: Vec<f64> = trials.iter().map(|trial| trial["auc"].as_f64().expect("an AUC")).collect();
    assert!(aucs.is_sorted_by(|one, other| one >= other), "{aucs:?}");
    let page = fixture.read("runs/small-sweep/sweep.html");
    assert!(page.contains("<svg") && page.contains("embedding.dim"), "{page}");
    let best = fixture.read("runs/small-sweep/best.toml");
    let value = trials[0]["values"]["embedding.dim"].as_str().expect("a value");
    assert!(best.contains(&format!("dim = {value}")) && best.contains("# The best of 4 trials"), "{best}");
    // It is the job of that trial: training it again gives the measure by which it was chosen.
    fixture.zagros(["train", "runs/small-sweep/best.toml"]).expect(0);
    let again = fixture.run_folders().into_iter().filter(|run| run.join("summary.json").is_file()).max();
    let again = read_json(&again.expect("a run").join("summary.json"));
    assert_eq!(again["validation"]["auc"].as_f64(), Some(aucs[0]));
    let journal = fixture.read("runs/small-sweep/journal.jsonl");
    fixture.zagros(GRID).expect(0);
    assert_eq!(fixture.read("runs/small-sweep/journal.jsonl"), journal);
}

fn other_grids_are_refused_in_its_folder(fixture: &Fixture) {
    let other = ["sweep", "job.toml", "--grid", "embedding.dim=2,4"];
    fixture.zagros(other).expect(2).says(&["holds another sweep", "--folder FOLDER"]);
    fixture.zagros(with_sets(&GRID, &["train.batch_size=128"])).expect(2).says(&["learns differently"]);
}

fn goes_on_to_the_same_table(broken: &Fixture, table: &[Vec<Value>]) {
    let first = broken.start_until("trial 0: auc", GRID);
    first.kill();
    let mut second = broken.start(GRID);
    // It listens to signals by then, and two trials are left.
    second.wait_for_line("trial 1: auc");
    second.interrupt().says(&["stopped; the same command goes on"]);
    broken.zagros(GRID).expect(0);
    assert_eq!(outcome(broken), table);
    // A trial that was measured is not trained again.
    assert_eq!(runs_of(&folder(broken).join("trial-000")), 1);
}

#[test]
fn halving_trains_only_the_best_on_and_from_where_they_were() {
    let fixture = fixture(6_000);
    let halving = ["sweep", "job.toml", "--trials", "4", "--halving", "--metric", "logloss", "--random"];
    let more = ["embedding.optimizer.lr=1e-4..1.0:log", "--set", "train.max_steps=18"];
    fixture.zagros([&halving[..], &more].concat()).expect(0);
    let trials = report(&fixture)["trials"].as_array().expect("trials").clone();
    let rungs: Vec<u64> = trials.iter().map(|trial| trial["rungs"].as_u64().expect("a number")).collect();
    assert_eq!(rungs, [3, 2, 1, 1], "{trials:?}");
    let steps: Vec<u64> = trials.iter().map(|trial| trial["steps"].as_u64().expect("a number")).collect();
    assert_eq!(steps, [18, 6, 2, 2]);
    let best = trials[0]["trial"].as_u64().expect("a number");
    let trial = folder(&fixture).join(format!("trial-{best:03}"));
    assert_eq!(runs_of(&trial), 1, "it was one run that went on");
    let log = std::fs::read_to_string(trial.join("log.txt")).expect("a log");
    assert_eq!(log.matches("going on after step").count(), 2, "{log}");
}

#[test]
fn a_trial_that_fails_is_the_worst_and_says_why() {
    let fixture = fixture(2_000);
    let done = fixture
        .zagros(["sweep", "job.toml", "--tpe", "embedding.optimizer.lr=0.05,1000", "--trials", "4", "--seed", "2"])
        .expect(0);
    let trials = report(&fixture)["trials"].as_array().expect("trials").clone();
    let failed: Vec<_> = trials.iter().filter(|trial| trial["failed"].is_string()).collect();
    assert!(!failed.is_empty() && failed.len() < 4, "{trials:?}");
    assert!(trials.last().expect("a trial")["failed"].is_string() && trials[0]["failed"].is_null());
    assert!(done.stdout.contains("failed: "), "{}", done.stdout);
}

#[test]
fn what_cannot_be_swept_is_refused() {
    let fixture = fixture(500);
    let refused = |arguments: &[&str], texts: &[&str]| {
        fixture.zagros([&["sweep", "job.toml"], arguments].concat()).expect(2).says(texts);
    };
    refused(&["--grid", "embedding.dim=8", "--set", "data.validation_share=0"], &["validation_share"]);
    refused(&["--grid", "embeding.dim=8"], &["did you mean"]);
    refused(&["--grid", "embedding.dim=2..8"], &["is a range, and a grid needs values"]);
}
