//! The state of the run in a file: `zagros doctor` reads it when the coordinator does not answer, or has ended.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracing::warn;
use zagros_coordinator_core::doctor::Observation;
use zagros_plumbing::Shutdown;

use crate::LocalCoordinator;

/// How old the file is at most, while the process lives.
const PERIOD: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub(crate) struct StateFile {
    path: PathBuf,
    /// A disk that is full is reported once.
    has_failed: Arc<AtomicBool>,
}

impl StateFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, has_failed: Arc::default() }
    }

    pub(crate) async fn keep_writing(&self, coordinator: &LocalCoordinator, shutdown: &Shutdown) {
        loop {
            self.write_once(coordinator).await;
            tokio::select! {
                () = tokio::time::sleep(PERIOD) => {}
                () = shutdown.requested() => return,
            }
        }
    }

    /// Writes once. What fails here fails nothing else.
    pub(crate) async fn write_once(&self, coordinator: &LocalCoordinator) {
        let observation = Observation::from(&coordinator.read_status());
        let path = self.path.clone();
        let written = tokio::task::spawn_blocking(move || replace(&path, &observation)).await;
        let failed = written.map_err(io::Error::other).and_then(|written| written).err();
        if let (Some(error), false) = (&failed, self.has_failed.load(Ordering::Relaxed)) {
            warn!(file = %self.path.display(), %error, "the state of the run is not written; the run goes on");
        }
        self.has_failed.store(failed.is_some(), Ordering::Relaxed);
    }
}

/// Replaces the file as a whole. It need not survive a loss of power, so nothing is synced.
fn replace(path: &Path, observation: &Observation) -> io::Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, serde_json::to_vec(observation)?)?;
    std::fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use zagros_job::{Job, Overrides};

    use super::*;

    #[tokio::test]
    async fn the_file_is_replaced_and_a_folder_that_is_gone_stops_nothing() {
        let text = "name = 'ads'\n[data]\nformat = 'criteo'\ntrain = 'a.txt'\n";
        let job = Job::parse(text, Path::new("job.toml"), &Overrides::none()).unwrap();
        let coordinator = LocalCoordinator::new(&job, &prometheus::Registry::new());
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("state.json"));
        for _ in 0..2 {
            file.write_once(&coordinator).await;
            let read = std::fs::read(&file.path).unwrap();
            let observation: Observation = serde_json::from_slice(&read).unwrap();
            assert_eq!((observation.job.as_str(), observation.state.as_str()), ("ads", "waiting"));
        }
        drop(folder);
        file.write_once(&coordinator).await;
        assert!(file.has_failed.load(Ordering::Relaxed));
    }
}
