//! A worker is lost in mid-run and another process takes its place: the run goes on (invariant RK-3).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::OnceLock;

use tokio::task::{AbortHandle, JoinHandle};
use zagros_collective::{CollectiveError, CollectiveGroup, PendingSum, ProcessGroupConfig, Rendezvous};
use zagros_fakes::InProcess;
use zagros_protocol::control::{ScaleRequest, ScaleResponse};

use super::watched::PushTally;
use super::*;

/// Sees an id once an epoch where it is the row's own.
const USERS: &str = "features.categorical=['city', 'user']";

/// As [`rows`], each with an id of its own.
fn users(count: u64) -> String {
    let mut text = "click,age,income,city,user\n".to_owned();
    for row in 0..count {
        let mixed = row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let (age, city) = (mixed % 60, mixed / 60 % 17);
        let click = u64::from(age / 4 + city > 14);
        let _ = writeln!(text, "{click},{age},{},c{city},u{row}", mixed % 100_000);
    }
    text
}

pub(super) fn job_with(folder: &Path, workers: u32, sets: &[&str]) -> Job {
    let fixed = [USERS, "train.batch_size=500", "train.staleness=2", "cluster.lease_seconds=1", "cluster.servers=2"];
    let mut job = job_over(users(80_000), folder, &[&fixed[..], sets].concat());
    job.cluster.workers = workers;
    job
}

/// Ends another worker, as if its process were gone, after so many steps of those that it observes.
pub(super) struct WorkerKiller {
    after: u64,
    steps: AtomicU64,
    pub(super) victim: OnceLock<AbortHandle>,
}

impl WorkerKiller {
    pub(super) fn new(steps: u64) -> Arc<Self> {
        Arc::new(Self { after: steps, steps: AtomicU64::new(0), victim: OnceLock::new() })
    }
}

impl Observer for WorkerKiller {
    fn observe(&self, event: &WorkerEvent) {
        if matches!(event, WorkerEvent::Step(_)) && self.steps.fetch_add(1, Ordering::Relaxed) + 1 >= self.after {
            self.victim.get().expect("a victim").abort();
        }
    }
}

/// A worker of a run, as a task.
pub(super) type WorkerTask = JoinHandle<Result<RunSummary, WorkerError>>;

pub(super) struct RejoinRun {
    job: Job,
    cluster: WorkerCluster,
    pub(super) tally: PushTally,
    rendezvous: Arc<InProcess>,
    pub(super) folder: RunFolder,
}

impl RejoinRun {
    pub(super) async fn new(job: Job) -> Self {
        let (cluster, folder) = (WorkerCluster::start(&job).await, RunFolder::create(&job, &[]).unwrap());
        Self { job, cluster, tally: PushTally::default(), rendezvous: Arc::new(InProcess::default()), folder }
    }

    pub(super) fn start(&self, index: u32, observers: Vec<Arc<dyn Observer>>) -> WorkerTask {
        self.start_changed(index, observers, |worker| worker)
    }

    /// Starts a worker that differs from the others.
    pub(super) fn start_changed(
        &self,
        index: u32,
        observers: Vec<Arc<dyn Observer>>,
        change: impl FnOnce(Worker) -> Worker,
    ) -> WorkerTask {
        let worker = Worker {
            rendezvous: Some(self.rendezvous.clone()),
            connect: self.tally.watch(&self.cluster.connect),
            resume: ResumePoint::find_newest(&self.job, &self.folder).unwrap(),
            observer: Arc::new(ObserverList(observers)),
            ..self.cluster.worker_in(&self.folder, &self.job, index)
        };
        tokio::spawn(change(worker).run())
    }

    /// Asks for another number of workers, as `zagros scale` does.
    pub(super) async fn scale(&self, workers: u32) -> Result<ScaleResponse, Refusal> {
        self.cluster.control.scale(ScaleRequest { servers: 0, workers }).await
    }

    /// Waits until the newest process group has so many workers. The test has asked for a number of workers before.
    pub(super) async fn has_workers(&self, workers: u32) {
        let scale = async || self.cluster.control.status(StatusRequest {}).await.ok().and_then(|status| status.scale);
        until(async || scale().await.is_some_and(|scale| scale.workers == workers)).await;
    }

    /// Every row that only one id has was trained on once in each of two epochs.
    pub(super) fn check_rows_count_once(&self, own: &BTreeMap<u64, u32>) {
        let pushes = self.tally.by_id();
        let other = own.keys().filter(|id| pushes.get(*id) != Some(&2)).count();
        assert_eq!(other, 0, "{other} of {} rows were not trained on once an epoch", own.len());
    }

    /// Every such row was trained on in each of two epochs.
    pub(super) fn check_no_row_is_skipped(&self, own: &BTreeMap<u64, u32>) {
        let pushes = self.tally.by_id();
        let skipped = own.keys().filter(|id| pushes.get(*id).is_none_or(|pushes| *pushes < 2)).count();
        assert_eq!(skipped, 0, "of {} rows", own.len());
    }

    /// Kills one of all workers after a step of the run, and starts it again; the summaries by index, what the others
    /// reported, and how often each id was trained on.
    async fn with_loss_of(&self, victim: u32, step: u64) -> (Vec<RunSummary>, Arc<RecordedEvents>, BTreeMap<u64, u32>) {
        let (killer, reported) = (WorkerKiller::new(step), Arc::new(RecordedEvents::default()));
        let teller = u32::from(victim == 0);
        // Each asynchronous worker makes steps of its own, as many as it gets splits: those of one may never be enough.
        let each = self.job.train.mode == zagros_job::Mode::Async;
        let mut workers: Vec<_> = (0..self.job.cluster.workers)
            .map(|index| {
                let mut observers: Vec<Arc<dyn Observer>> = Vec::new();
                if index == teller {
                    observers.push(reported.clone());
                }
                if index == teller || each {
                    observers.push(killer.clone());
                }
                self.start(index, observers)
            })
            .collect();
        let lost = &mut workers[victim as usize];
        killer.victim.set(lost.abort_handle()).expect("set once");
        let ended = join_in_time(lost).await.map(|ended| ended.map(|summary| summary.steps));
        assert!(ended.is_err(), "the worker ended before it was lost: {ended:?}");
        // Another process in the place of a worker whose end was seen: it need not wait for the lease of that one.
        workers[victim as usize] =
            self.start_changed(victim, Vec::new(), |worker| Worker { supersede: true, ..worker });
        let mut summaries = Vec::new();
        for worker in &mut workers {
            summaries.push(finished(worker).await);
        }
        (summaries, reported, self.tally.by_id())
    }
}

pub(super) async fn until(is_so: impl AsyncFn() -> bool) {
    let asking = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LATE, asking).await.expect("what the test waits for does not happen");
}

pub(super) async fn join_in_time<T>(task: &mut JoinHandle<T>) -> Result<T, tokio::task::JoinError> {
    tokio::time::timeout(LATE, task).await.expect("a worker hangs")
}

/// The summary of a worker whose run ends well.
pub(super) async fn finished(task: &mut WorkerTask) -> RunSummary {
    join_in_time(task).await.expect("no panic").expect("the run ends well")
}

/// A lease that no worker of a busy machine loses. With a short one a worker that gets no processor for a second is lost, and
/// fenced where another one reads its splits; the test starts no third one in its place, and the others wait for their timeout.
pub(super) const LONG_LEASE: &str = "cluster.lease_seconds=60";

/// How often the ids that only one row has are trained on in a run without a loss: those and the epochs.
pub(super) async fn unharmed(job: Job) -> (BTreeMap<u64, u32>, RunSummary) {
    let epochs = job.train.epochs;
    let run = RejoinRun::new(job).await;
    let workers: Vec<_> = (0..run.job.cluster.workers).map(|index| run.start(index, Vec::new())).collect();
    let mut summaries = Vec::new();
    for mut worker in workers {
        summaries.push(finished(&mut worker).await);
    }
    let mut own = run.tally.by_id();
    own.retain(|_, pushes| *pushes == epochs);
    (own, summaries.swap_remove(0))
}

/// Loses a worker after a step, and starts it again. All end alike, no row is skipped, and at most so many are trained on once more.
async fn check_loss(
    job: Job,
    (victim, step): (u32, u64),
    own: &BTreeMap<u64, u32>,
    most_repeated: u64,
) -> (RunSummary, Vec<WorkerEvent>) {
    let run = RejoinRun::new(job).await;
    let (mut summaries, reported, pushes) = run.with_loss_of(victim, step).await;
    let first = summaries.remove(0);
    let end = |summary: &RunSummary| (summary.steps, summary.samples, summary.evaluation, summary.epochs.len());
    for summary in &summaries {
        assert_eq!(end(summary), end(&first), "lost {victim} after {step}");
    }
    assert_eq!(first.epochs.len(), 2);
    let twice: u32 = own.keys().filter_map(|id| pushes.get(id)).map(|pushes| pushes.saturating_sub(2)).sum();
    println!("worker {victim} lost after step {step}: {} samples, {twice} rows trained on once more", first.samples);
    run.check_no_row_is_skipped(own);
    assert!(u64::from(twice) <= most_repeated, "{twice} rows were trained on once more");
    let scored = evaluate(&run.folder, &[], None).await.unwrap();
    assert!((scored.auc.unwrap() - auc(&first)).abs() < 1e-5, "the saved model is another one");
    let reported = reported.0.lock().unwrap().clone();
    (first, reported)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_worker_comes_back_and_no_row_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let job = || job_with(folder.path(), 2, &["data.shuffle_rows=3000", "train.evaluate_every=30", LONG_LEASE]);
    let (own, whole) = unharmed(job()).await;
    assert!(own.len() > 60_000, "{}", own.len());
    // In the first epoch, around an evaluation, and in the second epoch.
    let a_epoch = whole.steps / 2;
    for (victim, step) in [(1, 20), (1, 30), (1, a_epoch + 5), (0, 25), (0, a_epoch + 5)] {
        // At most what one worker reads of an epoch.
        let (first, reported) = check_loss(job(), (victim, step), &own, whole.samples / 2).await;
        assert!(first.samples >= whole.samples);
        assert!((auc(&first) - auc(&whole)).abs() < 0.02, "AUC {} and {}", auc(&first), auc(&whole));
        let lost = reported.iter().find_map(|event| match event {
            WorkerEvent::WorkerLost { workers, .. } => Some(workers.clone()),
            _ => None,
        });
        assert_eq!(lost, Some(format!("dense worker {victim}")));
        assert!(reported.iter().any(|event| generation(event) == Some(2)));
    }
}

/// Invariant DP-6: learning rate, rounding and age of rows go by the run's step, not by how long a worker has been in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_takes_the_place_of_a_lost_one_pushes_at_the_step_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let run = RejoinRun::new(job_with(folder.path(), 2, &["data.shuffle_rows=3000", LONG_LEASE])).await;
    let (summaries, _, _) = run.with_loss_of(1, 30).await;
    let pushes = run.tally.pushes();
    let pushes_of = |incarnation: u32| pushes.iter().filter(move |push| push.incarnation == incarnation);
    let first = pushes_of(2).next().expect("the second process pushes");
    println!("the second process begins at batch {} and step {}", first.seq, first.step);
    // The step after which the other ended, and those that were made until that was noticed.
    assert!(first.step >= 30 && first.seq >= 30, "{first:?}");
    // Each step of the run has pushes, at most one of each worker to each server.
    let all: BTreeMap<u64, u32> = pushes.iter().fold(BTreeMap::new(), |mut all, push| {
        *all.entry(push.step).or_default() += 1;
        all
    });
    assert_eq!(all.len() as u64, summaries[0].steps);
    assert!(all.values().all(|parts| *parts <= 4), "{all:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_three_workers_two_go_on_with_the_third_and_the_best_state_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let sets = ["data.validation_share=0.1", "train.early_stop={patience=5}", "train.epochs=3", "output.keep_best=2"];
    let sets = [&sets[..], &[LONG_LEASE]].concat();
    let run = RejoinRun::new(job_with(folder.path(), 3, &sets)).await;
    let (summaries, _, _) = run.with_loss_of(0, 60).await;
    let first = &summaries[0];
    assert!(summaries.iter().all(|summary| (summary.steps, summary.evaluation) == (first.steps, first.evaluation)));
    let choice = first.choice.as_deref().unwrap_or_default();
    assert!(choice.contains("which is what is saved"), "{choice}");
    let scored = evaluate(&run.folder, &[], None).await.unwrap();
    assert!((scored.auc.unwrap() - auc(first)).abs() < 1e-5);
}

/// Where the second worker does not hear the end of one call, to which all brought their part: as when a connection
/// breaks late. Only the first group has that.
struct DeafMember {
    rendezvous: Arc<InProcess>,
    at: u32,
}

/// Its end of the group; gone once it has not heard.
struct DeafEnd {
    group: Option<Box<dyn CollectiveGroup>>,
    left: u32,
}

impl Rendezvous for DeafMember {
    fn address(&self) -> &str {
        self.rendezvous.address()
    }

    fn transport(&self) -> &'static str {
        self.rendezvous.transport()
    }

    fn form_group(&self, place: &ProcessGroupConfig) -> Result<Box<dyn CollectiveGroup>, CollectiveError> {
        let left = if place.generation == 1 { self.at } else { u32::MAX };
        Ok(Box::new(DeafEnd { group: Some(self.rendezvous.form_group(place)?), left }))
    }
}

impl DeafEnd {
    fn group(&mut self) -> Result<&mut Box<dyn CollectiveGroup>, CollectiveError> {
        let broken = CollectiveError::Broken {
            call: "an all-reduce",
            waited: Duration::ZERO,
            reason: "as the test wants".to_owned(),
        };
        self.group.as_mut().ok_or(broken)
    }
}

impl CollectiveGroup for DeafEnd {
    fn rank(&self) -> usize {
        1
    }

    fn world_size(&self) -> usize {
        2
    }

    fn start_all_reduce_sum(&mut self, values: Vec<f32>) -> Result<PendingSum, CollectiveError> {
        self.group()?.start_all_reduce_sum(values)
    }

    fn wait(&mut self, pending: PendingSum) -> Result<Vec<f32>, CollectiveError> {
        let sums = self.group()?.wait(pending)?;
        self.left -= 1;
        if self.left == 0 {
            self.group = None;
            self.group()?;
        }
        Ok(sums)
    }

    fn reduce_scatter_sum(&mut self, values: Vec<f32>, bounds: &[usize]) -> Result<Vec<f32>, CollectiveError> {
        self.group()?.reduce_scatter_sum(values, bounds)
    }

    fn all_gather_parts(&mut self, values: Vec<f32>, bounds: &[usize]) -> Result<Vec<f32>, CollectiveError> {
        self.group()?.all_gather_parts(values, bounds)
    }

    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.group()?.all_gather(mine)
    }
}

/// Invariant RK-3: no worker is lost, and a step may be made by one worker and not by the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_only_one_worker_knows_to_be_made_is_made_once() {
    let folder = tempfile::tempdir().unwrap();
    // Both have rows, for splits are theirs.
    let job = || job_with(folder.path(), 2, &["data.shuffle_rows=3000"]);
    let (own, whole) = unharmed(job()).await;
    // After one call before training, each step has a call to agree on it and one for its sums.
    for (at, call) in [(40, "agreeing on a step"), (41, "the sums of a step")] {
        let run = RejoinRun::new(job()).await;
        let deaf = DeafMember { rendezvous: run.rendezvous.clone(), at };
        let reported = Arc::new(RecordedEvents::default());
        let mut first = run.start(0, vec![reported.clone()]);
        let mut second =
            run.start_changed(1, Vec::new(), |worker| Worker { rendezvous: Some(Arc::new(deaf)), ..worker });
        let (first, second) = (finished(&mut first).await, finished(&mut second).await);
        assert_eq!((first.samples, first.evaluation), (second.samples, second.evaluation), "{call}");
        assert_eq!(first.samples, whole.samples, "{call}");
        run.check_rows_count_once(&own);
        let reported = reported.0.lock().unwrap();
        assert_eq!(reported.iter().filter(|event| generation(event) == Some(2)).count(), 1, "{call}");
    }
}

/// Invariant AS-2. The others train on, and the barriers of the run are those of all again.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_asynchronous_worker_comes_back_and_no_row_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let sets = ["train.mode=async", "data.shuffle_rows=3000", "checkpoint.every_steps=30", LONG_LEASE];
    let job = || job_with(folder.path(), 3, &sets);
    let (own, whole) = unharmed(job()).await;
    assert!(own.len() > 60_000, "{}", own.len());
    // The second one in the second epoch.
    for (victim, step) in [(1, 15), (2, whole.steps / 2 + 15), (0, 30)] {
        let (_, reported) = check_loss(job(), (victim, step), &own, whole.samples / 3).await;
        let groups: Vec<u64> = reported.iter().filter_map(generation).collect();
        assert!(!groups.is_empty() && groups.is_sorted(), "{groups:?}");
    }
}

fn generation(event: &WorkerEvent) -> Option<u64> {
    if let WorkerEvent::Regrouped { generation, .. } = event { Some(*generation) } else { None }
}
