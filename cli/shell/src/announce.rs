//! The announcement of a role: a file with its addresses, written once it listens. The parent, a script or a person reads
//! it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zagros_plumbing::durable;

/// Content of `roles/<role>.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// `coordinator`, `embedding-server-0`, `dense-worker-0`, …
    pub role: String,
    pub pid: u32,
    /// `host:port` of gRPC; empty for a worker, which has none.
    pub address: String,
    /// `host:port` of /healthz, /readyz and /metrics.
    pub admin: String,
}

impl Announcement {
    /// Writes the whole file or nothing.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        durable::write(path, serde_json::to_string_pretty(self)?.as_bytes()).map_err(durable::add_path(path))
    }

    /// Whether the process that wrote it still runs on this machine.
    #[must_use]
    pub fn is_live(&self) -> bool {
        // A killed process that its parent has not waited for does not run, and another process may have got its id.
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let is_zombie = status.lines().any(|line| line.starts_with("State:") && line.contains('Z'));
        let is_ours = status.lines().next().is_some_and(|name| name.contains("zagros"));
        is_ours && !is_zombie
    }

    /// `None` while there is no file.
    pub fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }
}

/// The coordinator's announcement, relative to the run folder.
#[must_use]
pub(crate) fn coordinator_file(run: &Path) -> PathBuf {
    run.join("roles").join("coordinator.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("roles/coordinator.json");
        assert_eq!(Announcement::read(&path), None);
        let announced = Announcement {
            role: "coordinator".into(),
            pid: 7,
            address: "127.0.0.1:1".into(),
            admin: "127.0.0.1:2".into(),
        };
        announced.write(&path).unwrap();
        assert_eq!(Announcement::read(&path), Some(announced));
    }
}
