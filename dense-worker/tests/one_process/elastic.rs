//! A worker is lost and no process takes its place: those left go on without it, and take it in again when it comes back
//! (invariant RK-3).

use std::collections::BTreeMap;
use std::sync::OnceLock;

use tokio::sync::watch;

use super::rejoin::{
    LONG_LEASE, RejoinRun, WorkerKiller, WorkerTask, finished, job_with, join_in_time, unharmed, until,
};
use super::*;

/// A worker is given up if no replacement comes for three seconds.
const SETS: [&str; 3] = ["cluster.timeout_seconds=3", "data.shuffle_rows=3000", "train.evaluate_every=40"];

fn job(folder: &Path) -> Job {
    let mut job = job_with(folder, 3, &SETS);
    job.cluster.min_workers = Some(2);
    job
}

fn groups(reported: &RecordedEvents) -> Vec<Vec<u32>> {
    let reported = reported.0.lock().unwrap();
    let workers = |event: &WorkerEvent| match event {
        WorkerEvent::Regrouped { workers, .. } => Some(workers.clone()),
        _ => None,
    };
    reported.iter().filter_map(workers).collect()
}

/// Makes steps last once two train, so that there is something left to train when the third is back.
struct SlowSteps(OnceLock<()>);

impl Observer for SlowSteps {
    fn observe(&self, event: &WorkerEvent) {
        match event {
            WorkerEvent::Regrouped { workers, .. } if workers.len() == 2 => drop(self.0.set(())),
            WorkerEvent::Step(_) if self.0.get().is_some() => std::thread::sleep(Duration::from_millis(20)),
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_of_three_workers_go_on_and_the_third_that_comes_back_late_trains_with_them_again() {
    let folder = tempfile::tempdir().unwrap();
    let (own, whole) = unharmed(job(folder.path())).await;
    let run = RejoinRun::new(job(folder.path())).await;
    let (killer, reported) = (WorkerKiller::new(20), Arc::new(RecordedEvents::default()));
    let mut first = run.start(0, vec![reported.clone(), Arc::new(SlowSteps(OnceLock::new())), killer.clone()]);
    // Ranks are not indices once the worker in between is lost.
    let (mut lost, mut third) = (run.start(1, Vec::new()), run.start(2, Vec::new()));
    killer.victim.set(lost.abort_handle()).expect("set once");
    assert!(join_in_time(&mut lost).await.is_err());
    until(async || !groups(&reported).is_empty()).await;
    let mut back = run.start(1, Vec::new());
    let summaries = [finished(&mut first).await, finished(&mut third).await, finished(&mut back).await];
    assert_eq!(groups(&reported), [vec![0, 2], vec![0, 1, 2]]);
    let first = &summaries[0];
    assert!(summaries.iter().all(|summary| (summary.steps, summary.evaluation) == (first.steps, first.evaluation)));
    assert!(first.samples >= whole.samples);
    run.check_no_row_is_skipped(&own);
    let scored = evaluate(&run.folder, &[], None).await.unwrap();
    assert!((scored.auc.unwrap() - auc(first)).abs() < 1e-5);
}

/// One worker leaves and two finish. Between them they train on every row once. Their summaries in this order.
async fn one_leaves(
    [leaver, first, other]: [&mut WorkerTask; 3],
    run: &RejoinRun,
    (own, whole): (&BTreeMap<u64, u32>, &RunSummary),
) -> [RunSummary; 3] {
    let [left, first, other] = [finished(leaver).await, finished(first).await, finished(other).await];
    let outcomes = [left.outcome, first.outcome, other.outcome];
    assert_eq!(outcomes, [TrainingOutcome::Left, TrainingOutcome::Finished, TrainingOutcome::Finished]);
    assert_eq!((first.samples, other.samples, first.epochs.len()), (whole.samples, whole.samples, whole.epochs.len()));
    run.check_rows_count_once(own);
    [left, first, other]
}

#[tokio::test(flavor = "multi_thread")]
async fn with_too_few_others_a_worker_that_is_asked_to_end_drains_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = job(folder.path());
    job.cluster.min_workers = Some(3);
    let run = RejoinRun::new(job).await;
    let shutdown = Shutdown::new();
    let mut first = run.start(0, vec![Arc::new(StopAfter(5, shutdown.clone()))]);
    let mut asked = run.start_changed(1, Vec::new(), |worker| Worker { shutdown, ..worker });
    let mut third = run.start(2, Vec::new());
    for worker in [&mut first, &mut asked, &mut third] {
        assert_eq!(finished(worker).await.outcome, TrainingOutcome::Interrupted);
    }
}

/// Says when so many steps have been made, and makes steps last, so that there is something left to train for a worker that comes.
struct StepPace {
    made: watch::Sender<u64>,
    pause: Duration,
}

impl StepPace {
    fn new(pause: Duration) -> Arc<Self> {
        Arc::new(Self { made: watch::Sender::new(0), pause })
    }

    async fn wait_for_step(&self, step: u64) {
        until(async || *self.made.borrow() >= step).await;
    }
}

impl Observer for StepPace {
    fn observe(&self, event: &WorkerEvent) {
        if let WorkerEvent::Step(report) = event {
            self.made.send_replace(report.step);
            std::thread::sleep(self.pause);
        }
    }
}

/// Of one worker, and up to three.
fn growing_job(folder: &Path, sets: &[&str]) -> Job {
    let mut job = job_with(folder, 1, sets);
    job.cluster.max_workers = Some(3);
    job
}

/// Invariant RK-5: workers 1 → 3 → 2, and each sample counts once.
#[tokio::test(flavor = "multi_thread")]
async fn workers_join_and_leave_while_the_run_trains_and_every_row_is_trained_on_once() {
    let folder = tempfile::tempdir().unwrap();
    let job = || growing_job(folder.path(), &["data.shuffle_rows=3000", "train.evaluate_every=40"]);
    let (own, whole) = unharmed(job()).await;
    let run = RejoinRun::new(job()).await;
    let (pace, reported) = (StepPace::new(Duration::from_millis(5)), Arc::new(RecordedEvents::default()));
    let mut first = run.start(0, vec![reported.clone(), pace.clone()]);
    pace.wait_for_step(20).await;
    assert_eq!(run.scale(3).await.unwrap().workers, 3);
    let (mut second, mut third) = (run.start(1, Vec::new()), run.start(2, Vec::new()));
    until(async || groups(&reported).last().is_some_and(|group| group.len() == 3)).await;
    let with_all = *pace.made.borrow();
    pace.wait_for_step(with_all + 20).await;
    run.scale(2).await.unwrap();
    let [left, first, _] = one_leaves([&mut third, &mut first, &mut second], &run, (&own, &whole)).await;
    assert_eq!(groups(&reported).last(), Some(&vec![0, 1]));
    assert!(left.steps < first.steps && first.steps < whole.steps, "{} of {} steps", first.steps, whole.steps);
    assert!((auc(&first) - auc(&whole)).abs() < 0.02, "{} and {}", auc(&first), auc(&whole));
}

/// Invariant RK-5 of asynchronous workers: workers 1 → 3 → 2, and each sample counts once.
#[tokio::test(flavor = "multi_thread")]
async fn asynchronous_workers_join_and_leave_while_the_run_trains_and_every_row_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    let job = || growing_job(folder.path(), &["train.mode=async", "data.shuffle_rows=3000", LONG_LEASE]);
    let (own, whole) = unharmed(job()).await;
    let run = RejoinRun::new(job()).await;
    let (gate, later, reported) = (StepGate::new(10), StepGate::new(20), Arc::new(RecordedEvents::default()));
    let mut first = run.start(0, vec![reported.clone(), gate.clone(), later.clone()]);
    gate.is_reached().await;
    assert_eq!(run.scale(3).await.unwrap().workers, 3);
    let (mut second, mut third) = (run.start(1, Vec::new()), run.start(2, Vec::new()));
    run.has_workers(3).await;
    gate.open();
    later.is_reached().await;
    run.scale(2).await.unwrap();
    later.open();
    let [_, first, second] = one_leaves([&mut third, &mut first, &mut second], &run, (&own, &whole)).await;
    assert_eq!(groups(&reported).last(), Some(&vec![0, 1]));
    assert!(second.steps == first.steps && groups(&reported).contains(&vec![0, 1, 2]), "{:?}", groups(&reported));
}

/// Lets a worker make no more steps after one of them, until it is opened.
struct StepGate {
    step: u64,
    is_reached: watch::Sender<bool>,
    is_open: watch::Sender<bool>,
}

impl StepGate {
    fn new(step: u64) -> Arc<Self> {
        Arc::new(Self { step, is_reached: watch::Sender::new(false), is_open: watch::Sender::new(false) })
    }

    async fn is_reached(&self) {
        until(async || *self.is_reached.borrow()).await;
    }

    fn open(&self) {
        self.is_open.send_replace(true);
    }
}

impl Observer for StepGate {
    fn observe(&self, event: &WorkerEvent) {
        if matches!(event, WorkerEvent::Step(report) if report.step >= self.step) {
            self.is_reached.send_replace(true);
            tokio::task::block_in_place(|| {
                let started = std::time::Instant::now();
                while !*self.is_open.borrow() && started.elapsed() < LATE {
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
        }
    }
}
