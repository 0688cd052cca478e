//! Where a run starts: from nothing, or where the last run of the job was interrupted.

use zagros_dense_worker::{Earlier, ExitClass, LastRun, ResumePoint, RunFolder, RunLock, WorkerError};
use zagros_job::{Job, KeyChange};
use zagros_shell::{Exit, Failure, check_folders, note};

/// What is wanted of earlier runs of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResumeChoice {
    /// To go on with the last one that learned as this job does.
    Same,
    /// `--resume`: to go on with the last one, though something else is learned from there on.
    Changed,
    /// `--fresh`: nothing.
    Nothing,
}

/// The folder of a run that starts now.
pub(crate) struct Start {
    pub(crate) folder: RunFolder,
    /// Where an earlier process was.
    pub(crate) point: Option<ResumePoint>,
    /// Keeps others from going on with the same run meanwhile.
    _lock: Option<RunLock>,
}

impl ResumeChoice {
    /// As the flags say, which exclude each other.
    pub(crate) fn new(fresh: bool, resume: bool) -> Self {
        match (fresh, resume) {
            (true, _) => Self::Nothing,
            (false, true) => Self::Changed,
            (false, false) => Self::Same,
        }
    }
}

impl Start {
    /// Goes on with a run of the job's name that was interrupted, where there is one such as is wanted. A job that learns
    /// otherwise than the interrupted one is another experiment: it starts a run of its own, and a line says so.
    ///
    /// # Errors
    /// When a run was to go on with changes that make what was learned meaningless, with every such key; when none of
    /// its checkpoints is intact.
    pub(crate) fn of(job: &Job, wanted: ResumeChoice) -> Result<Self, Failure> {
        check_folders(job)?;
        let earlier = match wanted {
            ResumeChoice::Nothing => Earlier::Nothing,
            _ => ResumePoint::of_last_run(job, wanted == ResumeChoice::Changed).map_err(failed)?,
        };
        match earlier {
            Earlier::GoOn(LastRun { folder, lock, point }) => {
                tell_changes(job, &point)?;
                Ok(Self { folder, point: Some(point), _lock: Some(lock) })
            }
            Earlier::Differs(point) => {
                tell_other_run(job, &point);
                Self::anew(job)
            }
            Earlier::Nothing => Self::anew(job),
        }
    }

    fn anew(job: &Job) -> Result<Self, Failure> {
        let folder = ResumePoint::new_run(job).map_err(failed)?;
        let lock = folder.lock().map_err(failed)?;
        Ok(Self { folder, point: None, _lock: lock })
    }

    /// Goes on in a folder that others know too, as far as anything was left there. Nothing else than what was wanted
    /// can be started there: a run has one folder.
    ///
    /// # Errors
    /// As [`Self::of`], and when something else is learned now and [`ResumeChoice::Changed`] was not said.
    pub(crate) fn within(folder: RunFolder, job: &Job, wanted: ResumeChoice) -> Result<Self, Failure> {
        let point = match wanted {
            ResumeChoice::Nothing => None,
            _ => ResumePoint::newest(job, &folder).map_err(failed)?,
        };
        if let Some(point) = &point {
            let changed = check(job, point)?;
            if wanted == ResumeChoice::Same && changed.iter().any(KeyChange::is_learning) {
                let what = format!(
                    "the job learns otherwise than the run in {} did up to step {}:{}",
                    folder.path().display(),
                    point.step(),
                    list(&changed)
                );
                let help = "--resume goes on with these values, --fresh starts over in this folder; or name another";
                return Err(Failure::with_help(Exit::Usage, what, help));
            }
        }
        Ok(Self { folder, point, _lock: None })
    }
}

fn tell_changes(job: &Job, point: &ResumePoint) -> Result<(), Failure> {
    let changed = check(job, point)?;
    if !changed.is_empty() {
        note!("changed since step {}:{}", point.step(), list(&changed));
    }
    Ok(())
}

/// That an interrupted run is there and is left alone, and how to go on with it.
fn tell_other_run(job: &Job, point: &ResumePoint) {
    let changes = point.changes(job);
    let (step, place) = (point.step(), point.folder());
    let help = match changes.iter().all(KeyChange::may_go_on) {
        true => "--resume goes on with that run and these values",
        false => "what that run has learned would mean something else",
    };
    note!("a new run: the interrupted one (step {step}, {place}) learned otherwise; {help}:{}", list(&changes));
}

/// What has changed since and may; refuses what may not.
fn check(job: &Job, point: &ResumePoint) -> Result<Vec<KeyChange>, Failure> {
    let (allowed, refused): (Vec<KeyChange>, Vec<KeyChange>) =
        point.changes(job).into_iter().partition(KeyChange::may_go_on);
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
    if point.epoch() >= job.train.epochs {
        let (step, epoch, epochs) = (point.step(), point.epoch() + 1, job.train.epochs);
        let what =
            format!("the run to go on with is in epoch {epoch} (step {step}), and `train.epochs` is {epochs} now");
        return Err(Failure::with_help(Exit::Usage, what, "raise train.epochs, or start over with --fresh"));
    }
    Ok(allowed)
}

fn list(changes: &[KeyChange]) -> String {
    changes.iter().map(|change| format!("\n  {change}")).collect()
}

/// What is wrong with checkpoints or folders, with its exit code.
pub(crate) fn failed(error: WorkerError) -> Failure {
    let exit = match error.exit_class() {
        ExitClass::Usage => Exit::Usage,
        ExitClass::Cluster => Exit::Cluster,
        ExitClass::Storage => Exit::Storage,
        _ => Exit::Data,
    };
    Failure::from_error(exit, error)
}
