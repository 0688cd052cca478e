//! Streamed weights: the dense network as tiles on the embedding servers. Of networks whose step is autograd's a worker has one layer at
//! a time.

use super::resume::{RunBreak, run};
use super::workers::train_with;
use super::*;

const STREAMED: &str = "train.weights=streamed";

/// In mode `sync`, with all that changes a step: dropout, a schedule, several rates, a layer of several tiles.
const SETS: [&str; 9] = [
    "train.mode=sync",
    "model.kind=ffnn",
    "model.hidden=[600, 120, 8]",
    "model.mup_base_width=64",
    "model.dropout=0.2",
    "train.schedule={kind='cosine', warmup=10, decay=100}",
    "train.clip_value=0.5",
    "train.evaluate_every=20",
    "data.shuffle_rows=100",
];

fn job_with(folder: &Path, sets: &[&str]) -> Job {
    let text = network_text(None, "kind = \"ffnn\"\n");
    job_of(&text, rows(2000), folder, &[&SETS[1..], &SETS[..1], sets].concat())
}

/// Streamed weights learn the same bits as resident ones, on one server and, with the other settings, on several.
async fn check_same_bits(job: impl Fn(&[&str]) -> Job, several: &[&str]) {
    let (resident, expected, _) = train(job(&["train.weights=resident"])).await;
    let resident = resident.unwrap();
    for sets in [&[STREAMED][..], several] {
        let (streamed, recorded, run) = train(job(sets)).await;
        let streamed = streamed.unwrap();
        assert_eq!(recorded.losses(), expected.losses(), "{sets:?}");
        assert_eq!((streamed.rows, streamed.samples), (resident.rows, resident.samples));
        assert!((auc(&streamed) - auc(&resident)).abs() < 1e-6, "{} {}", auc(&streamed), auc(&resident));
        // The model scores as it did while it was trained, on another number of servers.
        let again = evaluate(&run, &["cluster.servers=2"], None).await.unwrap();
        assert_eq!(Some(again), streamed.evaluation);
    }
}

/// A run that is stopped in each of these ways goes on with other numbers of servers as if nothing had happened.
async fn check_stops(job: impl Fn(&str) -> Job, stops: [RunBreak; 2]) {
    let whole = run(job("cluster.servers=1"), None, RunBreak::Never).await;
    for how in stops {
        let first = run(job("cluster.servers=3"), None, how).await;
        let second = run(job("cluster.servers=2"), Some(&first.run), RunBreak::Never).await;
        assert_eq!(second.losses.last(), whole.losses.last());
        assert_eq!(second.summary.unwrap().evaluation, whole.summary.as_ref().unwrap().evaluation);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_that_are_elsewhere_do_not_fit_a_job_with_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (summary, _, run) = train(job_with(folder.path(), &[STREAMED, "train.max_steps=3"])).await;
    assert!(summary.is_ok());
    let refused = evaluate(&run, &["train.weights=resident"], None).await.unwrap_err();
    assert_eq!(refused.exit_class(), ExitClass::Data, "{refused}");
}

/// A job whose workers' shares of a step differ, and whose last steps have workers without samples.
fn with_workers(folder: &Path, workers: u32, sets: &[&str]) -> Job {
    let workers = format!("cluster.workers={workers}");
    let sets = [&["train.batch_size=70", "data.shuffle_rows=100", &workers][..], sets].concat();
    job_with(folder, &sets)
}

/// Invariant RK-1. Two sums have the same bits in either order; of three or more, rounding differs.
#[tokio::test(flavor = "multi_thread")]
async fn workers_exchange_parts_of_layers_and_learn_as_with_weights_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    for (workers, servers, tolerance) in
        [(2, "cluster.servers=1", 0.0), (2, "cluster.servers=3", 0.0), (3, "cluster.servers=2", 1e-4)]
    {
        let job = |weights| with_workers(folder.path(), workers, &[weights, servers]);
        let (resident, expected, _) = train_with(workers, job("train.weights=resident")).await;
        let (streamed, found, run) = train_with(workers, job(STREAMED)).await;
        assert_near_losses(&expected, &found, tolerance, &format!("{workers} workers"));
        assert!((auc(&streamed) - auc(&resident)).abs() < 1e-3, "{} {}", auc(&streamed), auc(&resident));
        let again = evaluate(&run, &["cluster.servers=2"], None).await.unwrap();
        assert_eq!(Some(again), streamed.evaluation);
    }
}

/// Tiles are rows: a checkpoint goes on with any number of servers and workers, from the weights that it has.
#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_of_tiles_goes_on_with_other_numbers_of_servers_and_workers() {
    let folder = tempfile::tempdir().unwrap();
    let job = |workers: u32, servers: &str, weights: &str| {
        let cuts = ["checkpoint.every_steps=5", "checkpoint.every_seconds=0"];
        with_workers(folder.path(), workers, &[&[weights, servers], &cuts[..]].concat())
    };
    for (workers, servers) in [(1, "cluster.servers=1"), (4, "cluster.servers=5")] {
        let mut ends = Vec::new();
        for weights in ["train.weights=resident", STREAMED] {
            // Both go on after the same step: no worker makes step 10, after which the next checkpoint would be.
            let first = run(job(2, "cluster.servers=3", weights), None, RunBreak::Sudden(7)).await;
            ends.push(run(job(workers, servers, weights), Some(&first.run), RunBreak::Never).await);
        }
        let [resident, streamed] = &ends[..] else { unreachable!("two runs") };
        assert!(!streamed.losses.is_empty());
        assert_eq!(streamed.losses[0], resident.losses[0], "the first step sees the weights of the checkpoint");
        let samples = |ended: &super::resume::EndedRun| ended.summary.as_ref().unwrap().samples;
        assert_eq!(samples(streamed), samples(resident));
    }
}

/// The servers keep the gradients of a step until all are known.
#[tokio::test(flavor = "multi_thread")]
async fn steps_are_clipped_by_the_norm_of_all_layers_at_the_servers() {
    let folder = tempfile::tempdir().unwrap();
    for workers in [1, 2] {
        let job = |weights, norm: &str| {
            with_workers(folder.path(), workers, &[weights, norm, "cluster.servers=2", "train.non_finite=skip"])
        };
        let (_, unclipped, _) = train_with(workers, job(STREAMED, "train.clip_norm=1e6")).await;
        let norm = "train.clip_norm=0.01";
        let (_, expected, _) = train_with(workers, job("train.weights=resident", norm)).await;
        let (streamed, found, run) = train_with(workers, job(STREAMED, norm)).await;
        assert_near_losses(&expected, &found, 1e-6, &format!("{workers} workers"));
        assert_ne!(unclipped.losses().last(), found.losses().last(), "the norm is never reached");
        assert_eq!(Some(evaluate(&run, &[], None).await.unwrap()), streamed.evaluation);
    }
}

/// Networks of all kinds, with dropout, norms, buffers and embedded numbers.
fn networks() -> Vec<String> {
    let pair = "attention = [{ sequence = 'liked', target = 'city' }]\nhidden = [8]\n";
    let gate = "gate = { hidden = [4], first = ['city'] }\n";
    let normed = "kind = 'ffnn'\nhidden = [8]\ndropout = 0.2\n[mlp]\nnorm = 'batch'\nactivation = 'dice'\n";
    let numbers = "kind = 'dlrm'\nbottom = [8]\ntop = [8]\n[features.numeric_embedding]\ndim = 3\n";
    vec![
        network_text(None, "kind = 'wukong'\nlayers = 2\nfmb_hidden = [16]\nbottom = [8]\ntop = [8]\ndropout = 0.2\n"),
        network_text(Some(SEQUENCES), &format!("kind = 'din'\nactivation = 'dice'\n{pair}")),
        network_text(Some(SEQUENCES), &format!("kind = 'bst'\nheads = 2\n{pair}")),
        network_text(None, &format!("kind = 'finalmlp'\nfirst = [8]\nsecond = [8]\nheads = 2\n{gate}")),
        network_text(None, normed),
        network_text(None, numbers),
    ]
}

fn autograd_job(text: &str, folder: &Path, sets: &[&str]) -> Job {
    let sets = [&["train.mode=sync", "train.evaluate_every=20", "train.max_steps=30"][..], sets].concat();
    job_of(text, rows(2000), folder, &sets)
}

#[tokio::test(flavor = "multi_thread")]
async fn streamed_and_resident_weights_learn_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    check_same_bits(|sets| job_with(folder.path(), sets), &[STREAMED, "cluster.servers=3"]).await;
    for network in networks() {
        println!("{network}");
        let several = [STREAMED, "cluster.servers=3", "train.clip_norm=1e6"];
        check_same_bits(|sets| autograd_job(&network, folder.path(), sets), &several).await;
    }
}

/// Buffers, such as the averages of Dice, are the worker's, and tiles the servers'.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_run_goes_on_with_tiles_and_buffers_on_other_servers() {
    let folder = tempfile::tempdir().unwrap();
    let job = |servers: &str| job_with(folder.path(), &[STREAMED, "checkpoint.every_steps=10", servers]);
    check_stops(job, [RunBreak::Tidy(13), RunBreak::Sudden(24)]).await;
    for network in networks() {
        println!("{network}");
        let job =
            |servers: &str| autograd_job(&network, folder.path(), &[STREAMED, "checkpoint.every_steps=5", servers]);
        check_stops(job, [RunBreak::Tidy(9), RunBreak::Sudden(14)]).await;
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
            autograd_job(&network, folder.path(), &sets)
        };
        let (_, expected, _) = train_with(2, job("train.weights=resident")).await;
        let (streamed, found, run) = train_with(2, job(STREAMED)).await;
        assert_near_losses(&expected, &found, 0.0, &network);
        // One worker has the samples in other places of its blocks.
        let again = evaluate(&run, &["cluster.servers=1"], None).await.unwrap();
        let logloss = |evaluation: &Evaluation| evaluation.logloss.unwrap();
        let difference = (logloss(&again) - logloss(&streamed.evaluation.unwrap())).abs();
        assert!(difference < 1e-6, "{difference} of {network}");
    }
}
