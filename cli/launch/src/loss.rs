//! What a lost dense worker costs the run, by the mode of its job.

use std::fs;
use std::path::Path;

use serde_json::Value;
use zagros_job::{Job, Mode};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerLoss {
    /// The worker alone is started again. The others wait for it, or train on.
    Replaced,
    /// Every process is started again, from the newest checkpoint: the runs of mode `sync` are bit-equal.
    SetsRunBack,
    EndsRun,
}

impl WorkerLoss {
    pub fn from_job(job: &Job) -> Self {
        match job.train.mode {
            _ if !job.cluster.has_groups() => Self::EndsRun,
            Mode::Sync => Self::SetsRunBack,
            Mode::Hybrid | Mode::Async => Self::Replaced,
        }
    }
}

/// Whether the run of this folder has written its model and its summary, which is the last thing that it writes (invariant CK-5). A
/// process that is lost afterwards costs nothing: its checkpoints may be gone, so the run would go back to its beginning.
#[must_use]
pub fn is_complete(folder: &Path) -> bool {
    let summary = fs::read(folder.join("summary.json")).ok();
    let summary = summary.and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    summary.is_some_and(|summary| summary["complete"] == true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_complete_by_its_summary() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_complete(folder.path()));
        for (summary, expected) in
            [(r#"{"complete":true}"#, true), (r#"{"complete":false}"#, false), (r#"{"compl"#, false), ("{}", false)]
        {
            fs::write(folder.path().join("summary.json"), summary).unwrap();
            assert_eq!(is_complete(folder.path()), expected, "{summary}");
        }
    }
}
