//! Where the embedding servers of a run on this machine keep their logs and the rows that do not fit into memory: in the run
//! folder, unless the job names a folder. And the disk that the logs need there (`cluster.durability`).

use std::path::{Path, PathBuf};

use indicatif::HumanBytes;
use zagros_job::{Job, Table};
use zagros_plumbing::metrics::DiskSpace;
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
    pub fn describe(&self, folder: &Path, space: Option<DiskSpace>) -> String {
        let (million, least) = (HumanBytes(self.million), HumanBytes(self.least));
        let most = self.most.map_or_else(String::new, |most| format!("; at most {}", HumanBytes(most)));
        let free = space.map_or_else(String::new, |space| format!(", which has {} free", HumanBytes(space.free)));
        format!("{least}, and {million} per million rows in memory{most}, below {}{free}", folder.display())
    }

    /// Why the run cannot start, if the disk has no room for the first segments.
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

    #[test]
    fn servers_keep_rows_in_the_run_folder_unless_the_job_names_another() {
        let sets = |more: &str| RowFolders::new(&job(more), Path::new("runs/a")).sets().collect::<Vec<_>>();
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
        let expected = "the logs of the embedding servers need 128.00 MiB to begin with, and logs has 127.00 MiB free";
        assert_eq!(lack, expected);
        assert_eq!(disk.warning(space(768 << 20)), None);
        assert!(disk.warning(space(700 << 20)).unwrap().contains("cluster.log_folder"));
        let disk = LogDisk::from_job(&job("durability = 'machine'\nmemory = '1GiB'")).unwrap();
        assert_eq!(disk.most, Some((4 << 30) + ((1024 + 128) << 20)), "two bases, and a tail of two");
        assert!(disk.warning(space(1 << 30)).unwrap().contains("may need 5.12 GiB, and their disk has 1.00 GiB free"));
        let text = "384.00 MiB, and 333.79 MiB per million rows in memory; at most 5.12 GiB, below logs, which has 1.00 GiB free";
        assert_eq!(disk.describe(Path::new("logs"), space(1 << 30)), text);
    }
}
