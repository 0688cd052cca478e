//! Where the embedding servers of a run on this machine keep their logs and the rows that do not fit into memory: in the run
//! folder, unless the job names a folder.

use std::path::{Path, PathBuf};

use zagros_job::Job;
use zagros_rows::log::{LogError, LogFolder};

/// Folder of the servers' logs, in the run folder.
const LOG: &str = "row-log";
/// Folder of the servers' cold tiers, in the run folder.
const COLD: &str = "cold-rows";

/// The folders in the run folder that servers use, since the job names none.
#[derive(Clone, Debug)]
pub struct RowFolders {
    log: Option<PathBuf>,
    cold: Option<PathBuf>,
    /// Where the logs are: in a folder of the run, or in the one that the job names.
    logs: PathBuf,
}

impl RowFolders {
    #[must_use]
    pub fn new(job: &Job, run: &Path) -> Self {
        let unless = |named: &Option<PathBuf>, name: &str| named.is_none().then(|| run.join(name));
        let logs = job.cluster.log_folder.clone().unwrap_or_else(|| run.join(LOG));
        Self { log: unless(&job.cluster.log_folder, LOG), cold: unless(&job.cluster.cold_folder, COLD), logs }
    }

    /// Changes to the job, `KEY=VALUE`.
    pub(crate) fn sets(&self) -> impl Iterator<Item = String> {
        let keys = [("cluster.log_folder", &self.log), ("cluster.cold_folder", &self.cold)];
        keys.into_iter().filter_map(|(key, folder)| Some(format!("{key}={}", folder.as_ref()?.display())))
    }

    pub(crate) fn logs(&self) -> &Path {
        &self.logs
    }

    /// Deletes the logs that servers of an earlier run have left: the run that starts takes no row from them, and a damaged one would
    /// keep its server from starting. Those of a server that lives stay. Answers how many were deleted.
    pub(crate) fn discard_logs(&self) -> usize {
        let entries = std::fs::read_dir(&self.logs).into_iter().flatten().flatten();
        let is_log =
            |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("server-"));
        let discard = |path: PathBuf| match LogFolder::open(&path).and_then(|log| log.wipe()) {
            Ok(()) => 1,
            Err(LogError::InUse { .. }) => 0,
            Err(error) => {
                tracing::warn!(%error, "the log of an earlier run could not be deleted");
                0
            }
        };
        entries.map(|entry| entry.path()).filter(is_log).map(discard).sum()
    }

    /// Removes the folders, with rows that a server left because the coordinator ended before it. Whatever is started
    /// later is another run, which takes no row from here.
    pub fn remove(&self) {
        for folder in self.log.iter().chain(&self.cold).filter(|folder| folder.exists()) {
            if let Err(error) = std::fs::remove_dir_all(folder) {
                let folder = folder.display();
                tracing::warn!(%error, %folder, "rows of a run that is over could not be removed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use zagros_job::Overrides;

    use super::*;

    #[test]
    fn servers_keep_rows_in_the_run_folder_unless_the_job_names_another() {
        let text = "[data]\nformat = 'criteo'\ntrain = 'a'\n";
        let sets = |more: &str| {
            let job =
                Job::parse(&format!("{text}[cluster]\n{more}"), Path::new("job.toml"), &Overrides::none()).unwrap();
            RowFolders::new(&job, Path::new("runs/a")).sets().collect::<Vec<_>>()
        };
        assert_eq!(sets(""), ["cluster.log_folder=runs/a/row-log", "cluster.cold_folder=runs/a/cold-rows"]);
        assert_eq!(sets("log_folder = '/disk'"), ["cluster.cold_folder=runs/a/cold-rows"]);
        assert_eq!(sets("log_folder = '/disk'\ncold_folder = '/ssd'"), [""; 0]);
    }

    #[test]
    fn folders_that_the_job_does_not_name_are_removed() {
        let run = tempfile::tempdir().unwrap();
        let log = run.path().join(LOG);
        let folders = RowFolders { log: Some(log.clone()), cold: None, logs: log };
        std::fs::create_dir_all(run.path().join(LOG).join("server-0")).unwrap();
        std::fs::create_dir(run.path().join(COLD)).unwrap();
        folders.remove();
        folders.remove();
        assert!(!run.path().join(LOG).exists() && run.path().join(COLD).exists());
    }

    /// Whatever happened to the log of a server, the run that starts from a checkpoint does not need it.
    #[test]
    fn logs_of_an_earlier_run_are_deleted_also_where_they_are_damaged() {
        let run = tempfile::tempdir().unwrap();
        let logs = run.path().join(LOG);
        let folders = RowFolders { log: None, cold: None, logs: logs.clone() };
        assert_eq!(folders.discard_logs(), 0);
        for (index, file) in ["lineage.json", "segment-0000000000000000.log", "written"].into_iter().enumerate() {
            let folder = logs.join(format!("server-{index}"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(file), "damaged").unwrap();
        }
        std::fs::write(logs.join("notes.txt"), "a person's").unwrap();
        let lives = LogFolder::open(&logs.join("server-3")).unwrap();
        assert_eq!(folders.discard_logs(), 3);
        let left: Vec<_> = std::fs::read_dir(&logs).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.len() == 2 && lives.path().is_dir() && logs.join("notes.txt").exists(), "{left:?}");
    }
}
