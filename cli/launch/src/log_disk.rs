//! The disk that the logs of the embedding servers need on this machine (`cluster.durability`).

use std::path::Path;

use indicatif::HumanBytes;
use zagros_job::{Job, Table};
use zagros_plumbing::metrics::DiskSpace;

/// Bytes of a row in the log besides its words: its id, and its access metadata.
const ROW_BYTES: u64 = 12;
/// While a base is written there are two of them, and a tail of half a base. So many halves are usually on the disk.
const HALVES: u64 = 5;
/// While bases are slow or fail, the tail grows to two bases. Then pushes are refused.
const MOST_HALVES: u64 = 8;
/// Two segments of room.
const ROOM: u64 = 128 << 20;
/// The shortest tail that leads to a base. A tail may be four times as long.
const TAIL: u64 = 256 << 20;
/// A segment, without which no push is acknowledged.
const SEGMENT: u64 = 64 << 20;
/// Bytes of a server's log however few rows it has.
const LEAST: u64 = TAIL + ROOM;

/// What the logs of all servers of a job may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogDisk {
    /// For each million rows that are in memory, spread evenly over the tables.
    million: u64,
    /// However few rows there are.
    least: u64,
    /// The first segments, without which no push is acknowledged.
    first: u64,
    /// With as many rows in memory as `cluster.memory` lets in; `None` without a limit.
    most: Option<u64>,
}

impl LogDisk {
    /// What the servers of a job may take. `None` if they keep no log.
    #[must_use]
    pub fn from_job(job: &Job) -> Option<Self> {
        let servers = u64::from(job.cluster.servers);
        let tables = job.tables.len().max(1) as u64;
        let bytes = |table: &Table| 4 * table.table_config().stride() as u64 + ROW_BYTES;
        let row = job.tables.iter().map(bytes).sum::<u64>() / tables;
        let least = LEAST.saturating_mul(servers);
        let most_of_one = |memory: u64| (memory.saturating_mul(MOST_HALVES) / 2).saturating_add(4 * TAIL + ROOM);
        let most = job.cluster.memory.map(|memory| most_of_one(memory).saturating_mul(servers));
        let million = row * 1_000_000 * HALVES / 2;
        job.cluster.durability.has_log().then_some(Self {
            million,
            least,
            first: SEGMENT.saturating_mul(servers),
            most,
        })
    }

    /// In words, for logs below `folder`.
    #[must_use]
    pub fn describe(&self, folder: &Path, space: Option<DiskSpace>) -> String {
        let (million, least) = (HumanBytes(self.million), HumanBytes(self.least));
        let most = self.most.map_or_else(String::new, |most| format!("; at most {}", HumanBytes(most)));
        let free = space.map_or_else(String::new, |space| format!(", which has {} free", HumanBytes(space.free)));
        format!("{least}, and {million} per million rows in memory{most}, below {}{free}", folder.display())
    }

    /// Why the run cannot start, if the disk has no room for the first segments.
    #[must_use]
    pub fn refusal_message(&self, folder: &Path, space: Option<DiskSpace>) -> Option<String> {
        let free = space?.free;
        (free < self.first).then(|| {
            format!(
                "the logs of the embedding servers need {} to begin with, and {} has {} free",
                HumanBytes(self.first),
                folder.display(),
                HumanBytes(free)
            )
        })
    }

    /// A warning, if the disk may fill.
    #[must_use]
    pub fn warning(&self, space: Option<DiskSpace>) -> Option<String> {
        let (free, need) = (space?.free, self.most.unwrap_or(self.least));
        (need > free).then(|| {
            format!(
                "the logs of the embedding servers may need {}, and their disk has {} free: name a larger disk in \
                 cluster.log_folder, or lower cluster.memory; servers with a full disk refuse pushes until it has room",
                HumanBytes(need),
                HumanBytes(free)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use zagros_job::Overrides;

    use super::*;

    fn job(cluster: &str) -> Job {
        let text = format!("[data]\nformat = 'criteo'\ntrain = 'a'\n[embedding]\ndim = 16\n[cluster]\n{cluster}\n");
        Job::parse(&text, Path::new("job.toml"), &Overrides::none()).unwrap()
    }

    #[test]
    fn the_disk_of_the_logs_is_counted_where_there_are_logs() {
        assert_eq!(LogDisk::from_job(&job("durability = 'checkpoint'")), None);
        let disk = LogDisk::from_job(&job("durability = 'process'\nservers = 2")).unwrap();
        // 16 weights and 16 values of Adagrad, id and access metadata, in two bases and a half.
        assert_eq!(disk, LogDisk { million: 350_000_000, least: 768 << 20, first: 128 << 20, most: None });
        let space = |free| Some(DiskSpace { free, size: u64::MAX });
        assert_eq!(disk.refusal_message(Path::new("logs"), space(128 << 20)), None);
        assert_eq!(disk.refusal_message(Path::new("logs"), None), None);
        let lack = disk.refusal_message(Path::new("logs"), space(127 << 20)).unwrap();
        assert_eq!(
            lack,
            "the logs of the embedding servers need 128.00 MiB to begin with, and logs has 127.00 MiB free"
        );
        assert_eq!(disk.warning(space(768 << 20)), None);
        assert!(disk.warning(space(700 << 20)).unwrap().contains("cluster.log_folder"));
        let disk = LogDisk::from_job(&job("durability = 'machine'\nmemory = '1GiB'")).unwrap();
        assert_eq!(disk.most, Some((4 << 30) + ((1024 + 128) << 20)), "two bases, and a tail of two");
        assert!(disk.warning(space(1 << 30)).unwrap().contains("may need 5.12 GiB, and their disk has 1.00 GiB free"));
        let text = disk.describe(Path::new("logs"), space(1 << 30));
        assert_eq!(
            text,
            "384.00 MiB, and 333.79 MiB per million rows in memory; at most 5.12 GiB, below logs, which has 1.00 GiB free"
        );
    }
}
