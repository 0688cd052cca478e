//! A checkpoint on disk: where it is, and whether a job may go on from it: whether the rows that it was trained on are still
//! the same.

use std::collections::VecDeque;
use std::sync::Arc;

use tracing::warn;
use zagros_ingest::{BatchStream, DataPart, IngestError, SplitSource, SplitTask, StreamOptions, StreamStart};
use zagros_job::{Job, KeyChange};
use zagros_scoring::{JOB, Manifest, damaged, parse_job};
use zagros_store::Folder;

use super::position::{FORMAT, FileSize, TrainingPosition};
use super::{CheckpointRoot, complete, delete_all};
use crate::error::{ExitClass, WorkerError};
use crate::report::{RunFolder, RunLock};

/// Bytes of files written since that are read again at most.
const MOST_COMPARED: u64 = 1 << 30;

/// Beside the model.
pub(crate) const TRAINING: &str = "training.json";

#[derive(Clone, Debug)]
pub struct ResumePoint {
    folder: Folder,
    pub(crate) training: TrainingPosition,
    /// As it was trained, standardisation fitted.
    job: Job,
    /// Which library made the products of its dense network.
    pub(crate) products: String,
}

#[derive(Debug)]
pub struct LastRun {
    pub folder: RunFolder,
    /// Keeps other processes from doing the same.
    pub lock: RunLock,
    pub point: ResumePoint,
}

/// What earlier runs of a job's name have left for it.
#[derive(Debug)]
pub enum EarlierRun {
    /// Nothing: there is none, or the last one is over.
    Nothing,
    GoOn(LastRun),
    /// Runs that were interrupted and learned otherwise; the newest checkpoint of the last of them.
    Differs(ResumePoint),
}

impl ResumePoint {
    /// The newest intact checkpoint of a run of this job: every file of it was read and compared. Those that are damaged
    /// are reported and skipped.
    ///
    /// # Errors
    /// When there are some and none is intact, or the job's `checkpoint.folder` cannot be read.
    pub fn find_newest(job: &Job, run: &RunFolder) -> Result<Option<Self>, WorkerError> {
        let newest = Self::newest_in(&CheckpointRoot::new(job)?.of_run(run), |_| true)?;
        Ok(newest.map(|(point, _)| point))
    }

    /// With whether it is one that is wanted; one that is not was not read any further.
    fn newest_in(checkpoints: &Folder, wanted: impl Fn(&Self) -> bool) -> Result<Option<(Self, bool)>, WorkerError> {
        let mut errors: Vec<WorkerError> = Vec::new();
        for (_, folder) in complete(checkpoints)?.into_iter().rev() {
            match Self::open(folder).and_then(|point| point.compared(&wanted)) {
                Ok(newest) => {
                    errors.iter().for_each(|error| warn!(%error, "a checkpoint is damaged; an earlier one is taken"));
                    return Ok(Some(newest));
                }
                // Of a store that does not answer nothing is known.
                Err(error) if error.exit_class() != ExitClass::Data => return Err(error),
                Err(error) => errors.push(error),
            }
        }
        none_intact(checkpoints, &errors)
    }

    /// With every file of it compared with what was saved, where it is wanted.
    fn compared(self, wanted: impl Fn(&Self) -> bool) -> Result<(Self, bool), WorkerError> {
        let is_wanted = wanted(&self);
        if is_wanted {
            Manifest::read(&self.folder)?.check_files(&self.folder)?;
        }
        Ok((self, is_wanted))
    }

    /// The run of this job's name that was started last and came to no end, with its newest checkpoint. Runs that
    /// another process is at now, such as ended before their first checkpoint, and such as learned otherwise than this
    /// job does are skipped; the latter not where `changed` runs may go on. A run of another machine, whose
    /// checkpoints lie where this one reaches them, gets a folder here.
    pub fn of_last_run(job: &Job, changed: bool) -> Result<EarlierRun, WorkerError> {
        let root = CheckpointRoot::new(job)?;
        let wanted = |point: &Self| changed || !point.changed_keys(job).iter().any(KeyChange::is_learning);
        let mut earlier = EarlierRun::Nothing;
        for folder in RunFolder::of_job(job, &root.run_names()?)?.into_iter().rev() {
            let checkpoints = root.of_run(&folder);
            let is_here = folder.path().is_dir();
            if !is_here {
                if complete(&checkpoints)?.is_empty() {
                    continue;
                }
                folder.ensure_exists()?;
            }
            let Some(lock) = folder.try_lock()? else { continue };
            if folder.is_complete() {
                delete_left_over(&checkpoints);
                if changed || !folder.learned_otherwise(job) {
                    return Ok(earlier);
                }
                continue;
            }
            match Self::newest_in(&checkpoints, wanted)? {
                Some((point, true)) => return Ok(EarlierRun::GoOn(LastRun { folder, lock, point })),
                Some((point, false)) if matches!(earlier, EarlierRun::Nothing) => {
                    earlier = EarlierRun::Differs(point);
                }
                // It ended without one that was to be kept; there is nothing to go on with.
                None if folder.summary_file().is_file() && !folder.learned_otherwise(job) => return Ok(earlier),
                Some(_) | None => {}
            }
        }
        Ok(earlier)
    }

    /// The folder of a run that starts from nothing: the newest of the job's name, also where checkpoints of others lie
    /// elsewhere.
    pub fn new_run(job: &Job) -> Result<RunFolder, WorkerError> {
        RunFolder::create(job, &CheckpointRoot::new(job)?.run_names()?)
    }

    fn open(folder: Folder) -> Result<Self, WorkerError> {
        let wrong = |reason: String| damaged(&folder, reason);
        let manifest = Manifest::read(&folder)?;
        let text = manifest.read_file(&folder, TRAINING)?;
        let training: TrainingPosition =
            serde_json::from_slice(&text).map_err(|error| wrong(format!("{TRAINING} is damaged ({error})")))?;
        if training.format != FORMAT {
            let found = training.format;
            return Err(wrong(format!("{TRAINING} has format {found}, this release reads format {FORMAT}")).into());
        }
        let job = parse_job(&folder, manifest.read_file(&folder, JOB)?)?;
        Ok(Self { folder, training, job, products: manifest.products })
    }

    pub fn step(&self) -> u64 {
        self.training.tracker.counts.steps
    }

    /// Epoch over the data that it is in, from 0.
    pub fn epoch(&self) -> u32 {
        self.training.epoch
    }

    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    pub fn changed_keys(&self, job: &Job) -> Vec<KeyChange> {
        job.changes_since(&self.job)
    }

    /// Steps of an epoch, as the run counted them where its job gives steps in epochs.
    pub fn epoch_steps(&self) -> Option<u64> {
        self.job.train.epoch_steps
    }

    /// Takes over what was fitted to the data, and checks that it is the same data.
    pub(crate) fn prepare(&self, job: &mut Job, files: &[FileSize]) -> Result<(), WorkerError> {
        if let Some(reason) = self.training.other_files(files) {
            let reason = format!("the data has changed since: {reason}; start over with --fresh");
            return Err(damaged(&self.folder, reason).into());
        }
        job.features = self.job.features.clone();
        Ok(())
    }

    /// Reads again what was trained on of files that were written since, and checks that it is the same.
    pub(crate) fn compare_rows(&self, job: &Job, files: &[FileSize]) -> Result<(), WorkerError> {
        let splits = self.training.splits_to_compare(files, MOST_COMPARED);
        let Some(SplitTask { path, start, end, .. }) = changed_split(job, splits)? else { return Ok(()) };
        let reason = format!(
            "the data has changed since: the rows at bytes {start} to {end} of {} are others than those that were trained on; \
             start over with --fresh",
            path.display()
        );
        Err(damaged(&self.folder, reason).into())
    }
}

/// No checkpoint, or an error where there are some and each is damaged.
fn none_intact(checkpoints: &Folder, errors: &[WorkerError]) -> Result<Option<(ResumePoint, bool)>, WorkerError> {
    let Some(newest) = errors.first() else { return Ok(None) };
    let reason = format!(
        "none of the {} checkpoint(s) here is intact, so this run cannot go on; the newest: {newest}; start over with \
         --fresh, or put the files there again as they were",
        errors.len()
    );
    Err(damaged(checkpoints, reason).into())
}

/// Of a run that is over: its process ended before it had deleted them.
fn delete_left_over(checkpoints: &Folder) {
    if let Err(error) = delete_all(checkpoints) {
        warn!(%error, "checkpoints of a run that is over are still there");
    }
}

struct SplitList(VecDeque<SplitTask>);

impl SplitSource for SplitList {
    fn next(&mut self) -> Result<Option<SplitTask>, String> {
        Ok(self.0.pop_front())
    }
}

/// The first split whose rows have another hash than the one beside it.
fn changed_split(job: &Job, splits: Vec<(SplitTask, u64)>) -> Result<Option<SplitTask>, IngestError> {
    if splits.is_empty() {
        return Ok(None);
    }
    let bytes: u64 = splits.iter().map(|(task, _)| task.end.saturating_sub(task.start)).sum();
    tracing::info!(splits = splits.len(), bytes, "files were written since the checkpoint; comparing rows");
    let mut job = job.clone();
    (job.data.shuffle_rows, job.data.max_bad_rows) = (0, u64::MAX);
    let (start, cancel) = (StreamStart::default(), Arc::default());
    let options = StreamOptions { part: DataPart::Train, epoch: 0, start, bad_rows: 0, cancel };
    let tasks = SplitList(splits.iter().map(|(task, _)| task.clone()).collect());
    for batch in BatchStream::open(&job, options, Box::new(tasks))? {
        for end in batch?.completes {
            let other = splits.iter().find(|(task, content)| task.id == end.split && *content != end.content);
            if let Some((task, _)) = other {
                return Ok(Some(task.clone()));
            }
        }
    }
    Ok(None)
}
