//! Schedules and evaluations in epochs: their steps are counted once, and are those of the run for good.

use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::Fixture;

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
    let fixed = ["train.epochs=2", "train.mode=sync", "data.shuffle_rows=0"];
    command.iter().copied().chain(fixed.iter().chain(sets).flat_map(|set| ["--set", *set])).collect()
}

fn evaluations(fixture: &Fixture) -> Vec<u64> {
    let run = fixture.run_folder().display().to_string();
    let lines = fixture.read(&format!("{run}/metrics.jsonl"));
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter(|line| line["type"] == "evaluation").filter_map(|line| line["step"].as_u64()).collect()
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
    let mut stopped = fixture.start(arguments(&["train", "job.toml", "--fresh"], &sets));
    stopped.wait_for_line("checkpoint after step");
    stopped.signal(Signal::INT);
    stopped.finish().expect(130);
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
    let planned = fixture.zagros(arguments(&["train", "job.toml", "--dry-run"], &EPOCHS)).expect(0).stdout;
    assert!(planned.contains("32 steps an epoch"), "{planned}");
}
