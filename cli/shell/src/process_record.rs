//! What the processes of a run leave in its folder: a file of each role with its addresses, and the starts and ends of all,
//! one JSON object per line. `zagros up` writes these, and `zagros doctor` reads which process ended first, and how.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use zagros_plumbing::durable;

const FILE: &str = "logs/processes.jsonl";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// When, in RFC 3339.
    pub time: String,
    /// `embedding-server-1`, as in the names of its files; `up` for the parent of all.
    pub role: String,
    pub pid: u32,
    #[serde(flatten)]
    pub change: ProcessChange,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum ProcessChange {
    Started,
    Ended {
        /// How, in words: `was killed by signal 9`.
        how: String,
        /// Whether this is an end as it should be.
        well: bool,
        asked: bool,
    },
}

impl ProcessRecord {
    pub fn now(role: &str, pid: u32, change: ProcessChange) -> Self {
        let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        Self { time, role: role.to_owned(), pid, change }
    }

    pub fn append(&self, run: &Path) -> io::Result<()> {
        let path = run.join(FILE);
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        // One write: lines of two processes never mix.
        OpenOptions::new().create(true).append(true).open(path)?.write_all(&line)
    }

    /// The lines of the newest `zagros up` in the folder of a run; empty where none has written one. A line that is cut off
    /// is skipped.
    pub fn read(run: &Path) -> Vec<Self> {
        let text = std::fs::read_to_string(run.join(FILE)).unwrap_or_default();
        let all: Vec<Self> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let is_start = |record: &Self| record.role == UP && record.change == ProcessChange::Started;
        let first = all.iter().rposition(is_start).unwrap_or_default();
        all[first.min(all.len())..].to_vec()
    }
}

pub const UP: &str = "up";

/// Content of `roles/<role>.json`, written once the role listens. The parent, a script or a person reads it.
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
pub(crate) fn coordinator_file(run: &Path) -> PathBuf {
    run.join("roles").join("coordinator.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_the_newest_run_are_read_back_in_order() {
        let run = tempfile::tempdir().unwrap();
        assert!(ProcessRecord::read(run.path()).is_empty());
        let ended = ProcessChange::Ended { how: "was killed by signal 9".to_owned(), well: false, asked: false };
        let records = [
            ProcessRecord::now(UP, 1, ProcessChange::Started),
            ProcessRecord::now("coordinator", 2, ended.clone()),
            ProcessRecord::now(UP, 3, ProcessChange::Started),
            ProcessRecord::now("embedding-server-1", 4, ProcessChange::Started),
            ProcessRecord::now("embedding-server-1", 4, ended),
        ];
        records.iter().for_each(|record| record.append(run.path()).unwrap());
        let mut file = OpenOptions::new().append(true).open(run.path().join(FILE)).unwrap();
        file.write_all(b"{\"time\": \"20").unwrap();
        assert_eq!(ProcessRecord::read(run.path()), records[2..]);
        let text = std::fs::read_to_string(run.path().join(FILE)).unwrap();
        assert!(text.contains("\"event\":\"ended\",\"how\":\"was killed by signal 9\""), "{text}");
    }
}
