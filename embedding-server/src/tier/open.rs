//! Opens the cold store of a job.

use std::path::PathBuf;
use std::sync::Arc;

use prometheus::Registry;
use tracing::warn;
use zagros_job::Job;
use zagros_plumbing::process::file_limit;
use zagros_protocol::ServerIndex;
use zagros_rows::cold::{LogOptions, LogStore, StoreContent};
use zagros_rows::snapshot::format::RUN_BYTES;
use zagros_table::TableConfig;

use super::health::{INDEX_BESIDE, WatchedStore};
use crate::ServerError;
use crate::metrics::{ServerLabel, cold_call_metrics, register_cold_store};

pub(crate) type ColdTier = Arc<WatchedStore<LogStore>>;

/// The smallest size of a whole segment of the store: a part of the server's memory, within this range.
const SEGMENT: std::ops::RangeInclusive<usize> = 64 << 10..=4 << 20;

/// Smallest number of bytes of rows that a save sorts and writes together.
const LEAST_RUN: usize = 1 << 20;

/// A store keeps the files of its segments open: a dozen or more for each table, besides connections and the log.
const FILES: u64 = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryBudget {
    /// Bytes for rows and indexes. The index of the rows on disk counts, too.
    pub(crate) rows: usize,
    /// The most bytes of the index of the rows on disk: the first ones are beside the limit, then it takes them from the rows.
    pub(crate) index: usize,
    /// Bytes of buffers that are kept for the next request.
    pub(crate) kept: usize,
}

impl MemoryBudget {
    /// The memory budget of a job. The store's buffers are beside it, like the memory of the program itself.
    pub(crate) fn from_job(job: &Job) -> Option<Self> {
        let all = usize::try_from(job.cluster.memory?).unwrap_or(usize::MAX);
        let kept = all / 32;
        let rows = all - kept;
        Some(Self { rows, index: rows / 4 * 3 + INDEX_BESIDE, kept })
    }

    /// Bytes of rows that a save sorts and writes together: as much as is kept for requests. With fewer bytes, a block
    /// would span many buckets, and a load of some buckets could not skip it.
    pub(crate) fn run_bytes(&self) -> usize {
        self.kept.clamp(LEAST_RUN, RUN_BYTES)
    }
}

/// `None` unless memory is limited and a table keeps evicted rows.
pub(crate) fn open(
    job: &Job,
    index: ServerIndex,
    configs: &[TableConfig],
    content: StoreContent,
    registry: &Registry,
) -> Result<Option<ColdTier>, ServerError> {
    let Some(memory) = MemoryBudget::from_job(job).filter(|_| is_needed(job, configs)) else { return Ok(None) };
    if let Some(files) = file_limit().filter(|files| *files < FILES) {
        warn!(server = %index, files, "this process may open few files: rows cannot leave memory once the limit is reached; raise it (ulimit -n, LimitNOFILE) to {FILES} or more");
    }
    let widths: Vec<usize> = configs.iter().map(TableConfig::cold_words).collect();
    let segment = (memory.rows / 64).clamp(*SEGMENT.start(), *SEGMENT.end());
    let default = LogOptions::default();
    // After this patience the server still has time to send the error to the caller, and the caller to try again.
    let patience = default.patience.min(job.cluster.timeout / 3);
    let options = LogOptions { index: memory.index, segment, patience, ..default };
    let store = LogStore::open(content, &cold_folder(job, index), &widths, &options);
    let store = store.map_err(|source| ServerError::Cold { index: index.0, source })?;
    let label = ServerLabel::new(registry, index);
    let (reads, writes) = cold_call_metrics(&label);
    let tier = Arc::new(WatchedStore::new(store, reads, writes));
    register_cold_store(&label, &tier, &cold_folder(job, index));
    Ok(Some(tier))
}

pub(crate) fn is_needed(job: &Job, configs: &[TableConfig]) -> bool {
    job.cluster.memory.is_some() && configs.iter().any(|config| config.retention.keeps_evicted_rows())
}

/// The folder of this server's store. It is removed when the server ends.
pub(crate) fn cold_folder(job: &Job, index: ServerIndex) -> PathBuf {
    match &job.cluster.cold_folder {
        Some(below) => below.join(format!("server-{index}")),
        None => job.output.folder.join(format!("cold-server-{index}")),
    }
}

/// Blocks of at least this size are mapped separately. Freeing such a block unmaps it.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED: std::ffi::c_int = 256 << 10;
/// The number of heaps. Threads share them.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const HEAPS: std::ffi::c_int = 2;

/// Heap settings of a server with a memory budget: freed memory returns to the system.
///
/// A request of a large batch allocates tens of megabytes for some milliseconds. By default, glibc's allocator raises
/// its threshold for mapping a block separately to the size of the largest freed block. It then allocates later blocks
/// from the heaps of the threads, and keeps memory that is freed in the middle of a heap. A server would so hold a copy
/// of its largest request for each thread that ever served one.
///
/// Makes the allocator of this process keep little freed memory. It affects glibc's allocator only.
pub(crate) fn limit_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        set_allocator(libc::M_MMAP_THRESHOLD, MAPPED);
        set_allocator(libc::M_TRIM_THRESHOLD, MAPPED);
        set_allocator(libc::M_ARENA_MAX, HEAPS);
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "mallopt has no safe wrapper")]
fn set_allocator(parameter: std::ffi::c_int, value: std::ffi::c_int) {
    // SAFETY: `mallopt` takes two numbers and no pointer, and may be called at any time. If it refuses a value, nothing
    // changes.
    let _ = unsafe { libc::mallopt(parameter, value) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::job_with;

    #[test]
    fn all_parts_are_within_the_budget() {
        let budget = |memory: &str| MemoryBudget::from_job(&job_with(1, &format!("memory = \"{memory}\""))).unwrap();
        for (memory, bytes) in [("64KiB", 64 << 10), ("8MiB", 8 << 20), ("1GiB", 1 << 30), ("64GiB", 64 << 30)] {
            let MemoryBudget { rows, index, kept } = budget(memory);
            assert_eq!(rows + kept, bytes, "{memory}");
            assert!(rows >= bytes / 32 * 31 && index < rows + INDEX_BESIDE, "{memory}: {rows} for rows");
        }
        assert_eq!(MemoryBudget::from_job(&job_with(1, "")), None);
    }
}
