//! Runs that are interrupted and go on: in mode `sync` they end as if nothing had happened, also where epochs begin with new rows
//! (`train.reset_embeddings`), together with everything else that has a state of its own.
//!
//! What a run leaves behind when it ends, and what is reported of its checkpoints meanwhile.

use futures::future::join_all;
use tokio::runtime::Handle;
use zagros_collective::Rendezvous;
use zagros_fakes::InProcess;
use zagros_model::Backend;
use zagros_network::GemmKernel;
use zagros_protocol::RefusalKind;
use zagros_torch::TorchKernel;

use super::watched::ShardWatch;
use super::*;

/// Everything that has a state: dropout, Adam, momentum of rows by frequency counts.
pub(super) const STATES: [&str; 6] = [
    "train.mode=sync",
    "model.dropout=0.25",
    "optimizer.kind=adam",
    "embedding.optimizer={kind='adam'}",
    "embedding.admission={kind='count', min_count=2}",
    "train.schedule={kind='cosine', warmup=10, decay=100}",
];

/// With shuffled windows over several splits.
fn state_sets<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&STATES[..], &["train.evaluate_every=20", "data.shuffle_rows=100"], more].concat()
}

#[derive(Clone, Copy)]
pub(super) enum RunBreak {
    Never,
    /// Asked to, after a step of the first worker.
    Tidy(u64),
    /// Only the first worker was asked to.
    OfOne(u64),
    /// Gone in the middle of what follows a step; by then a checkpoint is complete.
    Sudden(u64),
}

/// Lets no step be over until a checkpoint is complete, and then has everything gone.
struct GoneAfter {
    step: u64,
    has_checkpoint: AtomicU64,
    gone: Shutdown,
}

impl Observer for GoneAfter {
    fn observe(&self, event: &WorkerEvent) {
        match event {
            WorkerEvent::Checkpoint { step, .. } => self.has_checkpoint.store(*step, Ordering::Release),
            WorkerEvent::Step(report) if report.step == self.step => {
                tokio::task::block_in_place(|| {
                    while self.has_checkpoint.load(Ordering::Acquire) == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                });
                self.gone.request();
            }
            _ => {}
        }
    }
}

pub(super) struct EndedRun {
    pub(super) summary: Option<RunSummary>,
    pub(super) outcomes: Vec<TrainingOutcome>,
    /// Step, and the bits of its loss and of the measures over the last samples.
    pub(super) losses: Vec<(u64, [u64; 4])>,
    pub(super) run: RunFolder,
    pub(super) checkpoints: usize,
}

fn bits(report: &StepReport) -> [u64; 4] {
    let bits = |value: Option<f64>| value.map_or(u64::MAX, f64::to_bits);
    [report.loss.to_bits(), bits(report.auc_so_far), bits(report.logloss_recent), bits(report.calibration)]
}

fn job_with(folder: &Path, more: &[&str]) -> Job {
    job_over(rows(4000), folder, &state_sets(more))
}

/// Runs a job in a fresh cluster; goes on from the newest checkpoint of `run`, if it is given one that has any.
pub(super) async fn run(job: Job, run: Option<&RunFolder>, how: RunBreak) -> EndedRun {
    let cluster = WorkerCluster::start(&job).await;
    let resume = run.and_then(|run| ResumePoint::find_newest(&job, run).unwrap());
    let run = run.cloned().unwrap_or_else(|| RunFolder::create(&job, &[]).unwrap());
    let (rendezvous, recording) = (Arc::new(InProcess::default()), Arc::new(RecordedEvents::default()));
    let shutdown = Shutdown::new();
    let gone = Shutdown::new();
    let workers = (0..job.cluster.workers).map(|index| {
        let (mut observers, leads): (Vec<Arc<dyn Observer>>, _) = (vec![recording.clone()], index == 0);
        match how {
            RunBreak::Never => {}
            RunBreak::Tidy(step) | RunBreak::OfOne(step) => observers.push(Arc::new(StopAfter(step, shutdown.clone()))),
            RunBreak::Sudden(step) => {
                let (has_checkpoint, gone) = (AtomicU64::new(0), gone.clone());
                observers.push(Arc::new(GoneAfter { step, has_checkpoint, gone }));
            }
        }
        let worker = Worker {
            rendezvous: (job.cluster.workers > 1).then(|| rendezvous.clone() as Arc<dyn Rendezvous>),
            observer: if leads { Arc::new(ObserverList(observers)) } else { Arc::new(ObserverList::default()) },
            resume: resume.clone().filter(|_| leads),
            shutdown: if leads || !matches!(how, RunBreak::OfOne(_)) { shutdown.clone() } else { Shutdown::new() },
            ..cluster.worker_in(&run, &job, index)
        };
        worker.run()
    });
    let ended = tokio::select! {
        ended = tokio::time::timeout(LATE, join_all(workers)) => ended.expect("the workers hang"),
        () = gone.requested() => Vec::new(),
    };
    let summaries: Vec<RunSummary> = ended.into_iter().map(Result::unwrap).collect();
    let outcomes = summaries.iter().map(|summary| summary.outcome).collect();
    let losses = recording.steps().iter().map(|report| (report.step, bits(report))).collect();
    let is_checkpoint = |event: &&WorkerEvent| matches!(event, WorkerEvent::Checkpoint { .. });
    let checkpoints = recording.0.lock().unwrap().iter().filter(is_checkpoint).count();
    EndedRun { summary: summaries.into_iter().next(), outcomes, losses, run, checkpoints }
}

fn same_end(whole: &EndedRun, gone_on: &EndedRun) {
    let (whole, gone_on) = (whole.summary.as_ref().unwrap(), gone_on.summary.as_ref().unwrap());
    let end = |summary: &RunSummary| {
        (summary.steps, summary.samples, summary.rows, summary.evaluation, summary.loss.to_bits())
    };
    assert_eq!(end(gone_on), end(whole));
    assert_eq!(gone_on.epochs, whole.epochs);
}

/// Invariant CK-2. The break is in the first epoch, in the second, and right at the end of the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_asked_to_stop_goes_on_bit_by_bit() {
    let folder = tempfile::tempdir().unwrap();
    let whole = run(job_with(folder.path(), &[]), None, RunBreak::Never).await;
    let steps_of_an_epoch = whole.losses.len() as u64 / 2;
    assert!(steps_of_an_epoch > 40, "{steps_of_an_epoch} steps an epoch");
    for step in [17, 20, steps_of_an_epoch, steps_of_an_epoch + 9] {
        let first = run(job_with(folder.path(), &[]), None, RunBreak::Tidy(step)).await;
        // A batch that was looked up already is trained on, too.
        let made = first.losses.len();
        assert!((step..=step + 1).contains(&(made as u64)), "{made} steps, asked to stop after {step}");
        assert_eq!(first.losses, whole.losses[..made]);
        // On another number of servers and with other threads, for rows and batches do not depend on them.
        let job = job_with(folder.path(), &["cluster.servers=3", "data.threads=2"]);
        let second = run(job, Some(&first.run), RunBreak::Never).await;
        assert_eq!(second.losses, whole.losses[made..], "after step {made}");
        same_end(&whole, &second);
        let left = ResumePoint::find_newest(&job_with(folder.path(), &[]), &second.run).unwrap();
        assert!(left.is_none(), "a finished run leaves checkpoints behind");
    }
}

/// Libraries of products differ by the last bits, which mode `sync` promises.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_on_with_the_products_that_it_began_with() {
    let folder = tempfile::tempdir().unwrap();
    let whole = run(job_with(folder.path(), &[]), None, RunBreak::Never).await;
    let first = run(job_with(folder.path(), &[]), None, RunBreak::Tidy(17)).await;
    let made = first.losses.len();
    let point = ResumePoint::find_newest(&job_with(folder.path(), &[]), &first.run).unwrap();
    let (libtorch, gemm) = (zagros_torch::backend(), Backend::default());
    assert_ne!(libtorch.kernels[0].name(), gemm.kernels[0].name());
    let resume = async |backend: Backend, sets: &[&str]| {
        let (job, recording) = (job_with(folder.path(), sets), Arc::new(RecordedEvents::default()));
        let cluster = WorkerCluster::start(&job).await;
        let (observer, resume) = (recording.clone(), point.clone());
        let worker = Worker { backend, observer, resume, ..cluster.worker_in(&first.run, &job, 0) };
        let ended = tokio::time::timeout(LATE, worker.run()).await.expect("the worker hangs");
        ended.map(|_| recording.steps().iter().map(|report| (report.step, bits(report))).collect::<Vec<_>>())
    };
    let refused = resume(gemm, &[]).await.unwrap_err();
    assert!(refused.to_string().contains("mode sync promises the same bits"), "{refused}");
    // It has both, and would begin a run with the other one.
    let both = Backend { kernels: &[&GemmKernel, &TorchKernel], ..libtorch };
    assert_eq!(resume(both, &[]).await.unwrap(), whole.losses[made..]);
}

/// Beyond the samples of a file's content, of which a smaller file has none.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_does_not_go_on_over_other_rows_of_as_many_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let text = rows(120_000);
    assert!(text.len() > 2 << 20, "{} bytes", text.len());
    let sets = state_sets(&["train.evaluate_every=100000"]);
    let job = |text: &str| job_over(text.to_owned(), folder.path(), &sets);
    let first = run(job(&text), None, RunBreak::Tidy(900)).await;
    // One sample of 64 KiB in each sixteenth: this is between two of them.
    let from = text[text.len() / 2 - (16 << 10)..].find('\n').unwrap() + text.len() / 2 - (16 << 10) + 1;
    let (before, changed) = (&text[..from], text[from..from + (32 << 10)].replace(",c1", ",c7"));
    let other = format!("{before}{changed}{}", &text[from + (32 << 10)..]);
    assert!(other.len() == text.len() && other != text);
    let error = resume_run(&job(&other), &first.run).await.unwrap_err().to_string();
    assert!(error.contains("the data has changed since: the rows at bytes") && error.contains("--fresh"), "{error}");
}

/// No sample is dropped or trained twice where the number of workers is another one.
#[tokio::test(flavor = "multi_thread")]
async fn more_or_fewer_workers_go_on_with_what_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let rows = rows(40_000);
    for mode in ["train.mode=sync", "train.mode=hybrid"] {
        let job = |workers: u32| {
            let workers = format!("cluster.workers={workers}");
            job_over(rows.clone(), folder.path(), &[mode, "train.batch_size=250", "data.shuffle_rows=600", &workers])
        };
        let whole = run(job(1), None, RunBreak::Never).await.summary.unwrap();
        for (before, after) in [(2, 1), (3, 2), (1, 3)] {
            let first = run(job(before), None, RunBreak::Tidy(30)).await;
            assert_eq!(first.summary.unwrap().outcome, TrainingOutcome::Interrupted);
            let second = run(job(after), Some(&first.run), RunBreak::Never).await.summary.unwrap();
            assert_eq!((second.samples, second.rows), (whole.samples, whole.rows), "{mode}: {before} → {after}");
            let (whole, found) = (auc(&whole), auc(&second));
            assert!((whole - found).abs() < 0.03, "{mode}: {before} → {after}: {whole}, {found}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn early_stopping_goes_on_and_remembers_the_best() {
    let folder = tempfile::tempdir().unwrap();
    let sets = ["data.validation_share=0.2", "train.early_stop={patience=3}", "train.epochs=6", "output.keep_best=2"];
    let whole = run(job_with(folder.path(), &sets), None, RunBreak::Never).await;
    let stop = whole.losses.len() as u64 - 25;
    let first = run(job_with(folder.path(), &sets), None, RunBreak::Tidy(stop)).await;
    let second = run(job_with(folder.path(), &sets), Some(&first.run), RunBreak::Never).await;
    same_end(&whole, &second);
    let choice = |ended: &EndedRun| ended.summary.as_ref().map(|summary| (summary.choice.clone(), summary.model_step));
    assert_eq!(choice(&second), choice(&whole));
}

#[tokio::test(flavor = "multi_thread")]
async fn data_that_has_changed_is_refused_and_a_disk_that_fails_stops_no_training() {
    let folder = tempfile::tempdir().unwrap();
    let first = run(job_with(folder.path(), &[]), None, RunBreak::Tidy(9)).await;
    let job = job_over(rows(4001), folder.path(), &state_sets(&[]));
    let point = ResumePoint::find_newest(&job, &first.run).unwrap().expect("a checkpoint");
    let changes: Vec<String> = point.changed_keys(&job).iter().map(ToString::to_string).collect();
    assert!(changes.is_empty(), "{changes:?}");
    let refused = resume_run(&job, &first.run).await.unwrap_err();
    assert_eq!(refused.exit_class(), ExitClass::Data);
    assert!(refused.to_string().contains("the data has changed since"), "{refused}");

    let job = job_with(folder.path(), &["checkpoint.every_steps=5"]);
    let cluster = WorkerCluster::start(&job).await;
    let recording = Arc::new(RecordedEvents::default());
    let worker = cluster.worker(&job, recording.clone());
    let in_the_way = worker.folder.as_ref().unwrap().checkpoints_folder();
    std::fs::write(&in_the_way, "a file where checkpoints should be").unwrap();
    assert_eq!(worker.run().await.unwrap().outcome, TrainingOutcome::Finished);
    assert!(!recording.0.lock().unwrap().iter().any(|event| matches!(event, WorkerEvent::Checkpoint { .. })));
}

/// Epochs that begin with new rows.
const RESET_SETS: [&str; 10] = [
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

fn job_with_resets(folder: &Path, more: &[&str]) -> Job {
    job_over(rows(4000), folder, &[&RESET_SETS[..], &["data.shuffle_rows=100"], more].concat())
}

pub(super) fn learned(ended: &EndedRun) -> (u64, Evaluation, Vec<u8>) {
    let summary = ended.summary.as_ref().unwrap();
    let dense = std::fs::read(ended.run.model_folder().join("dense.safetensors")).unwrap();
    (summary.rows, summary.evaluation.unwrap(), dense)
}

/// Invariant CK-2, and DP-5 for the number of servers.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_runs_end_as_the_whole_run_bit_by_bit() {
    let folder = tempfile::tempdir().unwrap();
    for workers in ["cluster.workers=1", "cluster.workers=2"] {
        let whole = run(job_with_resets(folder.path(), &[workers]), None, RunBreak::Never).await;
        let steps = whole.losses.len() as u64;
        assert!(steps.is_multiple_of(3), "{steps} steps in three epochs");
        let spread = run(job_with_resets(folder.path(), &[workers, "cluster.servers=3"]), None, RunBreak::Never).await;
        assert_eq!(learned(&spread), learned(&whole), "{workers}: three servers");
        // Within the first epoch, at the end of one, and just after rows were removed.
        for step in [steps / 6, steps / 3, steps / 3 + 1, steps * 5 / 6] {
            let first = run(job_with_resets(folder.path(), &[workers]), None, RunBreak::Tidy(step)).await;
            let second = run(job_with_resets(folder.path(), &[workers]), Some(&first.run), RunBreak::Never).await;
            assert_eq!(learned(&second), learned(&whole), "{workers}: interrupted after step {step}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_begin_anew_and_the_network_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let first_losses = async |more: &[&str]| {
        let ended = run(job_with_resets(folder.path(), more), None, RunBreak::Never).await;
        let steps = ended.losses.len() / 3;
        [0, steps, 2 * steps].map(|step| f64::from_bits(ended.losses[step].1[0]))
    };
    let (anew, kept) = (first_losses(&[]).await, first_losses(&["train.reset_embeddings=false"]).await);
    assert_eq!(anew[0].to_bits(), kept[0].to_bits());
    // The rows of the epoch before know the samples; new rows do not, and the network does better than its first weights.
    assert!(kept[1] < anew[1] && anew[1] < anew[0], "{anew:?} with new rows, {kept:?} with rows that are kept");
}

/// A shard that saves, and cannot say what it holds.
struct MuteShard;

impl ShardWatch for MuteShard {
    fn refuses_to_describe(&self) -> Option<Refusal> {
        Some(Refusal::new(RefusalKind::Internal, "as the test wants"))
    }
}

const CHECKPOINTS: [&str; 3] = ["train.mode=sync", "checkpoint.every_steps=10", "checkpoint.every_seconds=0"];

/// Invariant CK-5: the model is there, the summary is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_fails_after_the_save_takes_no_checkpoint_away() {
    let folder = tempfile::tempdir().unwrap();
    let job = job(folder.path(), &CHECKPOINTS);
    let cluster = WorkerCluster::start(&job).await;
    let inner = Arc::clone(&cluster.connect);
    let connect: Connect = Arc::new(move |entry| {
        inner(entry).map(|shard| Arc::new(WatchedShard::new(shard, MuteShard)) as Arc<dyn Shard>)
    });
    let worker = Worker { connect, ..cluster.worker(&job, Arc::new(ObserverList::default())) };
    let run = worker.folder.clone().unwrap();
    let failed = tokio::time::timeout(LATE, worker.run()).await.expect("the run hangs").unwrap_err();
    assert!(failed.to_string().contains("could not describe its tables"), "{failed}");
    assert!(run.model_folder().join("manifest.json").is_file() && !run.is_complete());
    assert!(resume_run(&job, &run).await.unwrap().complete && run.is_complete());
    assert!(ResumePoint::find_newest(&job, &run).unwrap().is_none());
}

/// States that are kept for the choice of the model go last too, where no model is saved.
#[tokio::test(flavor = "multi_thread")]
async fn kept_states_are_there_until_the_summary_is() {
    let folder = tempfile::tempdir().unwrap();
    let sets = ["data.validation_share=0.2", "train.early_stop={}", "output.save_model=false"];
    let job = job(folder.path(), &[&CHECKPOINTS[..], &sets].concat());
    let cluster = WorkerCluster::start(&job).await;
    let worker = cluster.worker(&job, Arc::new(ObserverList::default()));
    let run = worker.folder.clone().unwrap();
    std::fs::create_dir(run.summary_file()).unwrap();
    let failed = tokio::time::timeout(LATE, worker.run()).await.expect("the run hangs").unwrap_err();
    assert_eq!(failed.exit_class(), ExitClass::Storage, "{failed}");
    let kept = std::fs::read_dir(run.checkpoints_folder()).unwrap().map(|entry| entry.unwrap().file_name());
    let kept: Vec<String> = kept.map(|name| name.into_string().unwrap()).collect();
    assert!(kept.iter().any(|name| name.starts_with("step-")), "{kept:?}");
    std::fs::remove_dir(run.summary_file()).unwrap();
    resume_run(&job, &run).await.unwrap();
    assert!(run.is_complete() && !run.checkpoints_folder().exists());
}

/// Holds training up after a step until the coordinator knows of the checkpoint before it.
struct UntilReported {
    control: Arc<LocalCoordinator>,
    reported: AtomicU64,
}

impl UntilReported {
    fn newest(&self) -> u64 {
        let status = Handle::current().block_on(self.control.status(StatusRequest {})).unwrap();
        let steps = status.members.iter().filter_map(|member| member.progress.as_ref());
        steps.map(|progress| progress.checkpoint_step).max().unwrap_or_default()
    }
}

impl Observer for UntilReported {
    fn observe(&self, event: &WorkerEvent) {
        // The next would be cut after step 20.
        if matches!(event, WorkerEvent::Step(report) if report.step == 15) {
            tokio::task::block_in_place(|| {
                let deadline = std::time::Instant::now() + LATE / 4;
                while self.newest() == 0 && std::time::Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(5));
                }
                self.reported.store(self.newest(), Ordering::Release);
            });
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_is_reported_once_it_is_there_and_not_with_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let job = job(folder.path(), &[&CHECKPOINTS[..], &["cluster.lease_seconds=1"]].concat());
    let cluster = WorkerCluster::start(&job).await;
    let observer = Arc::new(UntilReported { control: cluster.control.clone(), reported: AtomicU64::new(0) });
    let worker = cluster.worker(&job, observer.clone());
    worker.run().await.unwrap();
    assert_eq!(observer.reported.load(Ordering::Acquire), 10);
}
