//! Where a run starts: from nothing, or where the last run of the job was interrupted.

use zagros_dense_worker::{ExitClass, LastRun, ResumePoint, RunFolder, RunLock, WorkerError};
use zagros_job::{Change, Job};
use zagros_shell::{Exit, Failure, OrInternal, check_folders, note};

/// The folder of a run that starts now.
pub(crate) struct Start {
    pub(crate) folder: RunFolder,
    /// Where an earlier process was.
    pub(crate) point: Option<ResumePoint>,
    /// Keeps others from going on with the same run meanwhile.
    _lock: Option<RunLock>,
}

impl Start {
    /// Goes on with the last run of the job's name that was interrupted, unless a `fresh` one is wanted.
    ///
    /// # Errors
    /// When the job has changed in a way that makes what was learned meaningless, with every such key.
    pub(crate) fn of(job: &Job, fresh: bool) -> Result<Self, Failure> {
        check_folders(job)?;
        let last = if fresh { None } else { ResumePoint::of_last_run(job).map_err(failed)? };
        let Some(LastRun { folder, lock, point }) = last else {
            let folder = RunFolder::create(job).or_internal()?;
            let lock = folder.lock().or_internal()?;
            return Ok(Self { folder, point: None, _lock: lock });
        };
        let changed = check(job, &point)?;
        if !changed.is_empty() {
            note!("changed since step {}:{}", point.step(), list(&changed));
        }
        Ok(Self { folder, point: Some(point), _lock: Some(lock) })
    }

    /// Goes on in a folder that others know too, as far as anything was left there.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub(crate) fn within(folder: RunFolder, job: &Job, fresh: bool) -> Result<Self, Failure> {
        let point = if fresh { None } else { ResumePoint::newest(job, &folder).map_err(failed)? };
        if let Some(point) = &point {
            check(job, point)?;
        }
        Ok(Self { folder, point, _lock: None })
    }
}

/// What has changed since and may; refuses what may not.
fn check(job: &Job, point: &ResumePoint) -> Result<Vec<Change>, Failure> {
    let (allowed, refused): (Vec<Change>, Vec<Change>) =
        point.changes(job).into_iter().partition(|change| change.allowed);
    if !refused.is_empty() {
        let what = format!(
            "the job has changed since step {} of the run that it would go on with ({}):{}",
            point.step(),
            point.folder(),
            list(&refused)
        );
        let help = "what was learned means something else now: start over with --fresh, or set these keys back";
        return Err(Failure::with_help(Exit::Usage, what, help));
    }
    Ok(allowed)
}

fn list(changes: &[Change]) -> String {
    changes.iter().map(|change| format!("\n  {change}")).collect()
}

/// A checkpoint that cannot be read is bad data, wherever it is; a store that cannot be asked is not.
pub(crate) fn failed(error: WorkerError) -> Failure {
    let exit = match error.exit_class() {
        ExitClass::Usage => Exit::Usage,
        ExitClass::Cluster => Exit::Cluster,
        _ => Exit::Data,
    };
    Failure::from_error(exit, error)
}
