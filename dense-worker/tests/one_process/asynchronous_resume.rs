//! Checkpoints of workers that step apart (mode `async`): one has all of them come, wherever they are, and a run goes on from
//! there with any number of workers.

use super::resume::{EndedRun, RunBreak, run};
use super::*;

/// Barriers are two thirds of a lease away.
const SETS: [&str; 4] =
    ["train.mode=async", "train.batch_size=250", "data.shuffle_rows=600", "cluster.lease_seconds=1.5"];

fn job_with(rows: &str, folder: &Path, workers: u32, more: &[&str]) -> Job {
    let workers = format!("cluster.workers={workers}");
    job_over(rows.to_owned(), folder, &[&SETS[..], &[workers.as_str()], more].concat())
}

/// Epochs that were started before the newest checkpoint, and its steps.
fn newest(job: &Job, ended: &EndedRun) -> (u32, u64) {
    let point = ResumePoint::find_newest(job, &ended.run).unwrap().expect("a checkpoint");
    let text = std::fs::read(point.folder().path().unwrap().join("training.json")).unwrap();
    let training: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let epoch = training["epoch"].as_u64().unwrap();
    (u32::try_from(epoch).unwrap() + 1, point.step())
}

/// Invariant CK-2: each sample is trained on once up to the checkpoint, and what is left of the epoch after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_run_of_asynchronous_workers_goes_on_from_a_checkpoint_of_all() {
    let folder = tempfile::tempdir().unwrap();
    // Several splits; and one, for which all others wait.
    for (text, before, after) in [(rows(40_000), 2, 3), (rows(40_000), 3, 1), (rows(4_000), 2, 2)] {
        let job = |workers, more: &[&str]| job_with(&text, folder.path(), workers, more);
        let whole = run(job(1, &["train.epochs=1"]), None, RunBreak::Never).await.summary.unwrap();
        let cuts = ["train.epochs=4000", "checkpoint.every_seconds=0.1"];
        let first = run(job(before, &cuts), None, RunBreak::AfterCheckpoint).await;
        let (started, step) = newest(&job(before, &cuts), &first);
        let epochs = format!("train.epochs={}", started + 1);
        let second = run(job(after, &[&epochs, "cluster.servers=2"]), Some(&first.run), RunBreak::Never).await;
        let summary = second.summary.unwrap();
        let expected = whole.samples * u64::from(started + 1);
        assert_eq!((summary.samples, summary.rows), (expected, whole.rows), "{before} → {after}, {started} epochs");
        // Steps of all workers; the first one's, if it made any, count on from there.
        let next = second.losses.first().map_or(step + 1, |(next, _)| *next);
        assert!(summary.steps > step && next == step + 1, "{next} after {step}");
        assert!(second.outcomes.iter().all(|outcome| *outcome == TrainingOutcome::Finished));
    }
}

/// By time and by steps, again and again, over the ends of epochs: no worker misses a barrier or is left behind in one.
#[tokio::test(flavor = "multi_thread")]
async fn asynchronous_workers_cut_many_checkpoints_and_lose_no_sample() {
    let folder = tempfile::tempdir().unwrap();
    let text = rows(20_000);
    let job = |more: &[&str]| job_with(&text, folder.path(), 3, &[&["cluster.lease_seconds=0.9"], more].concat());
    let whole = run(job(&["train.epochs=1"]), None, RunBreak::Never).await.summary.unwrap();
    let cuts = ["train.epochs=60", "checkpoint.every_steps=7", "checkpoint.every_seconds=0.3"];
    let ended = run(job(&cuts), None, RunBreak::Never).await;
    println!("{} checkpoints in {} steps", ended.checkpoints, ended.losses.len());
    assert_eq!(ended.outcomes, [TrainingOutcome::Finished; 3]);
    assert_eq!(ended.summary.unwrap().samples, 60 * whole.samples);
    assert!(ended.checkpoints > 0, "none was cut in {} steps", ended.losses.len());
}

/// The others come to the last checkpoint whether they were asked or not, and the run goes on from it.
#[tokio::test(flavor = "multi_thread")]
async fn one_worker_that_is_asked_to_stop_has_all_stop() {
    let folder = tempfile::tempdir().unwrap();
    let text = rows(20_000);
    let job = |more: &[&str]| job_with(&text, folder.path(), 2, more);
    let whole = run(job(&["train.epochs=1"]), None, RunBreak::Never).await.summary.unwrap();
    let endless = job(&["train.epochs=4000"]);
    for how in [RunBreak::OfOne(9), RunBreak::Tidy(9)] {
        let first = run(endless.clone(), None, how).await;
        assert_eq!(first.outcomes, [TrainingOutcome::Interrupted; 2]);
        let (started, step) = newest(&endless, &first);
        assert_eq!(first.summary.unwrap().steps, step);
        let epochs = format!("train.epochs={started}");
        let second = run(job(&[&epochs]), Some(&first.run), RunBreak::Never).await;
        assert_eq!(second.summary.unwrap().samples, whole.samples * u64::from(started));
    }
}
