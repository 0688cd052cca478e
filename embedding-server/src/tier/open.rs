//! Opens the cold store of a job.

use std::sync::Arc;

use prometheus::Registry;
use tracing::warn;
use zagros_job::Job;
use zagros_plumbing::process::file_limit;
use zagros_protocol::ServerIndex;
use zagros_rows::cold::{LogStore, MemoryBudget, StoreContent};
use zagros_table::TableConfig;

use super::health::WatchedStore;
use crate::ServerError;
use crate::metrics::{ServerLabel, cold_call_metrics, register_cold_store};

pub(crate) type ColdTier = Arc<WatchedStore<LogStore>>;

/// A store keeps the files of its segments open: a dozen or more for each table, besides connections and the log.
const FILES: u64 = 1024;

/// `None` unless memory is limited and a table keeps evicted rows.
pub(crate) fn open(
    job: &Job,
    index: ServerIndex,
    configs: &[TableConfig],
    content: StoreContent,
    registry: &Registry,
) -> Result<Option<ColdTier>, ServerError> {
    let Some(memory) = job.cluster.memory.filter(|_| job.reads_disk()) else { return Ok(None) };
    if let Some(files) = file_limit().filter(|files| *files < FILES) {
        warn!(server = %index, files, "this process may open few files: rows cannot leave memory once the limit is reached; raise it (ulimit -n, LimitNOFILE) to {FILES} or more");
    }
    let folder = job.cold_folder(index.0);
    let store = MemoryBudget::new(memory).open_store(content, &folder, configs, job.cluster.timeout);
    let store = store.map_err(|source| ServerError::Cold { index: index.0, source })?;
    let label = ServerLabel::new(registry, index);
    let (reads, writes) = cold_call_metrics(&label);
    let tier = Arc::new(WatchedStore::new(store, reads, writes));
    register_cold_store(&label, &tier, &folder);
    Ok(Some(tier))
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
