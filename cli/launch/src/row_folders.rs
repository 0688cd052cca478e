//! Where the embedding servers of a run on this machine keep their logs and the rows that do not fit into memory: in the run
//! folder, unless the job names a folder.

use std::path::{Path, PathBuf};

use zagros_job::Job;

/// Folder of the servers' logs, in the run folder.
const LOG: &str = "row-log";
/// Folder of the servers' cold tiers, in the run folder.
const COLD: &str = "cold-rows";

/// The folders in the run folder that servers use, since the job names none.
#[derive(Clone, Debug)]
pub struct RowFolders {
    log: Option<PathBuf>,
    cold: Option<PathBuf>,
}

impl RowFolders {
    /// Those of a run.
    #[must_use]
    pub fn of(job: &Job, run: &Path) -> Self {
        let unless = |named: &Option<PathBuf>, name: &str| named.is_none().then(|| run.join(name));
        Self { log: unless(&job.cluster.log_folder, LOG), cold: unless(&job.cluster.cold_folder, COLD) }
    }

    /// Changes to the job, `KEY=VALUE`.
    pub(crate) fn sets(&self) -> impl Iterator<Item = String> {
        let keys = [("cluster.log_folder", &self.log), ("cluster.cold_folder", &self.cold)];
        keys.into_iter().filter_map(|(key, folder)| Some(format!("{key}={}", folder.as_ref()?.display())))
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
            RowFolders::of(&job, Path::new("runs/a")).sets().collect::<Vec<_>>()
        };
        assert_eq!(sets(""), ["cluster.log_folder=runs/a/row-log", "cluster.cold_folder=runs/a/cold-rows"]);
        assert_eq!(sets("log_folder = '/disk'"), ["cluster.cold_folder=runs/a/cold-rows"]);
        assert_eq!(sets("log_folder = '/disk'\ncold_folder = '/ssd'"), [""; 0]);
    }

    #[test]
    fn folders_that_the_job_does_not_name_are_removed() {
        let run = tempfile::tempdir().unwrap();
        let folders = RowFolders { log: Some(run.path().join(LOG)), cold: None };
        std::fs::create_dir_all(run.path().join(LOG).join("server-0")).unwrap();
        std::fs::create_dir(run.path().join(COLD)).unwrap();
        folders.remove();
        folders.remove();
        assert!(!run.path().join(LOG).exists() && run.path().join(COLD).exists());
    }
}
