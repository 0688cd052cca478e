//! `zagros train` and `zagros eval`: one process from file to report.

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
