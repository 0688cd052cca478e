//! Whole workers against stand-ins: the window (invariant DP-4), errors, interruption, no endless wait
//! (invariant WT-1).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus::Registry;
use zagros_coordinator_client::MemberError;
use zagros_embedding_client::{ClientError, Shard};
use zagros_fakes::{FakeControlPlane, FakeShard};
use zagros_ingest::Batch;
use zagros_job::{NonFinitePolicy, Ttl};
use zagros_plumbing::Shutdown;
use zagros_protocol::control;
use zagros_scoring::TrainingOutcome;

use super::worker::reported_end;
use crate::control::{Worker, WorkerInput};
use crate::error::{ExitClass, WorkerError};
use crate::event::{Observer, StepReport, WorkerEvent};
use crate::report::RunFolder;
use crate::summary::RunSummary;
use crate::testing::{WorkerShard, batch, ffnn, job};
use zagros_model::ModelError;

/// Long enough for a busy machine; every test here ends far earlier.
const LATE: Duration = Duration::from_secs(60);
/// Short, so that a lost lease is noticed soon.
const LEASE: Duration = Duration::from_millis(60);

#[derive(Default)]
struct StepLog {
    seen: Mutex<Vec<StepReport>>,
    /// Requested after so many steps.
    shutdown: Option<(u64, Shutdown)>,
}

impl Observer for StepLog {
    fn observe(&self, event: &WorkerEvent) {
        let WorkerEvent::Step(report) = event else { return };
        self.seen.lock().unwrap().push(*report);
        if let Some((after, shutdown)) = &self.shutdown
            && report.step == *after
        {
            shutdown.request();
        }
    }
}

struct WorkerSetting {
    control: Arc<FakeControlPlane>,
    shard: Arc<WorkerShard>,
    steps: Arc<StepLog>,
    shutdown: Shutdown,
}

impl WorkerSetting {
    fn new(shard: FakeShard) -> Self {
        let control = Arc::new(FakeControlPlane::with_lease(LEASE));
        Self { control, shard: Arc::new(WorkerShard(shard)), steps: Arc::default(), shutdown: Shutdown::new() }
    }

    fn stopping_after(shard: FakeShard, step: u64) -> Self {
        let shutdown = Shutdown::new();
        let steps = StepLog { shutdown: Some((step, shutdown.clone())), ..StepLog::default() };
        Self { shutdown, steps: Arc::new(steps), ..Self::new(shard) }
    }

    fn worker(&self, staleness: usize) -> Worker {
        let mut job = job(1, &[2], ffnn(&[3]));
        job.train.staleness = staleness;
        let shard: Arc<dyn Shard> = self.shard.clone();
        let connect = Arc::new(move |_: &_| Ok(Arc::clone(&shard)));
        let alone = Worker::without_peers(job, zagros_torch::backend(), self.control.clone(), connect, Registry::new());
        Worker { observer: self.steps.clone(), shutdown: self.shutdown.clone(), ..alone }
    }

    async fn run(&self, staleness: usize, batches: u64) -> Result<RunSummary, WorkerError> {
        run(self.worker(staleness), batches).await
    }

    fn left(&self) -> (control::Outcome, String) {
        let left = self.control.leave.requests();
        assert_eq!(left.len(), 1);
        (left[0].outcome(), left[0].reason.clone())
    }
}

async fn run(worker: Worker, batches: u64) -> Result<RunSummary, WorkerError> {
    let batches: Vec<Batch> = (0..batches).map(|index| batch(4, &[&[index, 1000, 1000, 1001]])).collect();
    let run = worker.run_on(WorkerInput::Preloaded(Arc::new(batches)));
    tokio::time::timeout(LATE, run).await.expect("the worker hangs")
}

#[tokio::test]
async fn every_batch_is_stepped_pushed_and_reported() {
    let setting = WorkerSetting::new(FakeShard::default());
    let summary = setting.run(2, 20).await.unwrap();
    assert_eq!((summary.outcome, summary.steps, summary.samples), (TrainingOutcome::Finished, 20, 80));
    assert_eq!(setting.shard.pushes(), 20);
    assert_eq!((summary.rows, summary.table_bytes), (1, 64));
    let steps: Vec<u64> = setting.steps.seen.lock().unwrap().iter().map(|report| report.step).collect();
    assert_eq!(steps, (1..=20).collect::<Vec<_>>());
    assert_eq!(setting.left().0, control::Outcome::Finished);
}

#[tokio::test]
async fn no_more_batches_than_the_window_lets_in_are_unacknowledged() {
    for staleness in [0, 1, 3] {
        // Hangs, and so fails, if fewer are let in.
        let setting = WorkerSetting::new(FakeShard::default().acknowledging_once_open(staleness + 1));
        let summary = setting.run(staleness, 30).await.unwrap();
        assert_eq!(setting.shard.most_open(), staleness + 1, "τ = {staleness}");
        assert_eq!(summary.staleness.max as usize, staleness);
        assert_eq!(setting.shard.pushes(), 30);
    }
}

#[tokio::test]
async fn a_shard_that_fails_ends_the_run_with_its_words() {
    for shard in [FakeShard::default().failing_at_lookup(5), FakeShard::default().failing_at_push(5)] {
        let setting = WorkerSetting::new(shard);
        let error = setting.run(2, 1000).await.unwrap_err();
        assert_eq!(error.exit_class(), ExitClass::Cluster);
        let refused = |error: &WorkerError| {
            matches!(error, WorkerError::Embedding { source: ClientError::Refused { refusal, .. }, .. }
                if refusal.message == "as the test wants")
        };
        assert!(refused(&error), "{error}");
        let (outcome, reason) = setting.left();
        assert_eq!((outcome, reason), (control::Outcome::Failed, error.to_string()));
    }
}

#[tokio::test]
async fn a_shutdown_finishes_the_step_and_drains_the_pushes() {
    let setting = WorkerSetting::stopping_after(FakeShard::default().acknowledging_once_open(4), 5);
    let summary = setting.run(3, 1000).await.unwrap();
    assert_eq!((summary.outcome, summary.steps, setting.shard.pushes()), (TrainingOutcome::Interrupted, 5, 5));
    assert_eq!(setting.left().0, control::Outcome::Interrupted);
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_shard_that_hangs() {
    let setting = WorkerSetting::new(FakeShard::default().hanging());
    let shutdown = setting.shutdown.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        shutdown.request();
    });
    let summary = setting.run(2, 10).await.unwrap();
    assert_eq!((summary.outcome, summary.steps), (TrainingOutcome::Interrupted, 0));
}

#[tokio::test]
async fn a_run_that_the_coordinator_ended_says_why() {
    let setting = WorkerSetting::new(FakeShard::default().hanging());
    setting.control.stop("worker 1 failed: disk full");
    let error = setting.run(2, 10).await.unwrap_err();
    assert_eq!(error.to_string(), "stopped by the coordinator: worker 1 failed: disk full");
}

/// No server acknowledges the pushes, and the coordinator knows that the run is over. A worker that was asked to end, and drains
/// its pushes, then waits no longer.
#[tokio::test]
async fn a_worker_that_waits_for_a_push_ends_with_the_run() {
    let setting = WorkerSetting::stopping_after(FakeShard::default().acknowledging_once_open(1000), 1);
    let mut worker = setting.worker(3);
    worker.job.cluster.timeout = Duration::from_secs(3600);
    let control = Arc::clone(&setting.control);
    let end = async {
        setting.shutdown.requested().await;
        control.stop("run failed: embedding server 0 is gone");
    };
    let (error, ()) = tokio::join!(run(worker, 1000), end);
    let error = error.unwrap_err().to_string();
    assert_eq!(error, "stopped by the coordinator: run failed: embedding server 0 is gone");
}

/// Another process was asked to end, not this one.
#[tokio::test]
async fn a_drained_run_is_left_in_order() {
    let setting = WorkerSetting::new(FakeShard::default());
    let mut worker = setting.worker(2);
    worker.job.train.epochs = u32::MAX;
    let (control, steps) = (Arc::clone(&setting.control), Arc::clone(&setting.steps));
    let drain = async {
        until("it trains", || !steps.seen.lock().unwrap().is_empty()).await;
        control.drain("embedding server 0 was asked to end");
    };
    let (summary, ()) = tokio::join!(run(worker, 10), drain);
    let summary = summary.unwrap();
    assert_eq!((summary.outcome, summary.steps), (TrainingOutcome::Interrupted, setting.shard.pushes()));
    assert_eq!(setting.left().0, control::Outcome::Interrupted);
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LATE, waiting).await.unwrap_or_else(|_| panic!("waited {LATE:?} until {what}"));
}

/// Its splits may be another's by then (invariant SP-1).
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_cannot_prove_its_lease_makes_no_step_until_it_can() {
    let setting = WorkerSetting::new(FakeShard::default());
    let mut worker = setting.worker(2);
    (worker.job.train.epochs, worker.job.cluster.timeout) = (u32::MAX, Duration::from_secs(3600));
    let running = tokio::spawn(run(worker, 10));
    let made = || setting.steps.seen.lock().unwrap().len();
    until("it trains", || made() > 0).await;
    setting.control.heartbeat.disconnect();
    // Longer than a step by far: none is made in a stretch of time.
    let mut last_made = made();
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        if made() == last_made {
            break;
        }
        assert!(made() < 10_000_000 && !running.is_finished(), "it trains on without a lease");
        last_made = made();
    }
    setting.control.reconnect();
    until("it goes on", || made() > last_made).await;
    setting.shutdown.request();
    assert_eq!(running.await.unwrap().unwrap().outcome, TrainingOutcome::Interrupted);
}

/// In mode `sync` lookups are counted, so each batch that was looked up is trained on, also where a request to stop comes
/// while the lease cannot be proven.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_waits_for_the_lease_is_trained_on_before_the_worker_stops() {
    let setting = WorkerSetting::new(FakeShard::default());
    let mut worker = setting.worker(0);
    worker.job.train.mode = zagros_job::Mode::Sync;
    // Of such tables no row is looked up early.
    worker.job.tables.iter_mut().for_each(|table| table.settings.eviction.ttl = Some(Ttl::Steps(u32::MAX)));
    (worker.job.train.epochs, worker.job.cluster.timeout) = (u32::MAX, Duration::from_secs(3600));
    let running = tokio::spawn(run(worker, 10));
    until("it trains", || setting.shard.pushes() > 0).await;
    setting.control.heartbeat.disconnect();
    let waits = || setting.shard.lookups() == setting.shard.pushes() + 1;
    let mut last_lookups = 0;
    // A batch is there, and no step is made with it for much longer than a step takes.
    while !(waits() && last_lookups == setting.shard.lookups()) {
        last_lookups = setting.shard.lookups();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    setting.shutdown.request();
    tokio::time::sleep(Duration::from_millis(100)).await;
    setting.control.reconnect();
    let summary = running.await.unwrap().unwrap();
    assert_eq!((summary.outcome, summary.steps), (TrainingOutcome::Interrupted, setting.shard.pushes()));
    assert_eq!(setting.shard.lookups(), setting.shard.pushes(), "a batch was looked up and not trained on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_stays_unproven_ends_the_worker_after_its_timeout() {
    let setting = WorkerSetting::new(FakeShard::default());
    let mut worker = setting.worker(2);
    (worker.job.train.epochs, worker.job.cluster.timeout) = (u32::MAX, Duration::from_millis(200));
    let running = tokio::spawn(run(worker, 10));
    until("it trains", || !setting.steps.seen.lock().unwrap().is_empty()).await;
    setting.control.heartbeat.disconnect();
    let error = running.await.unwrap().unwrap_err();
    assert!(matches!(error, WorkerError::LeaseUnproven { .. }), "{error}");
    assert!(error.to_string().starts_with("coordinator (fake) has not answered for"), "{error}");
    assert_eq!(error.exit_class(), ExitClass::Cluster);
}

/// The second batch has a number that is not finite; so many follow it.
async fn run_with_a_bad_batch(worker: Worker, follow: usize) -> Result<RunSummary, WorkerError> {
    let mut batches = vec![batch(2, &[&[1, 2]]); 2 + follow];
    batches[1].numeric[0] = f32::NAN;
    tokio::time::timeout(LATE, worker.run_on(WorkerInput::Preloaded(Arc::new(batches)))).await.unwrap()
}

#[tokio::test]
async fn a_step_that_diverges_is_named_and_nothing_of_it_is_pushed() {
    let setting = WorkerSetting::new(FakeShard::default());
    let error = run_with_a_bad_batch(setting.worker(0), 1).await.unwrap_err();
    assert!(matches!(&error, WorkerError::Step { step: 2, source: ModelError::NotFinite { .. } }), "{error}");
    assert_eq!(setting.shard.pushes(), 1);
}

#[tokio::test]
async fn a_batch_that_diverges_is_skipped_where_the_job_says_so() {
    let setting = WorkerSetting::new(FakeShard::default());
    let mut worker = setting.worker(1);
    worker.job.train.updates.non_finite = NonFinitePolicy::Skip;
    // The bad one counts as a step, so that the run ends after three.
    worker.job.train.max_steps = Some(3);
    let registry = worker.registry.clone();
    let summary = run_with_a_bad_batch(worker, 2).await.unwrap();
    assert_eq!((summary.steps, summary.skipped_steps, summary.samples), (3, 1, 4));
    assert!(summary.loss.is_finite());
    assert_eq!(setting.shard.pushes(), 2);
    assert_eq!(setting.steps.seen.lock().unwrap().iter().map(|report| report.step).collect::<Vec<_>>(), [1, 3]);
    let shown = zagros_plumbing::metrics::render_text(&registry);
    assert!(shown.contains("zagros_worker_skipped_steps_total 1\n"), "{shown}");
}

fn save_below(worker: &mut Worker, parent: &std::path::Path) -> RunFolder {
    (worker.job.output.folder, worker.job.output.save_model) = (parent.to_owned(), true);
    let folder = RunFolder::create(&worker.job, &[]).unwrap();
    worker.folder = Some(folder.clone());
    folder
}

fn read_summary(folder: &RunFolder) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(folder.summary_file()).unwrap()).unwrap()
}

#[tokio::test]
async fn measures_are_kept_when_the_model_cannot_be_saved() {
    let parent = tempfile::tempdir().unwrap();
    let setting = WorkerSetting::new(FakeShard::default().failing_to_save());
    let mut worker = setting.worker(1);
    let folder = save_below(&mut worker, parent.path());
    let error = run(worker, 3).await.unwrap_err();
    assert_eq!((error.exit_class(), setting.left().0), (ExitClass::Internal, control::Outcome::Failed));
    let summary = read_summary(&folder);
    assert_eq!((&summary["steps"], &summary["model"]), (&3.into(), &serde_json::Value::Null));
    assert!(!folder.model_folder().join("manifest.json").exists());
}

#[test]
fn a_wait_that_was_interrupted_is_no_failure_of_the_run() {
    let stopped = MemberError::Stopped { coordinator: "coordinator (fake)".to_owned(), what: "get the placement" };
    assert_eq!(reported_end(&Err(stopped.into())).0, control::Outcome::Interrupted);
    assert_eq!(reported_end(&Err(WorkerError::Interrupted)).0, control::Outcome::Interrupted);
    let failed = WorkerError::Stopped { reason: "worker 1 failed".to_owned() };
    assert_eq!(reported_end(&Err(failed)).0, control::Outcome::Failed);
}
