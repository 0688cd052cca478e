//! A worker from start to end: look at the data, join, train, save, leave.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use zagros_collective::Rendezvous;
use zagros_coordinator_client::{ControlPlane, Membership, Waiting, Waits, wait_for_placement};
use zagros_embedding_client::{ClientConfig, Connect, EmbeddingClient, StalenessWindow, TableIds};
use zagros_ingest::{Batch, DataPart, FileInfo, IngestError, changed_at, detect_writings, fingerprint_files};
use zagros_job::{FeatureStatistic, Job};
use zagros_model::Backend;
use zagros_plumbing::Shutdown;
use zagros_plumbing::metrics::{Opts, watch_disk};
use zagros_protocol::control::{self, DataFile, JoinRequest, Role, WaitKind};
use zagros_protocol::tile_writer;
use zagros_scoring::TrainingOutcome;
use zagros_zip::ZipEq;

use super::start_model::StartModel;
use super::waits::watch_servers;
use crate::control::checkpoint::{CheckpointRoot, CheckpointWriter, FileSize, ResumePoint};
use crate::control::data::{SplitClient, SplitCompleter, StopSignal, StreamState, ask_to_leave_first};
use crate::control::evaluate::{HeldOutParts, LogisticBaseline, ModelChoice, ScoringState, look_at_files};
use crate::control::group::{BarrierCalls, GroupBallots, GroupSession};
use crate::control::save::wire_encoding;
use crate::control::step::{LossWatch, TrainingTracker};
use crate::control::trainer::{RunContext, Trainer};
use crate::datapath::dense::DenseThread;
use crate::datapath::dense::ServerWeights;
use crate::datapath::push::PendingPushes;
use crate::error::{ExitClass, WorkerError};
use crate::event::{Observer, ObserverList, WorkerEvent};
use crate::metrics::WorkerMetrics;
use crate::report::run_blocking;
use crate::report::{MeasureRecorder, RunFolder};
use crate::summary::RunSummary;

/// How long a worker has to end by itself once the run is over: what it does then may be all but done.
const NOTICE: Duration = Duration::from_secs(2);

pub struct Worker {
    pub job: Job,
    pub backend: Backend,
    /// The coordinator, across gRPC or in this process.
    pub control: Arc<dyn ControlPlane>,
    /// Reaches an embedding server, across gRPC or in this process.
    pub connect: Connect,
    /// Position among the workers: 0 .. workers − 1.
    pub index: u32,
    /// The process that was in its place before is known to be gone: its lease need not run out first.
    pub supersede: bool,
    /// How it meets the other workers; a job of one worker needs none.
    pub rendezvous: Option<Arc<dyn Rendezvous>>,
    pub registry: Registry,
    pub waits: Waits,
    pub observer: Arc<dyn Observer>,
    /// Where measures, summary and model are written; nothing is written without one, nor by another worker than the
    /// first.
    pub folder: Option<RunFolder>,
    /// Where an earlier process of this run was; for the first worker.
    pub resume: Option<ResumePoint>,
    pub shutdown: Shutdown,
}

#[derive(Clone, Debug)]
pub enum WorkerInput {
    /// The job's training files, in splits that the coordinator deals out.
    Files,
    /// These, once per epoch: for benchmarks. No evaluation.
    Preloaded(Arc<Vec<Batch>>),
}

struct WorkerData {
    preloaded: Option<Arc<Vec<Batch>>>,
    files: Vec<FileInfo>,
    fingerprints: Vec<u64>,
    held_out: HeldOutParts,
    measured: Vec<FeatureStatistic>,
    /// The model that the run starts from, if this is the first worker.
    start: Option<StartModel>,
}

impl Worker {
    /// The only worker of a job, in the process of its coordinator and servers. It sends no reports, writes nothing, and does
    /// not resume. The caller sets the fields that differ.
    pub fn without_peers(
        job: Job,
        backend: Backend,
        control: Arc<dyn ControlPlane>,
        connect: Connect,
        registry: Registry,
    ) -> Self {
        Self {
            job,
            backend,
            control,
            connect,
            index: 0,
            supersede: false,
            rendezvous: None,
            registry,
            waits: Waits::default(),
            observer: Arc::new(ObserverList::default()),
            folder: None,
            resume: None,
            shutdown: Shutdown::new(),
        }
    }

    /// Trains on the job's files.
    ///
    /// # Errors
    /// The first cause of whatever went wrong. The run is left with that cause; the reading thread, which may be in
    /// the middle of a disk read, ends soon after.
    pub async fn run(self) -> Result<RunSummary, WorkerError> {
        self.run_on(WorkerInput::Files).await
    }

    pub async fn run_on(mut self, input: WorkerInput) -> Result<RunSummary, WorkerError> {
        // One worker tells of all.
        self.folder = self.folder.filter(|_| self.index == 0);
        self.resume = self.resume.filter(|_| self.index == 0);
        // Before fitting: what every role must agree on is the job as given.
        let fingerprint = self.job.fingerprint();
        let data = self.look_at_data(input).await?;
        self.record().await?;
        let mut metrics = WorkerMetrics::new(&self.registry);
        metrics.waits = self.waits.clone();
        metrics.set_promises(&self.job, self.folder.is_some());
        if let Some(folder) = &self.folder {
            watch_disk(&self.registry, &Opts::new("zagros_worker_run_disk", "the run folder"), folder.path());
        }
        let backend = self.resume.iter().fold(self.backend, |backend, point| backend.keep_products(&point.products));
        let dense = DenseThread::start(&self.job, backend, metrics.clone()).await?;
        let membership = Arc::new(self.join(fingerprint, &data).await?);
        membership.report_waits(self.waits.clone());
        let _departure = ask_to_leave_first(&self.job, self.index, &mut self.shutdown, &membership);
        let stop = StopSignal::new(self.shutdown.clone(), membership.subscribe());
        let trained = tokio::select! {
            biased;
            trained = self.train(data, metrics, dense, Arc::clone(&membership)) => trained,
            reason = cut_off(stop) => Err(reason),
        };
        let (outcome, reason) = match &trained {
            // The first worker still saves what all have trained, and the run goes on until it says how it ended.
            Ok(summary) if self.index > 0 && summary.outcome != TrainingOutcome::Left => {
                (control::Outcome::Finished, String::new())
            }
            _ => reported_end(&trained),
        };
        let left = membership.leave(outcome, &reason).await;
        if let (Err(error), true) = (left, trained.is_ok()) {
            tracing::warn!(%error, "the coordinator was not informed of the end");
        }
        trained
    }

    async fn look_at_data(&mut self, input: WorkerInput) -> Result<WorkerData, WorkerError> {
        if let WorkerInput::Preloaded(batches) = input {
            // The coordinator counts bytes. It does not deal these batches out.
            let bytes = batches.iter().map(|batch| batch.bytes.max(1)).sum();
            let memory = FileInfo { path: "(memory)".into(), bytes, splittable: false };
            let (files, fingerprints, held_out) = (vec![memory], vec![0], HeldOutParts::default());
            let preloaded = Some(batches);
            return Ok(WorkerData { preloaded, files, fingerprints, held_out, measured: Vec::new(), start: None });
        }
        let job = Arc::new(self.job.clone());
        let looked_for = Arc::clone(&job);
        let look = move || {
            let held_out = HeldOutParts::find(&looked_for)?;
            let files = look_at_files(&looked_for, &looked_for.data.train, DataPart::Train)?;
            held_out.compare_types(&looked_for, &files)?;
            Ok::<_, IngestError>((files, held_out))
        };
        let (files, held_out) = run_blocking("data files", look).await??;
        let looked_at = files.clone();
        let fingerprints = run_blocking("fingerprints", move || fingerprint_files(&looked_at)).await??;
        if self.folder.is_some() {
            let (job, files) = (Arc::clone(&job), files.clone());
            // What is wrong with the rows is said when they are trained on.
            self.job.data.written =
                run_blocking("writings", move || detect_writings(&job, &files)).await?.unwrap_or_default();
        }
        let measured = self.job.features.unmeasured_statistics();
        if let Some(point) = &self.resume {
            let now = sizes(&files, &fingerprints);
            point.prepare(&mut self.job, &now)?;
            let (point, job) = (point.clone(), self.job.clone());
            run_blocking("rows", move || point.compare_rows(&job, &now)).await??;
        }
        let may_start = self.index == 0 && self.resume.is_none();
        let start = if may_start { StartModel::open(&self.job).await? } else { None };
        if let Some(start) = &start {
            start.fix_statistics(&mut self.job);
        }
        Ok(WorkerData { preloaded: None, files, fingerprints, held_out, measured, start })
    }

    /// Writes the resolved job, and from now on the measures, into the run folder.
    async fn record(&mut self) -> Result<(), WorkerError> {
        let Some(folder) = self.folder.clone() else { return Ok(()) };
        let job = self.job.clone();
        let start = move || folder.write_job(&job).and_then(|()| MeasureRecorder::start(&folder));
        let recorder = Arc::new(run_blocking("recorder", start).await??);
        self.observer = Arc::new(ObserverList(vec![Arc::clone(&self.observer), recorder]));
        Ok(())
    }

    async fn join(&self, fingerprint: u64, data: &WorkerData) -> Result<Membership, WorkerError> {
        self.observer.observe(&WorkerEvent::WaitingFor(self.control.name().to_owned()));
        let request = JoinRequest {
            role: Role::DenseWorker.into(),
            index: self.index,
            address: self.rendezvous.as_ref().map(|rendezvous| rendezvous.address().to_owned()).unwrap_or_default(),
            transport: self.rendezvous.as_ref().map(|rendezvous| rendezvous.transport().to_owned()).unwrap_or_default(),
            instance: rand::random(),
            job_fingerprint: fingerprint,
            files: data.files.iter().zip_eq(&data.fingerprints).map(data_file).collect(),
            position: self.resume.as_ref().map(|point| point.training.reported_position()),
            supersede: self.supersede,
            ..JoinRequest::default()
        };
        let timeout = self.job.cluster.timeout;
        Ok(Membership::join(Arc::clone(&self.control), request, timeout, &self.shutdown).await?)
    }

    async fn train(
        &mut self,
        data: WorkerData,
        metrics: WorkerMetrics,
        dense: DenseThread,
        membership: Arc<Membership>,
    ) -> Result<RunSummary, WorkerError> {
        self.know_transforms(&data.measured, &membership).await?;
        let client = self.reach_servers(&membership).await?;
        let writer = (tile_writer(membership.member_id()), membership.incarnation());
        dense.stream_by(|| self.client_of(writer)).await?;
        let total_bytes = data.files.iter().map(|file| file.bytes).sum();
        let weights = dense.call(|dense| dense.server_weights.as_ref().map(ServerWeights::weight_rows)).await?;
        let mut trainer = self.trainer(data, metrics, dense, membership, client, weights)?;
        let _servers = watch_servers(&trainer.run, trainer.stream.window.clone(), &self.registry);
        let (epochs, steps_hint) = (self.job.train.epochs, self.job.train.max_steps);
        self.observer.observe(&WorkerEvent::Started { total_bytes, epochs, steps_hint });
        let outcome = trainer.train(self.resume.as_ref()).await;
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                let error = trainer.explain_loss(error).await;
                return Err(trainer.with_best_state(error).await);
            }
        };
        if outcome == TrainingOutcome::Interrupted
            && let Some(reason) = trainer.run.stop.drained_because().await
        {
            tracing::info!("{reason}: training was stopped for it");
        }
        match trainer.saved.take() {
            Some(summary) => Ok(summary),
            // It leaves a run that goes on.
            None => trainer.summary(outcome, &Ok(None)).await,
        }
    }

    async fn reach_servers(&self, membership: &Membership) -> Result<Arc<EmbeddingClient>, WorkerError> {
        self.observer.observe(&WorkerEvent::WaitingFor("the embedding servers".to_owned()));
        let timeout = self.job.cluster.timeout;
        let waiting = Waiting::new("training loop", WaitKind::Members, "the embedding servers").with_timeout(timeout);
        let joining = self.waits.begin_wait(waiting);
        wait_for_placement(&*self.control, timeout, &self.shutdown).await?;
        drop(joining);
        let (member, incarnation) = (membership.member_id(), membership.incarnation());
        let client = self.client_of((member, incarnation)).with_metrics(&self.registry);
        client.refresh_placement().await.map_err(|source| WorkerError::Embedding { batch: 0, source })?;
        let servers = u32::try_from(client.known_servers().len()).unwrap_or(u32::MAX);
        self.observer.observe(&WorkerEvent::Joined { member, incarnation, servers });
        Ok(Arc::new(client))
    }

    fn client_of(&self, (writer, incarnation): (u64, u32)) -> EmbeddingClient {
        let config =
            ClientConfig { writer, incarnation, wire: wire_encoding(&self.job), timeout: self.job.cluster.timeout };
        EmbeddingClient::new(config, Arc::clone(&self.control), Arc::clone(&self.connect))
    }

    pub(super) fn split_client(&self, membership: &Membership, files: Vec<PathBuf>) -> SplitClient {
        SplitClient {
            control: Arc::clone(&self.control),
            member: membership.member_id(),
            incarnation: membership.incarnation(),
            files: Arc::new(files),
            timeout: self.job.cluster.timeout,
            stop: StopSignal::new(self.shutdown.clone(), membership.subscribe()),
            waits: self.waits.clone(),
            asked: Arc::default(),
        }
    }

    fn trainer(
        &self,
        data: WorkerData,
        metrics: WorkerMetrics,
        dense: DenseThread,
        membership: Arc<Membership>,
        client: Arc<EmbeddingClient>,
        weights: Option<TableIds>,
    ) -> Result<Trainer, WorkerError> {
        let job = Arc::new(self.job.clone());
        let root = CheckpointRoot::new(&job)?;
        let checkpoints = self.folder.as_ref().map(|run| root.of_run(run));
        let splits = self.split_client(&membership, data.files.iter().map(|file| file.path.clone()).collect());
        let pushes = PendingPushes::new(Arc::clone(&client), metrics.clone(), Arc::clone(&self.observer));
        let window = StalenessWindow::new(job.train.staleness);
        let begins_anew = self.resume.is_none() && data.start.is_none() && membership.incarnation() == 1;
        let logistic = begins_anew.then(|| LogisticBaseline::from_job(&job, &data.held_out)).flatten();
        Ok(Trainer {
            group: GroupSession { rendezvous: self.rendezvous.clone(), ..GroupSession::default() },
            stream: StreamState { preloaded: data.preloaded, ..StreamState::new(pushes, window, weights) },
            scoring: ScoringState {
                held_out: data.held_out,
                logistic,
                model: ModelChoice::new(&job, checkpoints.clone()),
                ..ScoringState::default()
            },
            tracker: TrainingTracker::new(data.files.iter().map(|file| file.bytes).sum()),
            loss: LossWatch::new(&job),
            checkpoints: CheckpointWriter::new(&job, checkpoints, sizes(&data.files, &data.fingerprints)),
            barrier_calls: BarrierCalls(membership.subscribe()),
            ballots: GroupBallots::new(&splits),
            start: data.start,
            saved: None,
            epoch: 0,
            run: RunContext {
                folder: self.folder.clone(),
                completer: SplitCompleter::start(Arc::clone(&self.control), splits.timeout, self.waits.clone()),
                observer: Arc::clone(&self.observer),
                job,
                client,
                dense,
                metrics,
                membership,
                stop: splits.stop.clone(),
                splits,
            },
        })
    }
}

/// Resolves once the run is over, or this worker is fenced, and it has not noticed for a while: it waits for a process that
/// is gone now.
async fn cut_off(mut stop: StopSignal) -> WorkerError {
    let reason = stop.run_ended().await;
    tokio::time::sleep(NOTICE).await;
    reason
}

fn sizes(files: &[FileInfo], fingerprints: &[u64]) -> Vec<FileSize> {
    let size = |(file, fingerprint): (&FileInfo, &u64)| FileSize {
        path: file.path.clone(),
        bytes: file.bytes,
        fingerprint: *fingerprint,
        changed: changed_at(file),
    };
    files.iter().zip_eq(fingerprints).map(size).collect()
}

fn data_file((file, fingerprint): (&FileInfo, &u64)) -> DataFile {
    let FileInfo { path, bytes, splittable } = file;
    DataFile { path: path.display().to_string(), bytes: *bytes, splittable: *splittable, fingerprint: *fingerprint }
}

/// As the coordinator is reported: an interrupted run did not fail.
pub(crate) fn reported_end(trained: &Result<RunSummary, WorkerError>) -> (control::Outcome, String) {
    use control::Outcome::{Failed, Finished, Interrupted};
    match trained {
        Ok(RunSummary { outcome: TrainingOutcome::Finished, .. }) => (Finished, String::new()),
        Ok(RunSummary { outcome: TrainingOutcome::Left, .. }) => (Interrupted, "was asked to end".to_owned()),
        Ok(_) => (Interrupted, WorkerError::Interrupted.to_string()),
        Err(error) if error.exit_class() == ExitClass::Interrupted => (Interrupted, error.to_string()),
        Err(error) => (Failed, error.to_string()),
    }
}
