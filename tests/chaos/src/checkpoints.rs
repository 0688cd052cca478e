//! The checkpoints that a run has made.

use std::fs;
use std::path::Path;
use std::time::Duration;

use zagros_plumbing::Shutdown;

use crate::recorder::RoundRecorder;

const LOOK: Duration = Duration::from_millis(100);

/// Tells the ledger of each new checkpoint, until the run is over: the run goes back no further.
pub(crate) async fn settle(run: &Path, recorder: &RoundRecorder, over: &Shutdown) {
    while tokio::time::timeout(LOOK, over.requested()).await.is_err() {
        if let Some(step) = newest(run) {
            recorder.record().ledger.settle(step);
        }
    }
}

fn newest(run: &Path) -> Option<u64> {
    let entries = fs::read_dir(run.join("checkpoints")).ok()?;
    let step = |entry: &fs::DirEntry| entry.file_name().to_str()?.strip_prefix("resume-")?.parse::<u64>().ok();
    let whole = entries.flatten().filter(|entry| entry.path().join("manifest.json").is_file());
    whole.filter_map(|entry| step(&entry)).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_counts_once_it_is_whole() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(newest(run.path()), None);
        for (name, is_whole) in [("resume-000000000020", true), ("resume-000000000040", false), ("best-60", true)] {
            let folder = run.path().join("checkpoints").join(name);
            fs::create_dir_all(&folder).unwrap();
            if is_whole {
                fs::write(folder.join("manifest.json"), "{}").unwrap();
            }
        }
        assert_eq!(newest(run.path()), Some(20));
    }
}
