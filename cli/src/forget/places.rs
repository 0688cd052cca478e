//! Where rows of a model are: its folder, or those of a run: model, kept states, checkpoints, logs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use zagros_dense_worker::{RunFolder, RunLock};
use zagros_job::{Job, Overrides};
use zagros_scoring::MANIFEST;
use zagros_shell::launch::RowFolders;
use zagros_shell::{Announcement, Exit, Failure, err};
use zagros_store::Folder;

use crate::resume::failed;
use crate::saved::{self, SavedModel, refused};

/// Names of the folders of checkpoints and of kept states begin so.
const STATES: [&str; 2] = ["resume-", "step-"];
/// Folder of both in a run folder.
const CHECKPOINTS: &str = "checkpoints";

/// The folders of a model or a run. It holds the lock of a run folder on disk, so no process trains in that run while it exists.
/// [`ForgetPlace::of_live_run`] takes no lock.
pub(crate) struct ForgetPlace {
    /// What was named, where the audit file goes.
    pub(crate) named: Folder,
    /// Folders with a manifest.
    pub(crate) saves: Vec<Folder>,
    /// Folders without one, which may hold rows: of saves that did not finish, and of files that other saves need.
    pub(crate) others: Vec<Folder>,
    run: Option<PathBuf>,
    /// The folders of logs and rows beyond memory that the run's servers left.
    left: Option<RowFolders>,
    _lock: Option<RunLock>,
}

impl ForgetPlace {
    /// Finds the folders of a model or a run: a path, or `s3://bucket/prefix`. Refuses one checkpoint of several, and a run
    /// that trains.
    pub(crate) fn find(named: &Path, timeout: Duration) -> Result<Self, Failure> {
        if named.is_file() {
            let what = format!("{} is a file", named.display());
            return Err(Failure::usage(what, "name the run folder, or the folder of the model"));
        }
        let named = saved::open(named, timeout)?;
        // `.` has no name and no parent.
        let whole = named.path().and_then(|path| path.canonicalize().ok()).map(Folder::on_disk);
        let named = whole.unwrap_or(named);
        if named.has_file(MANIFEST).map_err(refused)? { Self::of_model(named) } else { Self::of_run(named, timeout) }
    }

    fn of_model(named: Folder) -> Result<Self, Failure> {
        if named.name().is_some_and(is_state) {
            let what = format!("{named} is one checkpoint of a run, and shares files with others");
            let help = "name the run folder (or the folder of all checkpoints of the run): all are treated together";
            return Err(Failure::usage(what, help));
        }
        let run = named.path().and_then(Path::parent).filter(|run| run.join("job.toml").is_file());
        let lock = run.map(lock).transpose()?.flatten();
        let run = run.map(Path::to_owned);
        Ok(Self { saves: vec![named.clone()], named, others: Vec::new(), run, left: None, _lock: lock })
    }

    fn of_run(named: Folder, timeout: Duration) -> Result<Self, Failure> {
        // The checkpoints alone are changed by the run that trains as well.
        let run = named.path().map(|path| path.parent().filter(|_| path.ends_with(CHECKPOINTS)).unwrap_or(path));
        let lock = run.filter(|run| run.join("job.toml").is_file()).map(lock).transpose()?.flatten();
        Self::folders(named, timeout, lock)
    }

    /// The folders of a run that trains. Only for reading.
    pub(crate) fn of_live_run(run: &Path, timeout: Duration) -> Result<Self, Failure> {
        Self::folders(saved::open(run, timeout)?, timeout, None)
    }

    fn folders(named: Folder, timeout: Duration, lock: Option<RunLock>) -> Result<Self, Failure> {
        let run = named.path().filter(|run| run.join("job.toml").is_file()).map(Path::to_owned);
        let job = run.as_deref().map(job).transpose()?;
        let mut folders = vec![named.join("model")];
        if let Some(model) = SavedModel::of_run(&named, timeout)? {
            folders.push(model.folder);
        }
        let mut roots = vec![named.clone(), named.join(CHECKPOINTS)];
        if let (Some(job), Some(name)) = (&job, named.name())
            && let Some(root) = &job.checkpoint.folder
        {
            roots.push(Folder::open(root, job.cluster.timeout).map_err(refused)?.join(name));
        }
        for root in roots {
            let states = root.folder_names().map_err(refused)?.into_iter().filter(|name| is_state(name));
            folders.extend(states.map(|name| root.join(&name)));
        }
        folders.sort_by_key(ToString::to_string);
        folders.dedup_by_key(|folder| folder.to_string());
        let (mut saves, mut others) = (Vec::new(), Vec::new());
        for folder in folders {
            if folder.has_file(MANIFEST).map_err(refused)? { saves.push(folder) } else { others.push(folder) }
        }
        if saves.is_empty() {
            return Err(saved::no_model(&named));
        }
        let left = job.as_ref().zip(run.as_deref()).map(|(job, run)| RowFolders::new(job, run));
        if let Some(log) = job.and_then(|job| job.cluster.log_folder) {
            let log = log.display();
            err!(
                "the servers of this run kept logs in {log}; rows that are left there are not removed by this command"
            );
        }
        Ok(Self { named, saves, others, run, left, _lock: lock })
    }

    pub(super) fn run(&self) -> Option<&Path> {
        self.run.as_deref()
    }

    /// Removes what servers of the run left: rows that no later run takes.
    pub(crate) fn remove_left(&self) {
        if let Some(left) = &self.left {
            left.remove();
        }
    }
}

/// Whether a folder of this name is one of a checkpoint or a kept state.
pub(super) fn is_state(name: &str) -> bool {
    STATES.iter().any(|start| name.starts_with(start))
}

pub(super) fn job(run: &Path) -> Result<Job, Failure> {
    Job::load(&run.join("job.toml"), &Overrides::none()).map_err(|errors| Failure::new(Exit::Usage, errors))
}

fn has_live_roles(run: &Path) -> bool {
    let roles = std::fs::read_dir(run.join("roles")).into_iter().flatten().filter_map(Result::ok);
    roles.filter_map(|file| Announcement::read(&file.path())).any(|role| role.is_live())
}

/// Takes the lock of a run folder, so that no process resumes the run meanwhile.
fn lock(run: &Path) -> Result<Option<RunLock>, Failure> {
    let lock = RunFolder::open(run).and_then(|folder| folder.try_lock()).map_err(failed)?;
    if lock.is_none() || has_live_roles(run) {
        let what = format!("a process trains in {}: it would write the rows again", run.display());
        let help = "of a run of `zagros up` name the whole run folder: its servers remove the rows. Stop any other (Ctrl-C, SIGTERM; \
                    it saves a checkpoint), give this command again, then resume the run by its own command";
        return Err(Failure::usage(what, help));
    }
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);
    const JOB: &str = "name = 'ads'\n[data]\nformat = 'criteo'\ntrain = '/a'\n";

    fn find(path: &Path) -> Result<Vec<String>, String> {
        let place = ForgetPlace::find(path, TIMEOUT).map_err(|failure| format!("{failure:?}"))?;
        Ok(place.saves.iter().map(|folder| folder.name().unwrap().to_owned()).collect())
    }

    #[test]
    fn a_run_has_its_model_states_and_checkpoints_here_and_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let (run, root) = (folder.path().join("ads-1"), folder.path().join("root"));
        let saves = [run.join("model"), run.join("checkpoints/step-2"), root.join("ads-1/resume-7")];
        for save in &saves {
            std::fs::create_dir_all(save).unwrap();
            std::fs::write(save.join(MANIFEST), "{}").unwrap();
        }
        std::fs::create_dir_all(root.join("ads-1/resume-5")).unwrap();
        std::fs::write(run.join("job.toml"), format!("{JOB}[checkpoint]\nfolder = {root:?}\n")).unwrap();
        assert_eq!(find(&run), Ok(["step-2", "model", "resume-7"].map(str::to_owned).to_vec()));
        assert_eq!(find(&run.join("model")), Ok(vec!["model".to_owned()]));
        assert_eq!(find(&root.join("ads-1")), Ok(vec!["resume-7".to_owned()]));
        assert!(find(&saves[1]).unwrap_err().contains("is one checkpoint of a run"));
        assert!(find(&root).unwrap_err().contains("holds no model"));
    }

    #[test]
    fn a_run_that_trains_is_refused_by_its_lock_and_by_its_processes() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path();
        std::fs::create_dir_all(run.join("model")).unwrap();
        std::fs::write(run.join("model").join(MANIFEST), "{}").unwrap();
        std::fs::create_dir_all(run.join("checkpoints/resume-5")).unwrap();
        std::fs::write(run.join("checkpoints/resume-5").join(MANIFEST), "{}").unwrap();
        std::fs::write(run.join("job.toml"), JOB).unwrap();
        let lock = RunFolder::open(run).unwrap().try_lock().unwrap();
        for named in [run.to_owned(), run.join("model"), run.join(CHECKPOINTS)] {
            assert!(find(&named).unwrap_err().contains("a process trains in"), "{}", named.display());
        }
        drop(lock);
        assert!(find(run).is_ok() && find(&run.join(CHECKPOINTS)).is_ok());
        let pid = std::process::id();
        let role = Announcement { role: "dense-worker-0".into(), pid, address: String::new(), admin: String::new() };
        role.write(&run.join("roles/dense-worker-0.json")).unwrap();
        assert!(find(run).unwrap_err().contains("a process trains in"));
    }
}
