//! Scoring a held-out part: rows are looked up but never created, nothing learns.

use std::path::PathBuf;
use std::sync::Arc;

use prometheus::Registry;
use zagros_coordinator_client::ControlPlane;
use zagros_embedding_client::{ClientConfig, Connect, EmbeddingClient, StalenessWindow};
use zagros_ingest::{
    Batch, BatchStream, DataPart, FileInfo, IngestError, StreamOptions, StreamStart, WholeFiles, check_first_rows,
    check_same_types, check_writings, find_files,
};
use zagros_job::{Job, TestPart, ValidationPart};
use zagros_plumbing::Shutdown;
use zagros_protocol::datapath::Access;
use zagros_store::Folder;
use zagros_worker_core::StepVote;

use super::part_scores::{ImportanceOptions, PartMeasures, PartScores, measures_of};
use crate::control::data::StopSignal;
use crate::control::group::GroupRank;
use crate::control::save::{LoadMode, SavedModel, wire_encoding};
use crate::datapath::dense::{DenseStage, DenseThread};
use crate::datapath::prefetch::{LookupStage, RowPrefetch};
use crate::datapath::prepared::{BatchPreparer, FetchedBatch, inconsistent_batch};
use crate::datapath::process_group::RankTurn;
use crate::datapath::read::{OpenSource, ReaderThread};
use crate::error::WorkerError;
use crate::event::{HeldOutPart, Observer, WorkerEvent};
use crate::metrics::WorkerMetrics;
use crate::report::files::run_blocking;
use zagros_model::{Backend, batch_of_blocks};

/// Batches looked up ahead: enough to hide a round trip, few enough to stay small.
const AHEAD: usize = 3;

/// Scores a part of the data with a saved model (`zagros eval`).
pub struct EvaluateCommand {
    pub job: Job,
    pub model: Folder,
    /// Score all rows of these files instead of the job's test part.
    pub files: Option<Vec<PathBuf>>,
    /// How to measure the importance of each feature, if that is wanted.
    pub importance: Option<ImportanceOptions>,
    pub parts: ScoringParts,
}

impl EvaluateCommand {
    /// Loads the model, scores, measures.
    ///
    /// # Errors
    /// When the model or the data cannot be read or do not fit the job, or there is nothing to score.
    pub async fn run(self) -> Result<PartMeasures, WorkerError> {
        let job = match self.importance {
            Some(_) => ImportanceOptions::with_blocks(&self.job),
            None => self.job,
        };
        let job = Arc::new(job);
        let held_out = match self.files {
            Some(files) => Some(rows_to_score(Arc::clone(&job), files, &self.model).await?),
            None => find_test(Arc::clone(&job)).await?,
        };
        let held_out = held_out.ok_or(IngestError::NoFiles { key: "test" })?;
        let (mut scorer, saved) = self.parts.load(job, &self.model).await?;
        let calibrators = saved.read_calibrators(&scorer.job.features.targets).await?;
        let step = saved.manifest.steps;
        match self.importance {
            Some(options) => scorer.measure_importance(&held_out, step, calibrators, options).await,
            None => measures_of(scorer.score_share(&held_out, step).await?, calibrators).await,
        }
    }
}

/// What a process scores with.
pub struct ScoringParts {
    /// Computes the network.
    pub backend: Backend,
    /// Knows where the embedding servers are.
    pub control: Arc<dyn ControlPlane>,
    /// Reaches one. They must be empty: the saved rows are loaded into them.
    pub connect: Connect,
    pub observer: Arc<dyn Observer>,
    pub shutdown: Shutdown,
}

impl ScoringParts {
    pub(crate) async fn load(self, job: Arc<Job>, model: &Folder) -> Result<(PartScorer, SavedModel), WorkerError> {
        let saved = SavedModel::open(model).await?;
        saved.check_network(&job).await?;
        let dense = DenseThread::start(&job, self.backend, WorkerMetrics::new(&Registry::new())).await?;
        // Nothing is ever pushed by this client.
        let reader =
            ClientConfig { writer: 0, incarnation: 0, wire: wire_encoding(&job), timeout: job.cluster.timeout };
        let of_tiles = || EmbeddingClient::new(reader, Arc::clone(&self.control), Arc::clone(&self.connect));
        dense.stream_by(Access::Read, of_tiles).await?;
        let client = Arc::new(EmbeddingClient::new(reader, self.control, self.connect));
        client.refresh_placement().await.map_err(|source| WorkerError::Embedding { batch: 0, source })?;
        saved.load(&dense, &*client, LoadMode::IntoEmpty).await?;
        let stop = StopSignal::from_shutdown(self.shutdown);
        Ok((PartScorer { job, client, dense, group: None, observer: self.observer, stop }, saved))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldOut {
    pub(crate) files: Vec<FileInfo>,
    part: DataPart,
    pub(crate) name: HeldOutPart,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldOutParts {
    /// After each epoch, and every so many steps.
    pub(crate) during: Option<HeldOut>,
    /// Once, with the state that is saved.
    pub(crate) at_end: Option<HeldOut>,
}

/// The job's held-out parts, their files looked at. With a validation part the test part is left for the end.
pub(crate) async fn find_held_out(job: Arc<Job>) -> Result<HeldOutParts, WorkerError> {
    let test = find_test(Arc::clone(&job)).await?;
    let (paths, part) = match &job.data.validation {
        ValidationPart::Files(paths) => (paths.clone(), DataPart::All),
        ValidationPart::Share(_) | ValidationPart::Newest(_) => (job.data.train.clone(), DataPart::Validation),
        ValidationPart::None => return Ok(HeldOutParts { during: test, at_end: None }),
    };
    let files = look_at_files(job, paths, part).await?;
    let validation = HeldOut { files, part, name: HeldOutPart::Validation };
    Ok(HeldOutParts { during: Some(validation), at_end: test })
}

async fn find_test(job: Arc<Job>) -> Result<Option<HeldOut>, WorkerError> {
    let (paths, part) = match &job.data.test {
        TestPart::Files(paths) => (paths.clone(), DataPart::All),
        TestPart::Fraction(_) | TestPart::Newest(_) => (job.data.train.clone(), DataPart::Test),
        TestPart::None => return Ok(None),
    };
    let files = look_at_files(job, paths, part).await?;
    Ok(Some(HeldOut { files, part, name: HeldOutPart::Test }))
}

/// All rows of these files, which write the columns of categories as those did that the model was trained on.
pub(crate) async fn rows_to_score(job: Arc<Job>, paths: Vec<PathBuf>, model: &Folder) -> Result<HeldOut, WorkerError> {
    let written = SavedModel::open(model).await?.manifest.written;
    let files = look_at_files(Arc::clone(&job), paths, DataPart::All).await?;
    let looked_at = files.clone();
    run_blocking("writings", move || check_writings(&job, &looked_at, &written)).await??;
    Ok(HeldOut { files, part: DataPart::All, name: HeldOutPart::Test })
}

/// Every file is there, and its first rows are well-formed.
pub(crate) async fn look_at_files(
    job: Arc<Job>,
    paths: Vec<PathBuf>,
    part: DataPart,
) -> Result<Vec<FileInfo>, WorkerError> {
    let look = move || {
        let files = find_files(&job, &paths)?;
        check_first_rows(&job, &files, part)?;
        Ok::<_, IngestError>(files)
    };
    Ok(run_blocking("data files", look).await??)
}

/// The columns of held-out files hold what those of the training files hold.
pub(crate) async fn compare_types(
    job: Arc<Job>,
    train: &[FileInfo],
    held_out: &HeldOutParts,
) -> Result<(), WorkerError> {
    let train = train.to_vec();
    let parts: Vec<_> = held_out.during.iter().chain(&held_out.at_end).map(|part| part.files.clone()).collect();
    let compare = move || parts.iter().try_for_each(|files| check_same_types(&job, &train, files));
    Ok(run_blocking("data files", compare).await??)
}

enum ScoringTurn {
    /// With its batch, or along with others that have one.
    Score(Option<Box<FetchedBatch>>),
    /// No worker has one.
    Done,
}

#[derive(Clone)]
pub(crate) struct PartScorer {
    pub(crate) job: Arc<Job>,
    pub(crate) client: Arc<EmbeddingClient>,
    pub(crate) dense: DenseThread,
    /// Each worker scores its share.
    pub(crate) group: Option<GroupRank>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) stop: StopSignal,
}

impl PartScorer {
    pub(crate) async fn score_share(&mut self, held_out: &HeldOut, step: u64) -> Result<PartScores, WorkerError> {
        let (reader, mut prefetch) = self.look_up(held_out, StreamStart::default())?;
        let total = held_out.files.iter().map(|file| file.bytes).sum();
        let (mut scores, mut done) = (PartScores::new(&self.job), 0);
        while let ScoringTurn::Score(fetched) = self.turn(&mut prefetch).await? {
            let Some(fetched) = fetched else { continue };
            done += fetched.prepared.batch.bytes;
            let seq = fetched.seq;
            let (batch, logits) = self.logits(*fetched).await?;
            scores.add(&batch, &logits).map_err(|error| inconsistent_batch(seq, error.to_string()))?;
            self.observer.observe(&WorkerEvent::Evaluating { step, part: held_out.name, done, total });
        }
        reader.finish(self.job.cluster.timeout).await?;
        Ok(scores)
    }

    pub(crate) fn look_up(
        &self,
        held_out: &HeldOut,
        start: StreamStart,
    ) -> Result<(ReaderThread, RowPrefetch), WorkerError> {
        // Its stages are not training's.
        let metrics = WorkerMetrics::new(&Registry::new());
        let preparer = BatchPreparer::new(&self.job, Access::Read);
        let (reader, incoming) = ReaderThread::start(self.open(held_out, start), preparer, metrics.clone())?;
        let (client, window) = (Arc::clone(&self.client), StalenessWindow::new(AHEAD));
        let lookups = LookupStage { client, access: Access::Read, window, metrics, steps: None };
        Ok((reader, RowPrefetch::start(lookups, incoming, 0, u64::MAX)))
    }

    /// The next batch of this worker. Ranks that step together go batch by batch, so that none waits long for another, and
    /// those that have run dry go along.
    async fn turn(&mut self, prefetch: &mut RowPrefetch) -> Result<ScoringTurn, WorkerError> {
        let next = self.next(prefetch).await;
        if self.group.is_none_or(|group| group.asynchronous) {
            return Ok(next?.map_or(ScoringTurn::Done, |fetched| ScoringTurn::Score(Some(Box::new(fetched)))));
        }
        let (stops, next) = match next {
            Err(WorkerError::Interrupted) => (true, None),
            next => (false, next?),
        };
        let vote = StepVote { stop: stops, ..StepVote::default() };
        let mine = RankTurn { samples: u32::from(next.is_some()), vote, ..RankTurn::default() };
        let agreed = self.dense.call(move |dense| dense.agree_on_step(mine)).await??.step_agreement();
        if agreed.stop {
            return Err(WorkerError::Interrupted);
        }
        Ok(if agreed.samples == 0 { ScoringTurn::Done } else { ScoringTurn::Score(next.map(Box::new)) })
    }

    /// The scores of all workers: the measures of the whole are not the mean of the parts'.
    pub(crate) async fn merge_scores(&self, scores: PartScores) -> Result<PartScores, WorkerError> {
        if self.group.is_none() {
            return Ok(scores);
        }
        let all = self.dense.call(move |dense| dense.all_gather(&scores.to_bytes())).await??;
        let mut merged = PartScores::new(&self.job);
        for (rank, bytes) in all.iter().enumerate() {
            let part = PartScores::from_bytes(&self.job, bytes);
            merged.merge(part.ok_or_else(|| inconsistent_batch(0, format!("the scores of dense worker {rank}")))?);
        }
        Ok(merged)
    }

    /// A held-out part without rows is no failure of training: there is nothing to measure.
    pub(crate) async fn next(&mut self, prefetch: &mut RowPrefetch) -> Result<Option<FetchedBatch>, WorkerError> {
        let next = tokio::select! {
            reason = self.stop.wait_for_request() => return Err(reason),
            next = prefetch.next() => next,
        };
        match next.transpose() {
            Err(WorkerError::Ingest(error @ IngestError::NoRows { .. })) => {
                if self.group.is_none() {
                    tracing::warn!(%error, "nothing is scored");
                }
                Ok(None)
            }
            next => next,
        }
    }

    /// The outputs of a batch. `zagros eval` measures them, and `zagros predict` writes them.
    pub(crate) async fn logits(&self, fetched: FetchedBatch) -> Result<(Batch, Vec<f32>), WorkerError> {
        let FetchedBatch { prepared, rows, permit, .. } = fetched;
        let work = move |dense: &mut DenseStage| (dense.predict(&prepared, &rows), prepared.batch);
        let (logits, batch) = self.dense.call(work).await?;
        drop(permit);
        Ok((batch, logits?))
    }

    fn open(&self, held_out: &HeldOut, start: StreamStart) -> OpenSource {
        let (mut job, part) = (Job::clone(&self.job), held_out.part);
        // Wherever batches of training end, and wherever reading starts, a row is at the same place in its block.
        job.train.batch_size = batch_of_blocks(job.train.batch_size);
        let source = match self.group {
            Some(group) => WholeFiles::rank_share(&held_out.files, group.rank, group.world),
            None => WholeFiles::new(&held_out.files),
        };
        Box::new(move |cancel| {
            let options = StreamOptions { part, epoch: 0, start, bad_rows: 0, cancel };
            Ok(Box::new(BatchStream::open(&job, options, Box::new(source))?))
        })
    }
}
