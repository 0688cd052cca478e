//! Starts and ends of the processes of a run, one JSON object per line, in the folder of its logs. `zagros up` writes it, and
//! `zagros doctor` reads which process ended first, and how.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// The file, in the folder of a run.
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
    #[must_use]
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
    #[must_use]
    pub fn read(run: &Path) -> Vec<Self> {
        let text = std::fs::read_to_string(run.join(FILE)).unwrap_or_default();
        let all: Vec<Self> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let is_start = |record: &Self| record.role == UP && record.change == ProcessChange::Started;
        let first = all.iter().rposition(is_start).unwrap_or_default();
        all[first.min(all.len())..].to_vec()
    }
}

/// The role of the parent process.
pub const UP: &str = "up";

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
