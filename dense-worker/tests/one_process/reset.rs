//! Epochs that begin with new rows (`train.reset_embeddings`), together with everything else that has a state of its own.

use super::resume::{EndedRun, RunBreak, run};
use super::*;

const SETS: [&str; 10] = [
    "train.mode=sync",
    "train.epochs=3",
    "train.reset_embeddings=true",
    "train.ema=0.9",
    "train.label_smoothing=0.1",
    "train.embedding_dropout=0.1",
    "train.embedding_l2=0.001",
    "mlp={activation='gelu', norm='batch'}",
    "embedding.optimizer={kind='adam'}",
    "optimizer.kind=adam",
];

fn job_with(folder: &Path, more: &[&str]) -> Job {
    job_over(rows(4000), folder, &[&SETS[..], &["data.shuffle_rows=100"], more].concat())
}

fn learned(ended: &EndedRun) -> (u64, Evaluation, Vec<u8>) {
    let summary = ended.summary.as_ref().unwrap();
    let dense = std::fs::read(ended.run.model_folder().join("dense.safetensors")).unwrap();
    (summary.rows, summary.evaluation.unwrap(), dense)
}

/// Invariant CK-2, and DP-5 for the number of servers.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_runs_end_as_the_whole_run_bit_by_bit() {
    let folder = tempfile::tempdir().unwrap();
    for workers in ["cluster.workers=1", "cluster.workers=2"] {
        let whole = run(job_with(folder.path(), &[workers]), None, RunBreak::Never).await;
        let steps = whole.losses.len() as u64;
        assert!(steps.is_multiple_of(3), "{steps} steps in three epochs");
        let spread = run(job_with(folder.path(), &[workers, "cluster.servers=3"]), None, RunBreak::Never).await;
        assert_eq!(learned(&spread), learned(&whole), "{workers}: three servers");
        // Within the first epoch, at the end of one, and just after rows were removed.
        for step in [steps / 6, steps / 3, steps / 3 + 1, steps * 5 / 6] {
            let first = run(job_with(folder.path(), &[workers]), None, RunBreak::Tidy(step)).await;
            let second = run(job_with(folder.path(), &[workers]), Some(&first.run), RunBreak::Never).await;
            assert_eq!(learned(&second), learned(&whole), "{workers}: interrupted after step {step}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_begin_anew_and_the_network_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let first_losses = async |more: &[&str]| {
        let ended = run(job_with(folder.path(), more), None, RunBreak::Never).await;
        let steps = ended.losses.len() / 3;
        [0, steps, 2 * steps].map(|step| f64::from_bits(ended.losses[step].1[0]))
    };
    let (anew, kept) = (first_losses(&[]).await, first_losses(&["train.reset_embeddings=false"]).await);
    assert_eq!(anew[0].to_bits(), kept[0].to_bits());
    // The rows of the epoch before know the samples; new rows do not, and the network does better than its first weights.
    assert!(kept[1] < anew[1] && anew[1] < anew[0], "{anew:?} with new rows, {kept:?} with rows that are kept");
}
