//! `zagros train` and `zagros eval`: one process from file to report.
//! Validation, early stopping, the choice of the best state, schedules and evaluations in epochs, and the page of a run.

use serde_json::Value;
use zagros_tests::{assert_contains, repository};

use super::fixture::{Fixture, gzip, with_sets};

#[test]
fn a_run_reports_measures_beside_the_best_and_leaves_a_run_folder() {
    let fixture = Fixture::new(20_000);
    let run = fixture.zagros(["train", "job.toml"]).expect(0);
    assert_contains(
        &run.stdout,
        &["test AUC", "best reachable", "samples/s", "rows created", "run folder", "zagros eval"],
    );
    assert_contains(&run.stdout, &["; logistic regression 0.", "; of the prevalence alone 0."]);
    let folder = fixture.run_folder();
    for file in ["job.toml", "metrics.jsonl", "summary.json", "model/manifest.json", "model/dense.safetensors"] {
        assert!(folder.join(file).is_file(), "no {file}");
    }
    let events = std::fs::read_dir(folder.join("tensorboard")).expect("a tensorboard folder").count();
    assert_eq!(events, 1);
    let summary = fixture.summary();
    assert_eq!((&summary["samples"], &summary["cost"]["samples"]), (&Value::from(20_000), &Value::from(20_000)));
    assert!(summary["cost"]["cpu_us_per_sample"].as_f64().is_some_and(|cost| cost > 0.0), "{summary}");
    assert!(run.stdout.contains("µs of CPU a sample in this process"), "{}", run.stdout);
    let baselines = &summary["baselines"];
    assert!(baselines["logistic_auc"].as_f64().is_some_and(|auc| auc > 0.6), "{baselines}");
    let [alone, logloss] = [&baselines["prevalence_logloss"], &summary["test"]["logloss"]].map(Value::as_f64);
    assert!(alone > logloss && logloss.is_some() && summary["test"] == summary["evaluation"], "{summary}");
    gives_the_same_measures_on_any_number_of_servers(&fixture);
}

fn gives_the_same_measures_on_any_number_of_servers(fixture: &Fixture) {
    for servers in ["1", "3"] {
        let servers = format!("cluster.servers={servers}");
        let scored = fixture.zagros(["eval", &fixture.run_name(), "--json", "--set", &servers]).expect(0).json();
        let found = (scored["auc"].as_f64(), scored["samples"].as_u64());
        assert_eq!(found, (Some(fixture.auc()), Some(4_000)), "{servers}");
    }
}

#[test]
fn the_resolved_job_of_a_run_trains_again_to_the_same_losses_and_another_seed_gives_others() {
    let fixture = Fixture::new(4_000);
    let mut losses = Vec::new();
    for seed in ["train.seed=1", "train.seed=2"] {
        fixture.train(&[seed, "train.mode=sync"]);
        losses.push(fixture.losses());
    }
    assert_eq!(losses[0].len(), 16, "one loss per step of 256 samples");
    assert_ne!(losses[0], losses[1]);
    let first = fixture.run_folders().into_iter().min().expect("a run").join("job.toml").display().to_string();
    fixture.zagros(["train", &first]).expect(0);
    assert_eq!(fixture.losses(), losses[0]);
}

#[test]
fn max_steps_ends_early_and_dry_run_changes_nothing() {
    let fixture = Fixture::new(4_000);
    fixture.zagros(["train", "job.toml", "--dry-run"]).expect(0).prints(&["memory", "dense weights"]);
    assert!(!fixture.path("runs").exists());
    fixture.zagros(["train", "job.toml", "--max-steps", "5"]).expect(0);
    assert_eq!(fixture.summary()["steps"], Value::from(5));
}

#[test]
fn gzip_and_a_hash_split_train_too() {
    let fixture = Fixture::new(4_000);
    fixture.write("train.txt.gz", gzip(&fixture.read("train.txt")));
    let job = fixture.read("job.toml").replace("train = \"train.txt\"", "train = \"train.txt.gz\"");
    fixture.write("gz.toml", job.replace("test = \"test.txt\"", "test_fraction = 0.25"));
    fixture.zagros(["train", "gz.toml"]).expect(0);
    let summary = fixture.summary();
    let (trained, tested) = (&summary["samples"], &summary["evaluation"]["samples"]);
    let (trained, tested) = (trained.as_u64().expect("a count"), tested.as_u64().expect("a count"));
    assert_eq!(trained + tested, 4_000, "every row is on one side");
    assert!((800..1200).contains(&tested), "{tested} of 4000 held out");
}

#[test]
fn the_example_for_criteo_trains_on_a_file_in_its_format() {
    let fixture = Fixture::new(6_000);
    let example = repository().join("examples/criteo.toml").display().to_string();
    let arguments = ["train", &example, "--set", "data.train=train.txt", "--set", "output.folder=runs"];
    fixture.zagros(arguments).expect(0);
    assert!(fixture.summary()["evaluation"]["samples"].as_u64().is_some_and(|samples| samples > 0));
}

#[test]
fn a_training_that_has_diverged_ends_with_its_own_code_and_saves_nothing() {
    let fixture = Fixture::new(20_000);
    // Without ReLU, which may die in time to save the loss.
    let sets = ["optimizer.lr=300.0", "model={kind='ffnn', hidden=[]}"];
    let run = fixture.zagros(with_sets(&["train", "job.toml"], &sets)).expect(5);
    run.says(&["training has diverged", "--fresh"]);
    assert!(!fixture.run_folder().join("model/manifest.json").exists());
}

#[test]
fn a_training_that_diverges_names_the_best_state_before_which_can_be_scored_and_trained_on() {
    let fixture = Fixture::new(20_000);
    // Cross layers leave the range of f32 within a few steps of a high rate, which rises: the first evaluations are of
    // a network that learns.
    let sets = [
        "model={kind='dcnv2', cross_layers=4, hidden=[]}",
        "data.validation_share=0.1",
        "train.evaluate_every=10",
        "train.epochs=40",
        "embedding.clip_norm=1.0",
        "train.early_stop={patience=50}",
        "optimizer={kind='sgd', lr=1000.0}",
        "train.schedule={kind='linear', warmup=50000, decay=1000000}",
    ];
    let run = fixture.zagros(with_sets(&["train", "job.toml"], &sets)).expect(5);
    let run = run.says(&[
        "step ",
        ": the loss is not finite",
        "the best state before had a validation AUC of",
        "`zagros eval ",
    ]);
    let summary = fixture.summary();
    assert_eq!((&summary["outcome"], &summary["complete"]), (&"diverged".into(), &false.into()));
    assert!(summary["choice"].as_str().is_some_and(|choice| choice.contains("checkpoints/step-")), "{summary}");
    assert!(!fixture.run_folder().join("model/manifest.json").exists());
    let text = run.stderr.replace('\n', " ");
    let words: Vec<&str> = text.split_whitespace().collect();
    let place = words.iter().position(|word| *word == "--from").expect("the next command");
    let best = words[place + 1].trim_matches('`').to_owned();
    fixture.zagros(["eval", &best, "--json"]).expect(0);
    let lower = [&sets[..], &["optimizer.lr=0.001", "train.epochs=1"]].concat();
    fixture.zagros(with_sets(&["train", "job.toml", "--fresh", "--from", &best], &lower)).expect(0);
}

#[test]
fn rows_and_steps_are_shown_and_few_steps_get_a_smaller_batch() {
    let fixture = Fixture::new(4_000);
    let large = ["train", "job.toml", "--set", "train.batch_size=1024", "--set", "train.epochs=3"];
    let warning = "an epoch has only 4 steps of 1,024 samples";
    let plan = fixture.zagros([&large[..], &["--dry-run"]].concat()).expect(0);
    assert!(plan.stdout.contains("4,000 rows (counted), 4 steps an epoch, 12 in all"), "{}", plan.stdout);
    plan.says(&[warning, "train.batch_size = 32 (125 steps an epoch)"]);
    let run = fixture.zagros(large).expect(0);
    run.says(&["data: 4,000 rows (counted), 4 steps an epoch, 12 in all", warning]);
    assert_eq!(fixture.summary()["steps"], 12);
    let small = fixture.zagros(["train", "job.toml", "--fresh", "--set", "train.batch_size=32"]).expect(0);
    assert!(!small.stderr.contains("an epoch has only"), "{}", small.stderr);
    let plan =
        fixture.zagros(["up", "job.toml", "--dry-run", "--set", "train.batch_size=32", "--workers", "2"]).expect(0);
    assert!(plan.stdout.contains("63 steps an epoch"), "{}", plan.stdout);
    let ended = fixture.zagros(["up", "job.toml", "--dates", "2026-11-01..02"]).expect(2);
    ended.says(&["names several days", "zagros train JOB --dates"]);
}

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

fn lines(fixture: &Fixture, kind: &str) -> Vec<Value> {
    fixture.metrics().into_iter().filter(|line| line["type"] == kind).collect()
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
    let run = fixture.run_name();
    for (data, expected) in [("validation.txt", &summary["validation"]), ("test.txt", &summary["evaluation"])] {
        let scored = fixture.zagros(["eval", &run, "--data", data, "--json"]).expect(0).json();
        assert_eq!((&scored["auc"], &scored["gauc"]), (&expected["auc"], &expected["gauc"]), "{data}");
        assert!(scored["groups"].as_u64().is_some_and(|groups| groups > 3) && scored["group_share"] == 1.0, "{scored}");
    }
}

#[test]
fn a_run_stops_when_validation_gets_no_better_saves_the_best_state_and_leaves_a_page() {
    let fixture = fixture();
    fixture
        .train(&OVERFITS)
        .prints(&["stopped: validation AUC has not risen by 0.0001 for 3 evaluations", "which is what is saved"])
        .prints(&["test GAUC", "report.html"]);
    is_the_best_state(&fixture);
    let kept = std::fs::read_dir(fixture.run_folder().join("checkpoints")).expect("checkpoints").count();
    // Two best and the last, which may be one of them.
    let validation = aucs(&fixture, "validation");
    let last = validation.last().copied().expect("evaluations");
    let better = validation.iter().filter(|auc| **auc > last).count();
    assert_eq!(kept, if better < 2 { 2 } else { 3 }, "{validation:?}");
    assert_eq!(lines(&fixture, "epoch").len(), fixture.summary()["epochs"].as_array().map_or(0, Vec::len));
    has_a_page_that_can_be_made_anew(&fixture);
}

fn has_a_page_that_can_be_made_anew(fixture: &Fixture) {
    let path = fixture.run_folder().join("report.html");
    let first = std::fs::read_to_string(&path).expect("the page is there");
    assert_contains(&first, &["stopped: validation AUC", "<svg", "the model</text>", "Where the time went"]);
    assert_contains(&first, &["max_line_bytes", "summary.json"]);
    assert!(!first.contains("http://") && !first.contains("https://"), "it loads nothing from elsewhere");
    std::fs::remove_file(&path).expect("the page is removed");
    fixture.zagros(["report", &fixture.run_name()]).expect(0).prints(&["report.html"]);
    assert_eq!(std::fs::read_to_string(&path).expect("the page is there again"), first);
    fixture.zagros(["report", "."]).expect(3).says(&["holds no run"]);
}

/// The best state is older than a row lives when it is put back, by far: three epochs of twelve steps.
#[test]
fn rows_that_expire_are_in_the_best_state_too_also_on_servers_of_their_own() {
    let fixture = fixture();
    let expiring = [&OVERFITS[..], &["embedding.eviction.ttl={steps=24}"]].concat();
    for command in [&["train", "job.toml"][..], &["up", "job.toml", "--servers", "2"]] {
        fixture.zagros(with_sets(command, &expiring)).expect(0);
        is_the_best_state(&fixture);
    }
}

#[test]
fn a_share_of_the_rows_can_be_kept_out_and_nothing_saved() {
    let fixture = fixture();
    let share = ["data.validation_share=0.3", "output.save_model=false", "train.epochs=3"];
    let early = ["train.early_stop={metric='logloss', patience=1}", "train.evaluate_every=4"];
    let ended = fixture.zagros(with_sets(&["train", "job.toml"], &[&share[..], &early[..]].concat())).expect(0);
    ended.prints(&["which is what is scored"]);
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
fn without_early_stopping_a_better_state_than_the_saved_one_is_reported_with_the_key_that_keeps_it() {
    let fixture = fixture();
    let kept: Vec<&str> =
        OVERFITS.into_iter().filter(|set| !set.contains("early_stop") && !set.contains("keep_best")).collect();
    let run = fixture.zagros(with_sets(&["train", "job.toml"], &kept)).expect(0);
    let validation = aucs(&fixture, "validation");
    let best = validation.iter().copied().fold(f64::MIN, f64::max);
    let last = validation.last().expect("evaluations");
    assert!(best > last + 0.001, "it must overfit: {validation:?}");
    let outcome = format!("the model is the last state, whose validation AUC is {last:.4}; it was {best:.4} at step");
    assert!(run.stdout.contains(&outcome) && run.stdout.contains("train.early_stop"), "{}", run.stdout);
}

/// 8,000 rows in batches of 256.
const STEPS: u64 = 32;
const EPOCHS: [&str; 3] = [
    "train.evaluate_every={epochs=0.5}",
    "train.schedule={kind='cosine', warmup={epochs=0.25}, decay={epochs=1.75}}",
    "embedding.schedule={kind='step', every={epochs=1}}",
];
const IN_STEPS: [&str; 3] = [
    "train.evaluate_every=16",
    "train.schedule={kind='cosine', warmup=8, decay=56}",
    "embedding.schedule={kind='step', every=32}",
];

fn arguments<'a>(command: &[&'a str], sets: &[&'a str]) -> Vec<&'a str> {
    let command = with_sets(command, &["train.epochs=2", "train.mode=sync", "data.shuffle_rows=0"]);
    with_sets(&command, sets)
}

fn evaluations(fixture: &Fixture) -> Vec<u64> {
    lines(fixture, "evaluation").iter().filter_map(|line| line["step"].as_u64()).collect()
}

fn dense(fixture: &Fixture) -> Vec<u8> {
    std::fs::read(fixture.run_folder().join("model/dense.safetensors")).expect("the network")
}

#[test]
fn epochs_are_counted_steps_of_the_same_run_and_a_resumed_one_keeps_them() {
    let fixture = Fixture::new(8_000);
    fixture.zagros(arguments(&["train", "job.toml", "--fresh"], &IN_STEPS)).expect(0);
    let in_steps = (dense(&fixture), evaluations(&fixture));
    assert_eq!(in_steps.1, [16, 32, 48, 64]);
    let counted = fixture.zagros(arguments(&["train", "job.toml", "--fresh"], &EPOCHS)).expect(0);
    assert!(counted.stderr.contains("an epoch is 32 steps (train.epoch_steps)"), "{}", counted.stderr);
    assert_eq!((dense(&fixture), evaluations(&fixture)), in_steps);
    let job = || fixture.read(&fixture.run_folder().join("job.toml").display().to_string());
    assert!(job().contains(&format!("epoch_steps = {STEPS}")), "{}", job());

    // Interrupted and resumed: those of the run, whatever the rows are now.
    let sets = [&EPOCHS[..], &["checkpoint.every_steps=10"]].concat();
    fixture.start_to_checkpoint(1, arguments(&["train", "job.toml", "--fresh"], &sets)).interrupt();
    let again = fixture.zagros(arguments(&["train", "job.toml"], &sets)).expect(0).says(&["going on after step"]);
    assert!(again.stderr.contains("an epoch is 32 steps"), "{}", again.stderr);
    assert_eq!(dense(&fixture), in_steps.0);
}

#[test]
fn every_process_of_a_run_has_the_same_steps() {
    let fixture = Fixture::new(8_000);
    let up = ["up", "job.toml", "--servers", "2", "--workers", "2"];
    let run = fixture.zagros(arguments(&up, &EPOCHS)).expect(0);
    // Two workers make a step together.
    assert!(run.stderr.contains("an epoch is 16 steps (train.epoch_steps)"), "{}", run.stderr);
    // Beside those after each epoch, whose steps depend on how the rows are divided.
    let found = evaluations(&fixture);
    assert!([8, 16, 24, 32].iter().all(|step| found.contains(step)), "{found:?}");
    let alone = fixture.zagros(arguments(&["embedding-server", "job.toml"], &EPOCHS)).expect(2);
    alone.says(&["train.evaluate_every is in epochs", "set train.epoch_steps for all roles"]);
    fixture.zagros(arguments(&["train", "job.toml", "--dry-run"], &EPOCHS)).expect(0).prints(&["32 steps an epoch"]);
}
