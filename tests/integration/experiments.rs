//! `zagros sweep`: a grid, resuming, halving, trials that fail, and what is refused.
//! `zagros scaling-law`: a family that is trained, interrupted, resumed and verified, and what is refused.
//! The quick benchmark runs and its figures make sense; no figure is judged.

use std::path::{Path, PathBuf};

use serde_json::Value;
use zagros_tests::{assert_contains, zagros_bench};
use zagros_zip::ZipEq;

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

const FAMILY: &str =
    "scaling-law factors/job.toml --sizes 300,900,2700,8100 --seeds 2 --budget 0s --data 0.25,0.5,1 --verify";

fn family() -> impl Iterator<Item = &'static str> {
    FAMILY.split(' ')
}

/// Data of the teacher of factors. Runs are bit for bit the same each time.
fn with_family(rows: u32) -> Fixture {
    let fixture = Fixture::new(10);
    let rows = rows.to_string();
    let generate = ["data", "generate", "factors", "--teacher", "factors", "--factors", "4", "--decay", "0.4"];
    fixture.zagros([&generate[..], &["--rows", &rows, "--test-rows", "2000"]].concat()).expect(0);
    let job = fixture.read("factors/job.toml").replace("batch_size = 1024", "batch_size = 100\nmode = \"sync\"");
    fixture.write("factors/job.toml", job.replace("dim = 8", "dim = 2"));
    fixture
}

fn json(fixture: &Fixture, name: &str) -> Value {
    fixture.read_json(&format!("runs/factors-scaling/{name}"))
}

/// What must be the same, however often the family was interrupted: all but times.
fn measured(fixture: &Fixture) -> Vec<Value> {
    let runs = json(fixture, "scaling-law.json")["runs"].as_array().expect("runs").clone();
    let keys = ["size", "share", "parameters", "samples", "seed", "loss"];
    let mut measured: Vec<Value> = runs.iter().map(|run| keys.iter().map(|key| run[*key].clone()).collect()).collect();
    measured.sort_by_key(Value::to_string);
    measured
}

#[test]
fn a_family_is_trained_and_reported_and_one_that_is_interrupted_comes_to_the_same() {
    let straight = with_family(8_000);
    straight.zagros(family()).expect(0).prints(&["log loss", "law", "forecast", "300", "8.1k", "report.html"]);
    is_measured_and_reported(&straight);
    comes_to_the_same_after_interruptions(&with_family(8_000), &measured(&straight));
}

fn is_measured_and_reported(fixture: &Fixture) {
    let runs = measured(fixture);
    // Four sizes with two seeds, three measurements each.
    assert_eq!(runs.len(), 24, "{runs:?}");
    let report = json(fixture, "scaling-law.json");
    let samples = report["runs"][0]["samples"].as_f64().expect("samples");
    assert!([2_000.0, 4_000.0, 8_000.0].contains(&samples), "{report}");
    assert!(report["forecast"]["forecast"]["loss"].as_f64().is_some_and(|loss| (0.2..0.8).contains(&loss)), "{report}");
    let page = fixture.read("runs/factors-scaling/report.html");
    assert_contains(&page, &["by size", "by samples", "by compute", "<svg", "All measurements"]);
    assert_contains(&page, &["Laws that were compared"]);
    fixture.zagros(family()).expect(0).says(&["going on with the family"]);
    assert_eq!(measured(fixture), runs);
    // Another family has another folder.
    let other: Vec<&str> = family().map(|word| if word == "2" { "3" } else { word }).collect();
    fixture.zagros(other).expect(2).says(&["holds a family of other sizes", "--folder"]);
}

/// Refused or made, a forecast is a file before the next size has a folder, and the truth does not change it.
#[test]
fn a_forecast_is_written_before_the_truth_is_known_and_stays() {
    let fixture = with_family(20_000);
    let unverified: Vec<&str> = family().filter(|word| *word != "--verify").collect();
    fixture.zagros(unverified).expect(0);
    let forecast = json(&fixture, "forecast.json");
    let next = fixture.path("runs/factors-scaling/size-24.3k-seed-1");
    assert!(!next.exists() && forecast["size"] == "24.3k", "{forecast}");
    let verified = fixture.zagros(family()).expect(0);
    assert_eq!(json(&fixture, "forecast.json"), forecast);
    if forecast["forecast"]["decision"]["kind"] == "made" {
        let verification = json(&fixture, "verification.json");
        let number = |value: &Value| value.as_f64().expect("a number");
        let error = number(&forecast["forecast"]["loss"]) - number(&verification["loss"]);
        assert!((number(&verification["error"]) - error).abs() < 1e-9, "{verification}");
        assert!(verified.stdout.contains("the last value is off by"), "{}", verified.stdout);
    } else {
        assert!(!next.exists());
        assert!(verified.stdout.contains("none of size 24.3k"), "{}", verified.stdout);
    }
}

fn comes_to_the_same_after_interruptions(broken: &Fixture, expected: &[Value]) {
    let first = broken.start_until("log loss", family());
    first.kill();
    let second = broken.start_until("going on with the family", family());
    second.interrupt().says(&["stopped; the same command goes on"]);
    broken.zagros(family()).expect(0);
    assert_eq!(measured(broken), expected);
}

#[test]
fn what_makes_no_family_is_refused_before_anything_is_trained() {
    let fixture = with_family(2_000);
    let refused = |options: &[&str], texts: &[&str]| {
        fixture.zagros([&["scaling-law", "factors/job.toml"], options].concat()).expect(2).says(texts);
    };
    refused(&["--sizes", "300,900"], &["a law needs 3", "--sizes"]);
    refused(&["--sizes", "300,900,2700", "--next", "900"], &["is not larger than the largest"]);
    refused(&["--sizes", "300,900,2700", "--data", "0.3,0.5"], &["not a whole multiple"]);
    refused(&["--sizes", "300,900,many"], &["many"]);
    refused(&["--sizes", "10,900,2700"], &["cannot be had"]);
    refused(&["--set", "train.seed=3"], &["train.seed", "--seeds"]);
    refused(&["--set", "model.hidden=[4]", "--sizes", "300,900,2700"], &["given twice"]);
    refused(&["--sizes", "300,900,2700", "--set", "train.schedule={kind='linear', decay=5}"], &["in steps", "epochs"]);
    assert!(!fixture.path("runs").exists(), "nothing was trained");
    // Who means this command by another name learns its name.
    fixture.zagros(["scale", "factors/job.toml"]).expect(2).says(&["zagros scaling-law factors/job.toml"]);
}

#[track_caller]
fn assert_positive(figures: &Value, names: &[&str]) {
    for name in names {
        assert!(figures[*name].as_f64().is_some_and(|figure| figure > 0.0), "{name}: {figures}");
    }
}

#[test]
fn the_training_benchmark_prints_where_time_goes() {
    let figures = zagros_bench(["train", "--quick", "--json"]).expect(0).json();
    assert_positive(&figures, &["cpu_us_per_sample", "samples_per_second"]);
    for stage in ["parse", "lookup", "dense", "push"] {
        let spent = figures["split_us_per_sample"][stage].as_f64();
        assert!(spent.is_some_and(|spent| spent >= 0.0), "{stage}: {figures}");
    }
}

#[test]
fn the_scaling_benchmark_learns_the_same_with_one_worker_and_with_two() {
    let run = zagros_bench(["scaling", "--quick", "--workers", "1,2", "--json"]);
    let figures = run.expect(0).json();
    let settings = figures["settings"].as_array().expect("settings");
    let found: Vec<_> = settings.iter().map(|setting| setting["setting"].as_str()).collect();
    assert_eq!(found, [Some("1 worker(s)"), Some("2 worker(s)")]);
    let auc = |setting: usize| settings[setting]["runs"][0]["auc"].as_f64().expect("an AUC");
    assert!(auc(0) > 0.6 && (auc(0) - auc(1)).abs() < 0.05, "{figures}");
    for setting in settings {
        assert_positive(setting, &["speed_ratio", "cpu_ratio"]);
        assert_positive(&setting["runs"][0], &["samples_per_second", "cpu_us_per_sample"]);
    }
}

#[test]
fn the_embedding_benchmark_finds_the_same_rows_in_every_process() {
    // It fails when servers in other processes hold other rows than embedded ones.
    let run = zagros_bench(["embedding", "--quick", "--servers", "2", "--clients", "1", "--dim", "8", "--json"]);
    let figures = run.expect(0).json();
    let cases = figures["cases"].as_array().expect("cases");
    let found: Vec<_> = cases.iter().map(|case| (case["wire"].as_str(), case["path"].as_str())).collect();
    let expected = ["f32", "bf16"].map(|wire| ["embedded", "loopback"].map(|path| (Some(wire), Some(path))));
    assert_eq!(found, expected.concat());
    for case in cases {
        assert_positive(case, &["rows_looked_up_per_second", "rows_updated_per_second"]);
    }
}

#[test]
fn the_benchmark_of_modes_runs_each_and_writes_a_page() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let page = folder.path().join("modes.html");
    let run = zagros_bench(["modes", "--quick", "--json", "--rate", "1000", "--page", page.to_str().expect("UTF-8")]);
    let figures = run.expect(0).json();
    let settings = figures["settings"].as_array().expect("settings");
    let expected = [("sync", 0), ("hybrid, τ = 4", 4), ("async, τ = 4", 4)];
    assert_eq!(settings.len(), expected.len());
    for (setting, (name, most)) in settings.iter().zip_eq(expected) {
        assert_eq!(setting["setting"], name);
        let ran = &setting["runs"][0];
        assert_positive(ran, &["samples_per_second", "cpu_us_per_sample", "auc"]);
        assert_eq!(ran["samples"], 8_000);
        assert!(ran["staleness_max"].as_u64().is_some_and(|staleness| staleness <= most), "{setting}");
    }
    let page = std::fs::read_to_string(&page).expect("the page");
    assert!(page.contains("Modes of training") && page.contains("<svg"), "{page}");
}

#[test]
fn the_benchmark_of_forecasts_has_a_ratio_for_each_network() {
    let run = zagros_bench(["plan", "--quick", "--workers", "1", "--json"]);
    let figures = run.expect(0).json();
    let cases = figures["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 3);
    for case in cases {
        for pair in ["samples_per_second", "worker_cpu"] {
            assert!(case[pair]["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{pair}: {case}");
        }
    }
}
