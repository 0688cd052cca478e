//! Mode `async`: dense weights on the embedding servers, workers that wait for each other only at the ends of epochs.

use zagros_zip::ZipEq;

use super::workers::{WorkerPart, train_parts};
use super::*;

const ASYNC: &str = "train.mode=async";
const SGD: &str = "optimizer={kind='sgd', lr=0.1, momentum=0.5, weight_decay=0.01}";

fn auc(summary: &RunSummary) -> f64 {
    summary.evaluation.unwrap().auc.unwrap()
}

/// Strictly sequential and alone, weights on a server are the weights of a worker (invariant AS-1).
#[tokio::test(flavor = "multi_thread")]
async fn one_worker_alone_makes_the_steps_of_mode_sync() {
    let folder = tempfile::tempdir().unwrap();
    let schedule = "train.schedule={kind='step', warmup=5, every=10}";
    let pairs =
        [[SGD, "train.clip_norm=0.5", schedule], ["optimizer={kind='adagrad', lr=0.05}", "train.clip_value=0.1", ""]];
    for sets in pairs {
        let job_with = |mode| {
            let sets: Vec<&str> = sets.iter().copied().filter(|set| !set.is_empty()).collect();
            job(folder.path(), &[&[mode, "train.staleness=0", "train.max_steps=40"], &sets[..]].concat())
        };
        let (sync, expected, _) = train(job_with("train.mode=sync")).await;
        let (apart, found, run) = train(job_with(ASYNC)).await;
        let (sync, apart) = (sync.unwrap(), apart.unwrap());
        assert_eq!((expected.steps().len(), found.steps().len()), (40, 40));
        for (one, other) in expected.steps().iter().zip_eq(found.steps()) {
            assert!((one.loss - other.loss).abs() < 1e-5, "step {}: {} sync, {} async", one.step, one.loss, other.loss);
        }
        let (first, last) = (found.steps()[0].loss, apart.loss);
        assert!((first - last).abs() > 0.01, "nothing was learned: {first}, {last}");
        assert!((auc(&sync) - auc(&apart)).abs() < 1e-4, "{} sync, {} async", auc(&sync), auc(&apart));
        // The summary does not count the rows that hold the dense weights.
        assert_eq!(sync.rows, apart.rows);
        // What is saved beside the rows is what the servers held in the end.
        assert_eq!(evaluate(&run, &["cluster.servers=3"], None).await.unwrap(), apart.evaluation.unwrap());
    }
}

/// Of several splits, on two workers and two servers.
#[tokio::test(flavor = "multi_thread")]
async fn asynchronous_workers_learn_what_workers_in_step_learn_and_drop_no_sample() {
    let folder = tempfile::tempdir().unwrap();
    let sets = ["train.batch_size=500", "cluster.servers=2", "cluster.workers=2", "train.staleness=3"];
    let rows = rows(100_000);
    let job_with = |more: &[&str]| job_over(rows.clone(), folder.path(), &[&sets, more].concat());
    let both = || vec![WorkerPart::of_files(), WorkerPart::of_files()];
    let (in_step, ..) = train_parts(job_with(&[]), both()).await;
    let in_step = in_step.into_iter().next().unwrap().unwrap();
    let (apart, _, run) = train_parts(job_with(&[ASYNC]), both()).await;
    let summaries: Vec<RunSummary> = apart.into_iter().map(Result::unwrap).collect();
    assert_eq!((summaries[0].samples, summaries[0].rows), (in_step.samples, in_step.rows));
    assert_eq!(summaries[0].samples, summaries[1].samples);
    assert_eq!(summaries[0].evaluation, summaries[1].evaluation);
    assert!(summaries.iter().all(|summary| summary.staleness.max <= 3), "{summaries:?}");
    assert_eq!(summaries[0].steps, summaries[1].steps);
    // Stale dense gradients cost a short run much. How much depends on how the two happen to run beside each other, so the AUC has no
    // bound here. Without staleness it has one.
    assert!(auc(&summaries[0]).is_finite());
    let (fresh, ..) = train_parts(job_with(&[ASYNC, "train.staleness=0"]), both()).await;
    let fresh = fresh.into_iter().next().unwrap().unwrap();
    println!(
        "test AUC {:.4} in step, {:.4} apart, {:.4} without staleness",
        auc(&in_step),
        auc(&summaries[0]),
        auc(&fresh)
    );
    assert!(auc(&fresh) > auc(&in_step) - 0.02, "{} in step, {} apart", auc(&in_step), auc(&fresh));
    let again = evaluate(&run, &[], None).await.unwrap();
    assert_eq!(again.samples, summaries[0].evaluation.unwrap().samples);
    assert!((again.auc.unwrap() - auc(&summaries[0])).abs() < 1e-6);
}

/// The best state is given back to the servers, and from them to every worker.
#[tokio::test(flavor = "multi_thread")]
async fn the_best_state_of_asynchronous_workers_is_scored_and_saved() {
    let folder = tempfile::tempdir().unwrap();
    let sets = [
        ASYNC,
        "data.validation_share=0.2",
        "train.early_stop={patience=1}",
        "train.epochs=30",
        "optimizer={kind='sgd', lr=1}",
        "cluster.servers=2",
        "cluster.workers=2",
    ];
    let (ended, _, run) =
        train_parts(job(folder.path(), &sets), vec![WorkerPart::of_files(), WorkerPart::of_files()]).await;
    let ended: Vec<RunSummary> = ended.into_iter().map(Result::unwrap).collect();
    assert!(ended[0].epochs.len() < 30, "never settled");
    assert!(ended[0].model_step < ended[0].steps, "{} of {}", ended[0].model_step, ended[0].steps);
    assert_eq!(ended[0].evaluation, ended[1].evaluation);
    let again = evaluate(&run, &[], None).await.unwrap();
    assert!((again.auc.unwrap() - auc(&ended[0])).abs() < 1e-6, "{again:?} {:?}", ended[0].evaluation);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_no_number_is_skipped_by_its_worker_alone() {
    let folder = tempfile::tempdir().unwrap();
    let sets = [ASYNC, "train.non_finite=skip", "train.epochs=1", "cluster.workers=2"];
    let good: Vec<Batch> = (0..9).map(|step| workers::samples(step * 8, 8)).collect();
    let mut bad = good.clone();
    bad[4].numeric[0] = f32::NAN;
    let parts = vec![WorkerPart::of_batches(good), WorkerPart::of_batches(bad)];
    let (ended, ..) = train_parts(job(folder.path(), &sets), parts).await;
    let skipped: Vec<u64> = ended.into_iter().map(|ended| ended.unwrap().skipped_steps).collect();
    assert_eq!(skipped, [0, 1]);
}
