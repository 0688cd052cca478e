//! Streamed weights of networks whose step is autograd's: the servers have their tiles, and a worker one layer at a time.

use zagros_zip::ZipEq;

use super::resume::{RunBreak, run};
use super::workers::train_with;
use super::*;

const SEQUENCES: &str = r#"[features]
label = { column = "click", positive = ["1"], negative = ["0"] }
numeric = ["age"]
categorical = ["city", { column = "liked", table = "city", separator = "|", sequence = { length = 3 } }]
"#;

fn text(features: Option<&str>, network: &str) -> String {
    let text = JOB.replace("kind = \"dlrm\"\nbottom = [8]\ntop = [16]\n", network);
    let Some(features) = features else { return text };
    let (before, rest) = text.split_once("[features]\n").unwrap();
    let (_, after) = rest.split_once("[embedding]\n").unwrap();
    format!("{before}{features}[embedding]\n{after}")
}

/// Networks of all kinds, with dropout, norms, buffers and embedded numbers.
fn networks() -> Vec<String> {
    let pair = "attention = [{ sequence = 'liked', target = 'city' }]\nhidden = [8]\n";
    let normed = "kind = 'ffnn'\nhidden = [8]\ndropout = 0.2\n[mlp]\nnorm = 'batch'\nactivation = 'dice'\n";
    let numbers = "kind = 'dlrm'\nbottom = [8]\ntop = [8]\n[features.numeric_embedding]\ndim = 3\n";
    vec![
        text(None, "kind = 'wukong'\nlayers = 2\nfmb_hidden = [16]\nbottom = [8]\ntop = [8]\ndropout = 0.2\n"),
        text(Some(SEQUENCES), &format!("kind = 'din'\nactivation = 'dice'\n{pair}")),
        text(Some(SEQUENCES), &format!("kind = 'bst'\nheads = 2\n{pair}")),
        text(
            None,
            "kind = 'finalmlp'\nfirst = [8]\nsecond = [8]\nheads = 2\ngate = { hidden = [4], first = ['city'] }\n",
        ),
        text(None, normed),
        text(None, numbers),
    ]
}

fn job_with(text: &str, folder: &Path, sets: &[&str]) -> Job {
    let sets = [&["train.mode=sync", "train.evaluate_every=20", "train.max_steps=30"][..], sets].concat();
    job_of(text, rows(2000), folder, &sets)
}

const STREAMED: &str = "train.weights=streamed";

#[tokio::test(flavor = "multi_thread")]
async fn layers_that_come_one_by_one_learn_what_a_whole_network_learns() {
    let folder = tempfile::tempdir().unwrap();
    for network in networks() {
        let (resident, expected, _) = train(job_with(&network, folder.path(), &["train.weights=resident"])).await;
        for sets in [&[STREAMED][..], &[STREAMED, "cluster.servers=3", "train.clip_norm=1e6"]] {
            let (streamed, recorded, run) = train(job_with(&network, folder.path(), sets)).await;
            let (streamed, resident) = (streamed.unwrap(), resident.as_ref().unwrap());
            assert_eq!(recorded.losses(), expected.losses(), "{network}");
            assert_eq!((streamed.rows, streamed.samples), (resident.rows, resident.samples));
            let auc = |summary: &RunSummary| summary.evaluation.unwrap().auc.unwrap();
            assert!((auc(&streamed) - auc(resident)).abs() < 1e-6, "{} {}", auc(&streamed), auc(resident));
            let again = evaluate(&run, &["cluster.servers=2"], None).await.unwrap();
            assert_eq!(Some(again), streamed.evaluation);
        }
    }
}

/// Buffers, such as the averages of Dice, are the worker's, and tiles the servers'.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_run_goes_on_with_tiles_and_buffers() {
    let folder = tempfile::tempdir().unwrap();
    for network in networks() {
        let job = |servers: &str| job_with(&network, folder.path(), &[STREAMED, "checkpoint.every_steps=5", servers]);
        let whole = run(job("cluster.servers=1"), None, RunBreak::Never).await;
        for how in [RunBreak::Tidy(9), RunBreak::Sudden(14)] {
            let first = run(job("cluster.servers=3"), None, how).await;
            let second = run(job("cluster.servers=2"), Some(&first.run), RunBreak::Never).await;
            assert_eq!(second.losses.last(), whole.losses.last(), "{network}");
            assert_eq!(second.summary.unwrap().evaluation, whole.summary.as_ref().unwrap().evaluation);
        }
    }
}

/// Two sums have the same bits in either order.
#[tokio::test(flavor = "multi_thread")]
async fn workers_that_share_layers_learn_as_with_weights_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    for network in networks() {
        let job = |weights| {
            let sets =
                [weights, "train.batch_size=70", "data.shuffle_rows=100", "cluster.workers=2", "cluster.servers=2"];
            job_with(&network, folder.path(), &sets)
        };
        let (_, expected, _) = train_with(2, job("train.weights=resident")).await;
        let (streamed, found, run) = train_with(2, job(STREAMED)).await;
        for (expected, found) in expected.steps().iter().zip_eq(found.steps()) {
            assert_eq!(expected.loss, found.loss, "step {} of {network}", expected.step);
        }
        // One worker has the samples in other places of its blocks.
        let again = evaluate(&run, &["cluster.servers=1"], None).await.unwrap();
        let logloss = |evaluation: &Evaluation| evaluation.logloss.unwrap();
        let difference = (logloss(&again) - logloss(&streamed.evaluation.unwrap())).abs();
        assert!(difference < 1e-6, "{difference} of {network}");
    }
}
