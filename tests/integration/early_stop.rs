//! Validation, early stopping, the choice of the best state, and the page of a run.

use serde_json::Value;

use crate::fixture::Fixture;

/// Few rows and many epochs at a high rate: the validation part gets worse soon.
const OVERFITS: [&str; 6] = [
    "data.validation=validation.txt",
    "train.epochs=40",
    "embedding.optimizer={kind='adagrad', lr=0.2}",
    "train.early_stop={patience=3, min_delta=0.0001}",
    "output.keep_best=2",
    "eval.group_by=C1",
];

fn fixture() -> Fixture {
    let fixture = Fixture::new(3_000);
    fixture.zagros(["data", "generate", "more", "--rows", "10", "--test-rows", "2000", "--seed", "9"]).expect(0);
    std::fs::copy(fixture.path("more/test.txt"), fixture.path("validation.txt"))
        .expect("the validation file is copied");
    fixture
}

fn sets<'a>(command: &[&'a str], sets: &[&'a str]) -> Vec<&'a str> {
    command.iter().copied().chain(sets.iter().flat_map(|set| ["--set", *set])).collect()
}

fn lines(fixture: &Fixture, kind: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(fixture.run_folder().join("metrics.jsonl")).expect("metrics.jsonl");
    let all = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a JSON line"));
    all.filter(|line| line["type"] == kind).collect()
}

fn aucs(fixture: &Fixture, part: &str) -> Vec<f64> {
    let scored = lines(fixture, "evaluation").into_iter().filter(|line| line["part"] == part);
    scored.map(|line| line["auc"].as_f64().expect("an AUC")).collect()
}

/// What was trained is the best state of the validation part, whole and alone: rows that came later are gone.
fn is_the_best_state(fixture: &Fixture) {
    let (summary, validation) = (fixture.summary(), aucs(fixture, "validation"));
    let best = validation.iter().copied().fold(f64::MIN, f64::max);
    assert!(best > *validation.last().expect("evaluations"), "it must overfit: {validation:?}");
    assert_eq!(summary["validation"]["auc"].as_f64(), Some(best));
    assert!(summary["model_step"].as_u64() < summary["steps"].as_u64(), "{summary}");
    assert_eq!(aucs(fixture, "test").len(), 1, "the test part is scored once");
    let run = fixture.run_folder().display().to_string();
    for (data, expected) in [("validation.txt", &summary["validation"]), ("test.txt", &summary["evaluation"])] {
        let scored = fixture.zagros(["eval", &run, "--data", data, "--json"]).expect(0);
        let scored: Value = serde_json::from_str(&scored.stdout).expect("JSON");
        assert_eq!((&scored["auc"], &scored["gauc"]), (&expected["auc"], &expected["gauc"]), "{data}");
        assert!(scored["groups"].as_u64().is_some_and(|groups| groups > 3) && scored["group_share"] == 1.0, "{scored}");
    }
}

#[test]
fn a_run_stops_when_validation_gets_no_better_and_saves_the_best_state() {
    let fixture = fixture();
    let run = fixture.zagros(sets(&["train", "job.toml"], &OVERFITS)).expect(0);
    for text in
        ["stopped: validation AUC has not risen by 0.0001 for 3 evaluations", "which is what is saved", "test GAUC"]
    {
        assert!(run.stdout.contains(text), "no {text:?} in:\n{}", run.stdout);
    }
    is_the_best_state(&fixture);
    let kept = std::fs::read_dir(fixture.run_folder().join("checkpoints")).expect("checkpoints").count();
    // Two best and the last, which may be one of them.
    let validation = aucs(&fixture, "validation");
    let last = validation.last().copied().expect("evaluations");
    let better = validation.iter().filter(|auc| **auc > last).count();
    assert_eq!(kept, if better < 2 { 2 } else { 3 }, "{validation:?}");
    assert_eq!(lines(&fixture, "epoch").len(), fixture.summary()["epochs"].as_array().map_or(0, Vec::len));
}

#[test]
fn servers_of_their_own_go_back_to_the_best_state_too() {
    let fixture = fixture();
    fixture.zagros(sets(&["up", "job.toml", "--servers", "2"], &OVERFITS)).expect(0);
    is_the_best_state(&fixture);
}

/// The best state is older than a row lives when it is put back, by far: three epochs of twelve steps.
#[test]
fn rows_that_expire_are_in_the_best_state_too() {
    let fixture = fixture();
    let expiring = [&OVERFITS[..], &["embedding.ttl_steps=24"]].concat();
    for command in [&["train", "job.toml"][..], &["up", "job.toml", "--servers", "2"]] {
        fixture.zagros(sets(command, &expiring)).expect(0);
        is_the_best_state(&fixture);
    }
}

#[test]
fn a_share_of_the_rows_can_be_kept_out_and_nothing_saved() {
    let fixture = fixture();
    let share = ["data.validation_share=0.3", "output.save_model=false", "train.epochs=3"];
    let early = ["train.early_stop={metric='logloss', patience=1}", "train.evaluate_every=4"];
    let run = fixture.zagros(sets(&["train", "job.toml"], &[&share[..], &early[..]].concat())).expect(0);
    assert!(run.stdout.contains("which is what is scored"), "{}", run.stdout);
    let summary = fixture.summary();
    let kept_out = summary["validation"]["samples"].as_u64().expect("a count");
    assert!((750..1050).contains(&kept_out), "{kept_out} of 3000");
    let per_epoch = summary["epochs"][0]["samples"].as_u64();
    assert!(per_epoch.is_none_or(|rows| rows + kept_out == 3_000), "{summary}");
    assert!(!fixture.run_folder().join("checkpoints").exists() && !fixture.run_folder().join("model").exists());
}

#[test]
fn what_early_stopping_needs_is_asked_for() {
    let fixture = Fixture::new(100);
    let run = fixture.zagros(["train", "job.toml", "--set", "train.early_stop={}"]).expect(2);
    run.says(&["early stopping needs a validation part", "data.validation_share = 0.1"]);
    let run = fixture.zagros(["train", "job.toml", "--set", "data.validation=missing.txt"]).expect(3);
    run.says(&["missing.txt", "check data.train, data.validation and data.test"]);
}

#[test]
fn a_run_leaves_a_page_that_can_be_made_anew() {
    let fixture = fixture();
    let run = fixture.zagros(sets(&["train", "job.toml"], &OVERFITS)).expect(0);
    let path = fixture.run_folder().join("report.html");
    assert!(run.stdout.contains("report.html"), "{}", run.stdout);
    let first = std::fs::read_to_string(&path).expect("the page is there");
    for text in
        ["stopped: validation AUC", "<svg", "the model</text>", "Where the time went", "max_line_bytes", "summary.json"]
    {
        assert!(first.contains(text), "no {text:?}");
    }
    assert!(!first.contains("http://") && !first.contains("https://"), "it loads nothing from elsewhere");
    std::fs::remove_file(&path).expect("the page is removed");
    let folder = fixture.run_folder().display().to_string();
    let outcome = fixture.zagros(["report", &folder]).expect(0).stdout;
    assert!(outcome.contains("report.html"), "{outcome}");
    let again = std::fs::read_to_string(&path).expect("the page is there again");
    assert_eq!(again, first);
    fixture.zagros(["report", "."]).expect(3).says(&["holds no run"]);
}

#[test]
fn without_early_stopping_a_better_state_than_the_saved_one_is_reported_with_the_key_that_keeps_it() {
    let fixture = fixture();
    let kept: Vec<&str> =
        OVERFITS.into_iter().filter(|set| !set.contains("early_stop") && !set.contains("keep_best")).collect();
    let run = fixture.zagros(sets(&["train", "job.toml"], &kept)).expect(0);
    let validation = aucs(&fixture, "validation");
    let best = validation.iter().copied().fold(f64::MIN, f64::max);
    let last = validation.last().expect("evaluations");
    assert!(best > last + 0.001, "it must overfit: {validation:?}");
    let outcome = format!("the model is the last state, whose validation AUC is {last:.4}; it was {best:.4} at step");
    assert!(run.stdout.contains(&outcome) && run.stdout.contains("train.early_stop"), "{}", run.stdout);
}
