//! Where a run starts: from the beginning, or where the last run of the job was interrupted.

use zagros_dense_worker::{EarlierRun, ExitClass, LastRun, ResumePoint, RunFolder, RunLock, Worker, WorkerError};
use zagros_job::{Job, KeyChange};
use zagros_plumbing::lifecycle::Shutdown;
use zagros_shell::launch::EmbeddedCluster;
use zagros_shell::{Exit, Failure, check_folders, note};

use crate::backend::backend;

/// How an earlier run of the job is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResumeChoice {
    /// Resume the last run that learned as this job does.
    Same,
    /// `--resume`: resume the last run, although the job learns differently now.
    Changed,
    /// `--fresh`: resume no run.
    Nothing,
}

/// The folder of the run that starts now, and its resume point.
pub(crate) struct RunStart {
    pub(crate) folder: RunFolder,
    pub(crate) point: Option<ResumePoint>,
    /// Keeps other processes from resuming the same run.
    _lock: Option<RunLock>,
}

impl ResumeChoice {
    /// The choice of the flags, which exclude each other.
    pub(crate) fn new(fresh: bool, resume: bool) -> Self {
        match (fresh, resume) {
            (true, _) => Self::Nothing,
            (false, true) => Self::Changed,
            (false, false) => Self::Same,
        }
    }
}

impl RunStart {
    /// Resumes an interrupted run of the job's name, if one fits `wanted`. A job that learns differently than the
    /// interrupted run is another experiment: it starts its own run, and a line says so. Refused are changes that make the
    /// learned values meaningless, with every such key, and a run none of whose checkpoints is intact.
    pub(crate) fn find(job: &Job, wanted: ResumeChoice) -> Result<Self, Failure> {
        check_folders(job)?;
        let earlier = match wanted {
            ResumeChoice::Nothing => EarlierRun::Nothing,
            _ => ResumePoint::of_last_run(job, wanted == ResumeChoice::Changed).map_err(failed)?,
        };
        match earlier {
            EarlierRun::GoOn(LastRun { folder, lock, point }) => {
                tell_changes(job, &point)?;
                Ok(Self { folder, point: Some(point), _lock: Some(lock) })
            }
            EarlierRun::Differs(point) => {
                tell_other_run(job, &point);
                Self::anew(job)
            }
            EarlierRun::Nothing => Self::anew(job),
        }
    }

    fn anew(job: &Job) -> Result<Self, Failure> {
        let folder = ResumePoint::new_run(job).map_err(failed)?;
        let lock = folder.try_lock().map_err(failed)?;
        Ok(Self { folder, point: None, _lock: lock })
    }

    /// A worker that starts here, with the whole cluster in this process.
    pub(crate) async fn worker(&self, job: Job, shutdown: Shutdown) -> Result<Worker, Failure> {
        let EmbeddedCluster { control, connect, registry } = EmbeddedCluster::start(&job).await?;
        let (folder, resume) = (Some(self.folder.clone()), self.point.clone());
        Ok(Worker { folder, resume, shutdown, ..Worker::without_peers(job, backend(), control, connect, registry) })
    }

    /// Resumes the run of a given folder, if it left anything there. Only the wanted run can be in the folder, because a
    /// run has one folder.
    /// Refuses a job that learns differently now, without [`ResumeChoice::Changed`].
    pub(crate) fn in_folder(folder: RunFolder, job: &Job, wanted: ResumeChoice) -> Result<Self, Failure> {
        let point = match wanted {
            ResumeChoice::Nothing => None,
            _ => ResumePoint::find_newest(job, &folder).map_err(failed)?,
        };
        if let Some(point) = &point {
            let changed = check(job, point)?;
            if wanted == ResumeChoice::Same && changed.iter().any(KeyChange::is_learning) {
                let what = format!(
                    "the job learns differently than the run in {} did up to step {}:{}",
                    folder.path().display(),
                    point.step(),
                    list(&changed)
                );
                let help =
                    "--resume continues with these values, --fresh starts over in this folder; or name another folder";
                return Err(Failure::usage(what, help));
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

/// Says that an interrupted run is left alone, and how to resume it.
fn tell_other_run(job: &Job, point: &ResumePoint) {
    let changes = point.changed_keys(job);
    let (step, place) = (point.step(), point.folder());
    let help = match changes.iter().all(KeyChange::may_go_on) {
        true => "--resume continues that run with these values",
        false => "the values that it learned would lose their meaning",
    };
    note!(
        "a new run starts, because the interrupted one (step {step}, {place}) learned differently; {help}:{}",
        list(&changes)
    );
}

/// Refuses changes that are not allowed.
fn check(job: &Job, point: &ResumePoint) -> Result<Vec<KeyChange>, Failure> {
    let (allowed, refused): (Vec<KeyChange>, Vec<KeyChange>) =
        point.changed_keys(job).into_iter().partition(KeyChange::may_go_on);
    if !refused.is_empty() {
        let what = format!(
            "the job has changed since step {} of the run to resume ({}):{}",
            point.step(),
            point.folder(),
            list(&refused)
        );
        let help =
            "the learned values have no meaning with these changes; start over with --fresh, or restore these keys";
        return Err(Failure::usage(what, help));
    }
    if point.epoch() >= job.train.epochs {
        let (step, epoch, epochs) = (point.step(), point.epoch() + 1, job.train.epochs);
        let what = format!("the run to resume is in epoch {epoch} (step {step}), but `train.epochs` is {epochs} now");
        return Err(Failure::usage(what, "raise train.epochs, or start over with --fresh"));
    }
    Ok(allowed)
}

fn list(changes: &[KeyChange]) -> String {
    changes.iter().map(|change| format!("\n  {change}")).collect()
}

/// An error of checkpoints or folders, with its exit code.
pub(crate) fn failed(error: impl Into<WorkerError>) -> Failure {
    let error = error.into();
    let exit = match error.exit_class() {
        ExitClass::Usage => Exit::Usage,
        ExitClass::Cluster => Exit::Cluster,
        ExitClass::Storage => Exit::Storage,
        _ => Exit::Data,
    };
    Failure::from_error(exit, error)
}
