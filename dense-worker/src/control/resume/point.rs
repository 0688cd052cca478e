//! A checkpoint on disk: where it is, and whether a job may go on from it.

use std::fs;
use std::path::{Path, PathBuf};

use zagros_ingest::FileInfo;
use zagros_job::{Change, Job, Overrides};

use super::Training;
use super::training::FORMAT;
use crate::control::saved_model::MANIFEST;
use crate::error::WorkerError;
use crate::report::files::file_error;
use crate::report::{RunFolder, RunLock};

/// Folders of checkpoints begin so; the best states of a run lie beside them under other names.
const PREFIX: &str = "resume-";
/// Beside the model.
pub(super) const TRAINING: &str = "training.json";
pub(super) const OPTIMIZER: &str = "optimizer.safetensors";
pub(super) const JOB: &str = "job.toml";

/// A checkpoint that a run can go on from.
#[derive(Clone, Debug)]
pub struct ResumePoint {
    folder: PathBuf,
    training: Training,
    /// As it was trained, standardisation fitted.
    job: Job,
}

/// A run to go on with.
#[derive(Debug)]
pub struct LastRun {
    /// Its folder.
    pub folder: RunFolder,
    /// Keeps other processes from doing the same.
    pub lock: RunLock,
    /// Where it was.
    pub point: ResumePoint,
}

impl ResumePoint {
    /// The newest complete checkpoint of a run.
    ///
    /// # Errors
    /// When there is one that cannot be read.
    pub fn newest(run: &RunFolder) -> Result<Option<Self>, WorkerError> {
        let newest = complete(&run.checkpoints())?.pop();
        newest.map(|(_, folder)| Self::open(folder)).transpose()
    }

    /// The run of this job's name that was started last and came to no end, with its newest checkpoint. Runs that
    /// another process is at now, and such as ended before their first checkpoint, are passed over.
    ///
    /// # Errors
    /// When folders or the checkpoint cannot be read.
    pub fn of_last_run(job: &Job) -> Result<Option<LastRun>, WorkerError> {
        for folder in RunFolder::of_job(job)?.into_iter().rev() {
            let Some(lock) = folder.lock()? else { continue };
            if let Some(point) = Self::newest(&folder)? {
                return Ok(Some(LastRun { folder, lock, point }));
            }
            if folder.summary_file().is_file() {
                // It finished; there is nothing to go on with.
                return Ok(None);
            }
        }
        Ok(None)
    }

    fn open(folder: PathBuf) -> Result<Self, WorkerError> {
        let help = "delete that folder to go on from an earlier checkpoint, or start over with --fresh";
        let wrong =
            |reason: String| WorkerError::SavedModel { folder: folder.clone(), reason: format!("{reason}; {help}") };
        let path = folder.join(TRAINING);
        let text = fs::read(&path).map_err(|source| file_error("read", &path, source))?;
        let training: Training =
            serde_json::from_slice(&text).map_err(|error| wrong(format!("{TRAINING} is damaged ({error})")))?;
        if training.format != FORMAT {
            let found = training.format;
            return Err(wrong(format!("{TRAINING} has format {found}, this release reads format {FORMAT}")));
        }
        let job = Job::load(&folder.join(JOB), &Overrides::none()).map_err(|errors| wrong(errors.to_string()))?;
        Ok(Self { folder, training, job })
    }

    /// Steps made before it.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.training.tracker.steps
    }

    /// The checkpoint's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What is different in a job that is to go on from it.
    #[must_use]
    pub fn changes(&self, job: &Job) -> Vec<Change> {
        job.changes_since(&self.job)
    }

    pub(crate) fn training(&self) -> &Training {
        &self.training
    }

    /// Takes over what was fitted to the data, and checks that it is the same data.
    pub(crate) fn prepare(&self, job: &mut Job, files: &[FileInfo]) -> Result<(), WorkerError> {
        if let Some(reason) = self.training.other_files(files) {
            let reason = format!("the data has changed since: {reason}; start over with --fresh");
            return Err(WorkerError::SavedModel { folder: self.folder.clone(), reason });
        }
        job.features = self.job.features.clone();
        Ok(())
    }
}

/// Steps and folders of the checkpoints that have a manifest, oldest first.
pub(super) fn complete(checkpoints: &Path) -> Result<Vec<(u64, PathBuf)>, WorkerError> {
    let mut found = all(checkpoints)?;
    found.retain(|(_, folder)| folder.join(MANIFEST).is_file());
    Ok(found)
}

/// Steps and folders of checkpoints, also of those that are not complete, oldest first.
pub(super) fn all(checkpoints: &Path) -> Result<Vec<(u64, PathBuf)>, WorkerError> {
    let entries = match fs::read_dir(checkpoints) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|source| file_error("read", checkpoints, source))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|source| file_error("read", checkpoints, source))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let step = name.strip_prefix(PREFIX).and_then(|step| step.parse().ok());
        if let Some(step) = step {
            found.push((step, path));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Where the checkpoint of a step is.
pub(super) fn folder_of(checkpoints: &Path, step: u64) -> PathBuf {
    checkpoints.join(format!("{PREFIX}{step:012}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_with_a_manifest_are_checkpoints_and_the_newest_is_last() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(complete(&folder.path().join("nothing")).unwrap(), []);
        for (name, is_complete) in
            [("resume-000000000010", true), ("resume-9", true), ("resume-11", false), ("step-000000012", true)]
        {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            if is_complete {
                fs::write(path.join(MANIFEST), "{}").unwrap();
            }
        }
        let steps: Vec<u64> = complete(folder.path()).unwrap().into_iter().map(|(step, _)| step).collect();
        assert_eq!(steps, [9, 10]);
        assert!(folder_of(folder.path(), 10).is_dir());
    }
}
