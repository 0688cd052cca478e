//! `zagros sweep` and `zagros scaling-law`: what they train and report, trials that fail, and what is refused. And for both and for
//! `zagros train --dates`: killed and stopped, an experiment comes to what it comes to undisturbed.
//! The quick benchmarks run and their figures make sense; no figure is judged.

use std::path::Path;

use serde_json::Value;
use zagros_tests::{assert_contains, zagros_bench};
use zagros_zip::ZipEq;

use super::days;
use super::fixture::{Fixture, read_json};

struct Experiment {
    fixture: fn() -> Fixture,
    command: &'static str,
    /// Lines at which it is killed, and at which the next process is stopped.
    killed: &'static str,
    stopped: &'static str,
    /// What must be the same, however often it was interrupted: all but times.
    outcome: fn(&Fixture) -> Value,
    /// What else is so of the undisturbed one.
    check: fn(&Fixture),
}

const GRID: &str = "sweep job.toml --grid embedding.optimizer.lr=0.01,0.1 --grid embedding.dim=2,4";
const FAMILY: &str =
    "scaling-law factors/job.toml --sizes 300,900,2700,8100 --seeds 2 --budget 0s --data 0.25,0.5,1 --verify";

const EXPERIMENTS: [Experiment; 3] = [
    Experiment {
        fixture: || sweep_fixture(4_000),
        command: GRID,
        killed: "trial 0: auc",
        stopped: "trial 1: auc",
        outcome: trials,
        check: the_best_job_is_written_and_trains,
    },
    Experiment {
        fixture: || family_fixture(8_000),
        command: FAMILY,
        killed: "log loss",
        stopped: "going on with the family",
        outcome: runs,
        check: the_family_is_reported,
    },
    Experiment {
        fixture: days::fixture,
        command: days::COMMAND,
        killed: "2026-11-02: scored before",
        stopped: "2026-11-03: scoring it",
        outcome: days::outcome,
        check: days::days_are_scored_and_gone_back_to,
    },
];

#[test]
fn an_experiment_that_is_killed_and_stopped_comes_to_the_same() {
    for Experiment { fixture, command, killed, stopped, outcome, check } in EXPERIMENTS {
        let command = || command.split(' ');
        let straight = fixture();
        straight.zagros(command()).expect(0);
        let expected = outcome(&straight);
        check(&straight);
        let broken = fixture();
        broken.start_until(killed, command()).kill();
        broken.start_until(stopped, command()).interrupt().says(&["stopped; the same command goes on"]);
        broken.zagros(command()).expect(0);
        assert_eq!(outcome(&broken), expected, "{killed}");
    }
}

fn report(fixture: &Fixture) -> Value {
    fixture.read_json("runs/small-sweep/sweep.json")
}

fn pick(values: &Value, keys: &[&str]) -> Vec<Value> {
    let all = values.as_array().expect("a list").iter();
    all.map(|value| keys.iter().map(|key| value[*key].clone()).collect()).collect()
}

fn trials(fixture: &Fixture) -> Value {
    // A trial that was measured is not trained again.
    assert_eq!(run_count(&fixture.path("runs/small-sweep/trial-000")), 1);
    pick(&report(fixture)["trials"], &["trial", "values", "rungs", "auc", "logloss", "steps", "failed"]).into()
}

fn run_count(trial: &Path) -> usize {
    let entries = std::fs::read_dir(trial).expect("a trial's folder").filter_map(Result::ok);
    entries.filter(|entry| entry.path().join("job.toml").is_file()).count()
}

/// A job with a validation part, whose trials are bit for bit the same each time.
fn sweep_fixture(rows: u32) -> Fixture {
    let fixture = Fixture::new(rows);
    let job = fixture
        .read("job.toml")
        .replace("threads = 1\n[embedding]", "threads = 1\nvalidation_share = 0.2\n[embedding]");
    let job = job.replace("[train]", "[train]\nmode = \"sync\"");
    fixture.write("job.toml", job);
    fixture
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
    fixture.zagros(GRID.split(' ')).expect(0).prints(&["embedding.optimizer.lr", "the best job", "zagros train"]);
    assert_eq!(fixture.read("runs/small-sweep/journal.jsonl"), journal);
    let other = ["sweep", "job.toml", "--grid", "embedding.dim=2,4"];
    let refused = fixture.zagros(other).expect(2);
    refused.says(&["holds another sweep", "space: ", "--folder FOLDER"]);
    let changed = GRID.split(' ').chain(["--set", "train.batch_size=128"]);
    fixture.zagros(changed).expect(2).says(&["learns differently"]);
}

#[test]
fn halving_trains_only_the_best_on_and_from_where_they_were() {
    let fixture = sweep_fixture(6_000);
    let halving = ["sweep", "job.toml", "--trials", "4", "--halving", "--metric", "logloss", "--random"];
    let more = ["embedding.optimizer.lr=1e-4..1.0:log", "--set", "train.max_steps=18"];
    fixture.zagros([&halving[..], &more].concat()).expect(0);
    let trials = report(&fixture)["trials"].as_array().expect("trials").clone();
    let rungs: Vec<u64> = trials.iter().map(|trial| trial["rungs"].as_u64().expect("a number")).collect();
    assert_eq!(rungs, [3, 2, 1, 1], "{trials:?}");
    let steps: Vec<u64> = trials.iter().map(|trial| trial["steps"].as_u64().expect("a number")).collect();
    assert_eq!(steps, [18, 6, 2, 2]);
    let best = trials[0]["trial"].as_u64().expect("a number");
    let trial = fixture.path(&format!("runs/small-sweep/trial-{best:03}"));
    assert_eq!(run_count(&trial), 1, "it was one run that went on");
    let log = std::fs::read_to_string(trial.join("log.txt")).expect("a log");
    assert_eq!(log.matches("going on after step").count(), 2, "{log}");
}

#[test]
fn a_trial_that_fails_is_the_worst_and_says_why() {
    let fixture = sweep_fixture(2_000);
    let done = fixture
        .zagros(["sweep", "job.toml", "--tpe", "embedding.optimizer.lr=0.05,1000", "--trials", "4", "--seed", "2"])
        .expect(0);
    let trials = report(&fixture)["trials"].as_array().expect("trials").clone();
    let failed: Vec<_> = trials.iter().filter(|trial| trial["failed"].is_string()).collect();
    assert!(!failed.is_empty() && failed.len() < 4, "{trials:?}");
    assert!(trials.last().expect("a trial")["failed"].is_string() && trials[0]["failed"].is_null());
    assert!(done.stdout.contains("failed: "), "{}", done.stdout);
}

/// Data of the teacher of factors. Runs are bit for bit the same each time.
fn family_fixture(rows: u32) -> Fixture {
    let fixture = Fixture::new(10);
    let rows = rows.to_string();
    let generate = ["data", "generate", "factors", "--teacher", "factors", "--factors", "4", "--decay", "0.4"];
    fixture.zagros([&generate[..], &["--rows", &rows, "--test-rows", "2000"]].concat()).expect(0);
    let job = fixture.read("factors/job.toml").replace("batch_size = 1024", "batch_size = 100\nmode = \"sync\"");
    fixture.write("factors/job.toml", job.replace("dim = 8", "dim = 2"));
    fixture
}

fn family_json(fixture: &Fixture, name: &str) -> Value {
    fixture.read_json(&format!("runs/factors-scaling/{name}"))
}

fn runs(fixture: &Fixture) -> Value {
    let runs = &family_json(fixture, "scaling-law.json")["runs"];
    let mut measured = pick(runs, &["size", "share", "parameters", "samples", "seed", "loss"]);
    measured.sort_by_key(Value::to_string);
    measured.into()
}

fn the_family_is_reported(fixture: &Fixture) {
    // Four sizes with two seeds, three measurements each.
    let measured = runs(fixture);
    assert_eq!(measured.as_array().map(Vec::len), Some(24), "{measured}");
    let report = family_json(fixture, "scaling-law.json");
    let samples = report["runs"][0]["samples"].as_f64().expect("samples");
    assert!([2_000.0, 4_000.0, 8_000.0].contains(&samples), "{report}");
    assert!(report["forecast"]["forecast"]["loss"].as_f64().is_some_and(|loss| (0.2..0.8).contains(&loss)), "{report}");
    let page = fixture.read("runs/factors-scaling/report.html");
    assert_contains(&page, &["by size", "by samples", "by compute", "<svg", "All measurements"]);
    assert_contains(&page, &["Laws that were compared"]);
    let again = fixture.zagros(FAMILY.split(' ')).expect(0).says(&["going on with the family"]);
    again.prints(&["log loss", "law", "forecast", "300", "8.1k", "report.html"]);
    assert_eq!(runs(fixture), measured);
    // Another family has another folder.
    let other = FAMILY.replace("--seeds 2", "--seeds 3");
    fixture.zagros(other.split(' ')).expect(2).says(&["holds another family", "seeds: 2 there, 3 here", "--folder"]);
}

/// Refused or made, a forecast is a file before the next size has a folder, and the truth does not change it.
#[test]
fn a_forecast_is_written_before_the_truth_is_known_and_stays() {
    let fixture = family_fixture(20_000);
    let unverified: Vec<&str> = FAMILY.split(' ').filter(|word| *word != "--verify").collect();
    fixture.zagros(unverified).expect(0);
    let forecast = family_json(&fixture, "forecast.json");
    let next = fixture.path("runs/factors-scaling/size-24.3k-seed-1");
    assert!(!next.exists() && forecast["size"] == "24.3k", "{forecast}");
    let verified = fixture.zagros(FAMILY.split(' ')).expect(0);
    assert_eq!(family_json(&fixture, "forecast.json"), forecast);
    if forecast["forecast"]["decision"]["kind"] == "made" {
        let verification = family_json(&fixture, "verification.json");
        let number = |value: &Value| value.as_f64().expect("a number");
        let error = number(&forecast["forecast"]["loss"]) - number(&verification["loss"]);
        assert!((number(&verification["error"]) - error).abs() < 1e-9, "{verification}");
        assert!(verified.stdout.contains("the last value is off by"), "{}", verified.stdout);
    } else {
        assert!(!next.exists());
        assert!(verified.stdout.contains("none of size 24.3k"), "{}", verified.stdout);
    }
}

#[test]
fn what_makes_no_family_is_refused_before_anything_is_trained() {
    let fixture = family_fixture(2_000);
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
