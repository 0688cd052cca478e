//! Mode `async`: dense weights on the embedding servers, workers that wait for each other only at the ends of epochs.
//!
//! A checkpoint has all workers come, wherever they are, and a run goes on from there with any number of workers. A worker that does
//! not come to a barrier, and has no replacement, is named by the others, and they end (invariants AS-1 and WT-1).

use std::sync::OnceLock;

use tokio::task::AbortHandle;
use zagros_coordinator_client::control_plane::ControlAnswer;
use zagros_fakes::InProcess;
use zagros_protocol::control::barrier_response::State;
use zagros_protocol::control::*;

use super::rejoin::join_in_time;
use super::resume::{EndedRun, RunBreak, run};
use super::workers::{WorkerPart, all_of_files, train_parts};
use super::*;

const ASYNC: &str = "train.mode=async";
const SGD: &str = "optimizer={kind='sgd', lr=0.1, momentum=0.5, weight_decay=0.01}";

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
        assert_near_losses(&expected, &found, 1e-5, "sync and async");
        let (first, last) = (found.steps()[0].loss, apart.loss);
        assert!((first - last).abs() > 0.01, "nothing was learned: {first}, {last}");
        assert!((auc(&sync) - auc(&apart)).abs() < 1e-4, "{} sync, {} async", auc(&sync), auc(&apart));
        // The summary does not count the rows that hold the dense weights.
        assert_eq!(sync.rows, apart.rows);
        // What is saved beside the rows is what the servers held in the end.
        assert_eq!(evaluate(&run, &["cluster.servers=3"], None).await.unwrap(), apart.evaluation.unwrap());
    }
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
    let (ended, _, run) = train_parts(job(folder.path(), &sets), all_of_files(2)).await;
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

/// What becomes of the worker when it votes for the end of the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VoteFault {
    /// Its process is gone.
    Killed,
    /// Its process lives, and its vote never arrives.
    Lost,
}

/// The coordinator as the worker with the fault reaches it.
struct FaultyVotes {
    control: Arc<LocalCoordinator>,
    fault: VoteFault,
    victim: OnceLock<AbortHandle>,
}

impl ControlPlane for FaultyVotes {
    fn barrier(&self, request: BarrierRequest) -> ControlAnswer<'_, BarrierResponse> {
        if request.vote.as_ref().is_none_or(|vote| vote.reason() != BarrierReason::EpochEnd) {
            return self.control.barrier(request);
        }
        if self.fault == VoteFault::Killed {
            self.victim.get().expect("a victim").abort();
        }
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(BarrierResponse { state: Some(State::Wait(BarrierWait::default())) })
        })
    }

    delegate_calls! { assign(AssignRequest) -> AssignResponse }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_asynchronous_worker_that_is_killed_at_a_barrier_or_stays_away_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let bounds = ["cluster.timeout_seconds=2", "cluster.lease_seconds=1"];
    let job = job(folder.path(), &[&["train.mode=async", "cluster.workers=2"], &bounds[..]].concat());
    for fault in [VoteFault::Killed, VoteFault::Lost] {
        let cluster = WorkerCluster::start(&job).await;
        let faulty = Arc::new(FaultyVotes { control: cluster.control.clone(), fault, victim: OnceLock::new() });
        let rendezvous = Arc::new(InProcess::default());
        let start = |index, control: Arc<dyn ControlPlane>| {
            let worker = Worker {
                control,
                index,
                rendezvous: Some(rendezvous.clone()),
                registry: Registry::new(),
                ..cluster.worker(&job, Arc::new(ObserverList::default()))
            };
            tokio::spawn(worker.run())
        };
        let mut first = start(0, cluster.control.clone());
        let mut second = start(1, faulty.clone());
        faulty.victim.set(second.abort_handle()).expect("set once");
        let error = join_in_time(&mut first).await.unwrap().unwrap_err();
        assert_eq!(error.exit_class(), ExitClass::Cluster, "{error}");
        let reported = error.to_string();
        match fault {
            VoteFault::Killed => {
                assert!(reported.contains("dense worker 1"), "{reported}");
                assert!(join_in_time(&mut second).await.is_err_and(|error| error.is_cancelled()));
            }
            VoteFault::Lost => {
                // The next group forms without it no more than this one did.
                assert!(reported.starts_with("dense worker 1 gone or late: "), "{reported}");
                // The run is over: the worker that stayed away ends too.
                join_in_time(&mut second).await.unwrap().unwrap_err();
            }
        }
    }
}
