//! A checkpoint on disk: where it is, and whether a job may go on from it.

use std::path::PathBuf;

use zagros_job::{Change, Job, Overrides};
use zagros_store::{Folder, StoreError};

use super::Training;
use super::home::Home;
use super::training::{FORMAT, FileSize};
use crate::control::saved_model::{JOB, MANIFEST};
use crate::error::WorkerError;
use crate::report::{RunFolder, RunLock};

/// Folders of checkpoints begin so; the best states of a run lie beside them under other names.
const PREFIX: &str = "resume-";
/// Beside the model.
pub(super) const TRAINING: &str = "training.json";
pub(super) const OPTIMIZER: &str = "optimizer.safetensors";

/// A checkpoint that a run can go on from.
#[derive(Clone, Debug)]
pub struct ResumePoint {
    folder: Folder,
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
    /// The newest complete checkpoint of a run of this job.
    ///
    /// # Errors
    /// When there is one that cannot be read, or the job's `checkpoint.folder` cannot be.
    pub fn newest(job: &Job, run: &RunFolder) -> Result<Option<Self>, WorkerError> {
        Self::newest_in(&Home::of(job)?.of_run(run))
    }

    fn newest_in(checkpoints: &Folder) -> Result<Option<Self>, WorkerError> {
        let newest = complete(checkpoints)?.pop();
        newest.map(|(_, folder)| Self::open(folder)).transpose()
    }

    /// The run of this job's name that was started last and came to no end, with its newest checkpoint. Runs that
    /// another process is at now, and such as ended before their first checkpoint, are passed over. A run of another
    /// machine, whose checkpoints lie where this one reaches them, gets a folder here.
    ///
    /// # Errors
    /// When folders or the checkpoint cannot be read.
    pub fn of_last_run(job: &Job) -> Result<Option<LastRun>, WorkerError> {
        let home = Home::of(job)?;
        for folder in RunFolder::of_job(job, &home.runs()?)?.into_iter().rev() {
            let is_here = folder.path().is_dir();
            if !is_here {
                if complete(&home.of_run(&folder))?.is_empty() {
                    continue;
                }
                folder.make()?;
            }
            let Some(lock) = folder.lock()? else { continue };
            if let Some(point) = Self::newest_in(&home.of_run(&folder))? {
                return Ok(Some(LastRun { folder, lock, point }));
            }
            if folder.summary_file().is_file() {
                // It finished; there is nothing to go on with.
                return Ok(None);
            }
        }
        Ok(None)
    }

    fn open(folder: Folder) -> Result<Self, WorkerError> {
        let help = "delete that folder to go on from an earlier checkpoint, or start over with --fresh";
        let wrong = |reason: String| WorkerError::SavedModel {
            folder: folder.to_string(),
            reason: format!("{reason}; {help}"),
        };
        let text = folder.read(TRAINING)?;
        let training: Training =
            serde_json::from_slice(&text).map_err(|error| wrong(format!("{TRAINING} is damaged ({error})")))?;
        if training.format != FORMAT {
            let found = training.format;
            return Err(wrong(format!("{TRAINING} has format {found}, this release reads format {FORMAT}")));
        }
        let text =
            String::from_utf8(folder.read(JOB)?).map_err(|error| wrong(format!("{JOB} is damaged ({error})")))?;
        let path = PathBuf::from(format!("{folder}/{JOB}"));
        let job = Job::parse(&text, &path, &Overrides::none()).map_err(|errors| wrong(errors.to_string()))?;
        Ok(Self { folder, training, job })
    }

    /// Steps made before it.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.training.tracker.steps
    }

    /// The checkpoint's folder.
    #[must_use]
    pub fn folder(&self) -> &Folder {
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
    pub(crate) fn prepare(&self, job: &mut Job, files: &[FileSize]) -> Result<(), WorkerError> {
        if let Some(reason) = self.training.other_files(files) {
            let reason = format!("the data has changed since: {reason}; start over with --fresh");
            return Err(WorkerError::SavedModel { folder: self.folder.to_string(), reason });
        }
        job.features = self.job.features.clone();
        Ok(())
    }
}

/// Steps and folders of the checkpoints that have a manifest, oldest first.
pub(super) fn complete(checkpoints: &Folder) -> Result<Vec<(u64, Folder)>, StoreError> {
    let mut found = Vec::new();
    for (step, folder) in all(checkpoints)? {
        if folder.has(MANIFEST)? {
            found.push((step, folder));
        }
    }
    Ok(found)
}

/// Steps and folders of checkpoints, also of those that are not complete, oldest first.
pub(super) fn all(checkpoints: &Folder) -> Result<Vec<(u64, Folder)>, StoreError> {
    let step = |name: &String| name.strip_prefix(PREFIX).and_then(|step| step.parse::<u64>().ok());
    let mut found: Vec<(u64, String)> =
        checkpoints.folders()?.into_iter().filter_map(|name| Some((step(&name)?, name))).collect();
    found.sort_unstable();
    Ok(found.into_iter().map(|(step, name)| (step, checkpoints.join(&name))).collect())
}

/// Where the checkpoint of a step is.
pub(super) fn folder_of(checkpoints: &Folder, step: u64) -> Folder {
    checkpoints.join(&format!("{PREFIX}{step:012}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_folders_with_a_manifest_are_checkpoints_and_the_newest_is_last() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Folder::disk(folder.path());
        assert!(complete(&disk.join("nothing")).unwrap().is_empty());
        for (name, is_complete) in
            [("resume-000000000010", true), ("resume-9", true), ("resume-11", false), ("step-000000012", true)]
        {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            if is_complete {
                fs::write(path.join(MANIFEST), "{}").unwrap();
            }
        }
        let steps: Vec<u64> = complete(&disk).unwrap().into_iter().map(|(step, _)| step).collect();
        assert_eq!(steps, [9, 10]);
        assert!(folder_of(&disk, 10).has(MANIFEST).unwrap());
    }
}
