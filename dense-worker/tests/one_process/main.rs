//! A worker, a coordinator and embedding servers in one process: the real ones, with calls instead of sockets.

/// Control planes of tests that change one call: the name, these calls of a [`ControlPlane`] and the given ones go to `self.control`, the
/// coordinator that they stand before.
macro_rules! delegate_calls {
    (@each $($method:ident($request:ident) -> $response:ident),* $(,)?) => {$(
        fn $method(&self, request: $request) -> ControlAnswer<'_, $response> {
            self.control.$method(request)
        }
    )*};
    ($($others:tt)*) => {
        fn name(&self) -> &str {
            self.control.name()
        }

        delegate_calls! {
            @each
            join(JoinRequest) -> JoinResponse,
            heartbeat(HeartbeatRequest) -> HeartbeatResponse,
            leave(LeaveRequest) -> LeaveResponse,
            placement(PlacementRequest) -> PlacementResponse,
            group(GroupRequest) -> GroupResponse,
            position(PositionRequest) -> PositionResponse,
            transforms(TransformsRequest) -> TransformsResponse,
            complete(CompleteRequest) -> CompleteResponse,
            report_evaluation(ReportEvaluationRequest) -> ReportEvaluationResponse,
            status(StatusRequest) -> StatusResponse,
            $($others)*
        }
    };
}

mod asynchronous;
mod books;
mod elastic;
mod golden;
mod pooling;
mod rejoin;
mod resume;
mod start_model;
mod streamed;
mod watched;
mod workers;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus::Registry;
use watched::{PayloadCounter, WatchedShard};
use zagros_coordinator::LocalCoordinator;
use zagros_coordinator_client::{ControlPlane, Membership, wait_for_placement};
use zagros_dense_worker::{
    Evaluation, ExitClass, Observer, ObserverList, ResumePoint, RunFolder, RunSummary, ScoringCommand, StepReport,
    Worker, WorkerError, WorkerEvent, WorkerInput,
};
use zagros_embedding_client::{Connect, Shard};
use zagros_embedding_server::{EmbeddingService, LocalShard};
use zagros_ingest::{Batch, CategoryIds};
use zagros_job::{Job, Overrides, Scaling};
use zagros_plumbing::Shutdown;
use zagros_protocol::control::{JoinRequest, Role, StatusRequest};
use zagros_protocol::{BucketMap, Generation, Refusal, ServerIndex};
use zagros_scoring::TrainingOutcome;
use zagros_store::Folder;
use zagros_zip::ZipEq;

/// Long enough for a busy machine; every run here takes a second or so.
const LATE: Duration = Duration::from_secs(120);

const JOB: &str = r#"
name = "one-process"
[data]
format = "delimited"
train = "train.csv"
test_fraction = 0.2
threads = 1
[features]
label = { column = "click", positive = ["1"], negative = ["0"] }
numeric = ["age", { column = "income", log = true, standardise = true }]
categorical = ["city", { column = "tags", separator = "|", pooling = "mean" }, { column = "liked", table = "tags", separator = "|" }]
[embedding]
dim = 4
[model]
kind = "dlrm"
bottom = [8]
top = [16]
[optimizer]
lr = 0.01
[train]
batch_size = 64
epochs = 2
staleness = 0
seed = 5
threads = 1
[output]
folder = "runs"
"#;

const SEQUENCES: &str = r#"[features]
label = { column = "click", positive = ["1"], negative = ["0"] }
numeric = ["age"]
categorical = ["city", { column = "liked", table = "city", separator = "|", sequence = { length = 3 } }]
"#;

/// Rows whose label depends on all kinds of columns.
fn rows(count: u64) -> String {
    let mut text = "click,age,income,city,tags,liked\n".to_owned();
    for row in 0..count {
        let mixed = row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let (age, city, tag) = (mixed % 60, mixed / 60 % 17, mixed / 1020 % 11);
        let click = u64::from(age / 4 + city + 2 * tag > 24);
        let liked = if row % 3 == 0 { String::new() } else { format!("{}|{tag}", row % 11) };
        let _ = writeln!(text, "{click},{age},{},c{city},{tag}|{},{liked}", mixed % 100_000, mixed % 5);
    }
    text
}

fn job(folder: &Path, sets: &[&str]) -> Job {
    job_over(rows(2000), folder, sets)
}

fn job_over(rows: String, folder: &Path, sets: &[&str]) -> Job {
    job_of(JOB, rows, folder, sets)
}

/// The job on another network, with these features if any are given.
fn network_text(features: Option<&str>, network: &str) -> String {
    let text = JOB.replace("kind = \"dlrm\"\nbottom = [8]\ntop = [16]\n", network);
    let Some(features) = features else { return text };
    let (before, rest) = text.split_once("[features]\n").unwrap();
    let (_, after) = rest.split_once("[embedding]\n").unwrap();
    format!("{before}{features}[embedding]\n{after}")
}

fn job_of(text: &str, rows: String, folder: &Path, sets: &[&str]) -> Job {
    std::fs::write(folder.join("train.csv"), rows).unwrap();
    let runs = format!("output.folder={:?}", folder.join("runs"));
    let sets = sets.iter().map(|set| (*set).to_owned()).chain([runs]).collect();
    Job::parse(text, &folder.join("job.toml"), &Overrides::new(sets, [])).unwrap()
}

struct WorkerCluster {
    control: Arc<LocalCoordinator>,
    connect: Connect,
    registry: Registry,
    traffic: Arc<AtomicU64>,
}

impl WorkerCluster {
    /// With every embedding server of the job in it.
    async fn start(job: &Job) -> Self {
        let registry = Registry::new();
        let control = LocalCoordinator::new(job, &registry);
        let indices = 0..job.cluster.servers;
        let service = |index| EmbeddingService::new(job, ServerIndex(index), &Registry::new()).unwrap();
        let services: Vec<_> = indices.clone().map(service).collect();
        let mut members = Vec::new();
        for index in indices {
            let joined = Membership::join(control.clone(), request(job, index), LATE, &Shutdown::new()).await;
            members.push(joined.unwrap());
        }
        let placement = wait_for_placement(control.as_ref(), LATE, &Shutdown::new()).await.unwrap();
        let map = BucketMap::unpack_owners(Generation(placement.generation), &placement.owners).unwrap();
        let map = Arc::new(map);
        services.iter().for_each(|service| service.set_placement(Arc::clone(&map)));
        let traffic = Arc::new(AtomicU64::new(0));
        let shard = |service| {
            Arc::new(WatchedShard::new(Arc::new(LocalShard::new(service)), PayloadCounter(Arc::clone(&traffic))))
                as Arc<dyn Shard>
        };
        let shards: Vec<Arc<dyn Shard>> = services.into_iter().map(shard).collect();
        let connect: Connect = Arc::new(move |entry| {
            let _alive = &members;
            shards.get(entry.index as usize).cloned().ok_or_else(|| Refusal::invalid("no such server"))
        });
        Self { control, connect, registry, traffic }
    }

    /// Payload bytes of all lookups and pushes, in both directions.
    fn bytes(&self) -> u64 {
        self.traffic.load(Ordering::Acquire)
    }

    fn worker(&self, job: &Job, observer: Arc<dyn Observer>) -> Worker {
        let folder = RunFolder::create(job, &[]).unwrap();
        Worker { observer, registry: self.registry.clone(), ..self.worker_in(&folder, job, 0) }
    }

    fn worker_in(&self, folder: &RunFolder, job: &Job, index: u32) -> Worker {
        let alone = Worker::without_peers(
            job.clone(),
            zagros_torch::backend(),
            self.control.clone(),
            self.connect.clone(),
            Registry::new(),
        );
        Worker { index, folder: Some(folder.clone()), ..alone }
    }
}

/// Goes on from the newest checkpoint of a run, in a fresh cluster.
async fn resume_run(job: &Job, run: &RunFolder) -> Result<RunSummary, WorkerError> {
    let point = ResumePoint::find_newest(job, run).unwrap().expect("a checkpoint");
    let cluster = WorkerCluster::start(job).await;
    let worker = Worker { resume: Some(point), ..cluster.worker_in(run, job, 0) };
    tokio::time::timeout(LATE, worker.run()).await.expect("the worker hangs")
}

/// Both made the same steps, and no two losses differ by more.
fn assert_near_losses(one: &RecordedEvents, other: &RecordedEvents, most: f64, what: &str) {
    for (one, other) in one.steps().iter().zip_eq(other.steps()) {
        let difference = (one.loss - other.loss).abs();
        assert!(difference <= most, "{what}, step {}: {} and {}", one.step, one.loss, other.loss);
    }
}

fn request(job: &Job, index: u32) -> JoinRequest {
    JoinRequest {
        role: Role::EmbeddingServer.into(),
        index,
        address: format!("embedded:{index}"),
        instance: u64::from(index) + 1,
        job_fingerprint: job.fingerprint(),
        ..JoinRequest::default()
    }
}

/// Mean and deviation of the second number in the job that a run has kept.
fn standardised(run: &RunFolder) -> (f64, f64) {
    let job = Job::load(&run.job_file(), &Overrides::none()).unwrap();
    let Scaling::Given(moments) = &job.features.numeric[1].standardise else { panic!("not measured") };
    (moments.mean[0], moments.deviation[0])
}

#[derive(Default)]
struct RecordedEvents(Mutex<Vec<WorkerEvent>>);

impl Observer for RecordedEvents {
    fn observe(&self, event: &WorkerEvent) {
        self.0.lock().unwrap().push(event.clone());
    }
}

impl RecordedEvents {
    fn steps(&self) -> Vec<StepReport> {
        let step = |event: &WorkerEvent| if let WorkerEvent::Step(report) = event { Some(*report) } else { None };
        self.0.lock().unwrap().iter().filter_map(step).collect()
    }

    /// Bits, so that equal means equal.
    fn losses(&self) -> Vec<u64> {
        self.steps().iter().map(|report| report.loss.to_bits()).collect()
    }
}

fn auc(summary: &RunSummary) -> f64 {
    summary.evaluation.unwrap().auc.unwrap()
}

async fn train(job: Job) -> (Result<RunSummary, WorkerError>, Arc<RecordedEvents>, RunFolder) {
    let cluster = WorkerCluster::start(&job).await;
    let recording = Arc::new(RecordedEvents::default());
    let worker = cluster.worker(&job, recording.clone());
    let folder = worker.folder.clone().unwrap();
    let trained = tokio::time::timeout(LATE, worker.run()).await.expect("the run hangs");
    (trained, recording, folder)
}

/// Invariant DP-5.
#[tokio::test(flavor = "multi_thread")]
async fn without_staleness_servers_and_parser_threads_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    // Several blocks of a mebibyte, so that parser threads have something to race for.
    let rows = rows(100_000);
    assert!(rows.len() > 2 << 20);
    let job = |sets: &[&str]| job_over(rows.clone(), folder.path(), &[&["train.batch_size=1000"], sets].concat());
    let (first, recorded, _) = train(job(&[])).await;
    let first = first.unwrap();
    assert!(recorded.losses().len() > 150, "{} steps", recorded.losses().len());
    for sets in [&["cluster.servers=3"][..], &["data.threads=3"], &["cluster.servers=3", "data.threads=3"], &[]] {
        let (other, again, _) = train(job(sets)).await;
        let other = other.unwrap();
        assert_eq!(recorded.losses(), again.losses(), "{sets:?}");
        assert_eq!((first.evaluation, first.rows), (other.evaluation, other.rows), "{sets:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_learned_saved_and_scores_the_same_without_servers() {
    let folder = tempfile::tempdir().unwrap();
    let sets = ["train.staleness=3", "train.epochs=4", "cluster.servers=2", "train.evaluate_every=30"];
    let (summary, recorded, run) = train(job(folder.path(), &sets)).await;
    let summary = summary.unwrap();
    let evaluation = summary.evaluation.unwrap();
    assert!(evaluation.auc.unwrap() > 0.85, "{evaluation:?}");
    assert!(summary.staleness.max <= 3 && summary.rows > 0 && summary.table_bytes > 0, "{summary:?}");
    let evaluated = |event: &WorkerEvent| matches!(event, WorkerEvent::Evaluated { .. });
    assert!(recorded.0.lock().unwrap().iter().filter(|event| evaluated(event)).count() > 4);

    let again = evaluate(&run, &[], None).await.unwrap();
    assert_eq!(again, evaluation);
    let all = evaluate(&run, &[], Some(vec![folder.path().join("train.csv")])).await.unwrap();
    assert_eq!(all.samples, 2000);
}

/// Scores with the model of a run.
fn scoring(run: &RunFolder, job: Job, files: Option<Vec<PathBuf>>) -> ScoringCommand {
    let (model, backend) = (Folder::on_disk(run.model_folder()), zagros_torch::backend());
    let (observer, shutdown) = (Arc::new(ObserverList::default()), Shutdown::new());
    ScoringCommand { job, model, files, backend, observer, shutdown }
}

/// Loads the model of a run and scores with it.
async fn evaluate(run: &RunFolder, sets: &[&str], files: Option<Vec<PathBuf>>) -> Result<Evaluation, WorkerError> {
    let sets = Overrides::new(sets.iter().map(|set| (*set).to_owned()).collect(), []);
    let job = Job::load(&run.job_file(), &sets).unwrap();
    let evaluated = scoring(run, job, files).evaluate(None);
    let measured = tokio::time::timeout(LATE, evaluated).await.expect("the evaluation hangs");
    measured.map(|measures| measures.evaluation)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_does_not_fit_the_job_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (summary, _, run) = train(job(folder.path(), &["train.max_steps=3"])).await;
    assert!(summary.is_ok());
    let wider = evaluate(&run, &["model.top=[32]"], None).await.unwrap_err();
    assert_eq!(wider.exit_class(), ExitClass::Data);
    assert!(wider.to_string().contains("top.0.bias is F32 [16], not F32 [32]"), "{wider}");
    std::fs::remove_file(run.model_folder().join("manifest.json")).unwrap();
    let absent = evaluate(&run, &[], None).await.unwrap_err();
    assert!(absent.exit_class() == ExitClass::Data && absent.to_string().contains("no model here"), "{absent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_coordinator_sees_every_split_complete_and_the_run_finished() {
    let folder = tempfile::tempdir().unwrap();
    let job = job(folder.path(), &["train.staleness=2"]);
    let cluster = WorkerCluster::start(&job).await;
    let summary = cluster.worker(&job, Arc::new(ObserverList::default())).run().await.unwrap();
    let status = cluster.control.status(StatusRequest {}).await.unwrap();
    assert_eq!((status.state.as_str(), status.splits_done), ("finished", status.splits));
    assert_eq!(status.evaluations.len(), 2);
    // Two epochs over about four fifths of 2,000 rows.
    assert!(summary.samples % 2 == 0 && (3000..3400).contains(&summary.samples), "{}", summary.samples);
}

struct StopAfter(u64, Shutdown);

impl Observer for StopAfter {
    fn observe(&self, event: &WorkerEvent) {
        if matches!(event, WorkerEvent::Step(report) if report.step == self.0) {
            self.1.request();
        }
    }
}
