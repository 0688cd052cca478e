//! The maintenance thread: it evicts rows before memory is full, and removes expired rows. Requests then seldom wait
//! for an eviction.
//!
//! Opens the cold store of a job.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus::Registry;
use tracing::warn;
use zagros_job::Job;
use zagros_plumbing::process::file_limit;
use zagros_protocol::ServerIndex;
use zagros_rows::cold::{LogStore, MemoryBudget, StoreContent};
use zagros_table::{TableConfig, TableSet};

use super::health::WatchedStore;
use crate::ServerError;
use crate::errors::MAINTENANCE;
use crate::metrics::{ServerLabel, cold_call_metrics, register_cold_store};

/// Pause if there is nothing to do. It is short, because a busy server fills the last twentieth of its memory quickly.
const IDLE: Duration = Duration::from_millis(10);
/// Pause if there is nothing to do and memory has no limit: rows only grow old, and each look takes the locks of all stripes.
const IDLE_UNLIMITED: Duration = Duration::from_millis(200);
/// Pause after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// The longest wait for the thread's present work when the server ends.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The running thread. Dropping this value ends it.
#[derive(Debug)]
pub(crate) struct TableMaintenance {
    server: ServerIndex,
    /// Dropping the sender asks the thread to end.
    stop: Option<Sender<()>>,
    ended: Mutex<Receiver<()>>,
}

impl TableMaintenance {
    /// Starts maintenance of the tables, if rows may have to be evicted. Their time goes on from `seconds_before`.
    pub(crate) fn start_if_needed(
        job: &Job,
        server: ServerIndex,
        configs: &[TableConfig],
        tables: &Arc<TableSet>,
        seconds_before: u64,
    ) -> Result<Option<Self>, ServerError> {
        let leave = |config: &TableConfig| config.eviction.ttl.is_some() || config.eviction.small_norm > 0.0;
        if job.cluster.memory.is_none() && !configs.iter().any(leave) {
            return Ok(None);
        }
        let idle = if job.cluster.memory.is_some() { IDLE } else { IDLE_UNLIMITED };
        let started = Self::start(server, Arc::clone(tables), seconds_before, idle);
        started.map(Some).map_err(ServerError::failed(server.0, MAINTENANCE))
    }

    fn start(server: ServerIndex, tables: Arc<TableSet>, seconds_before: u64, idle: Duration) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let (end, ended) = channel();
        let run = move || {
            maintain(&tables, seconds_before, idle, &stopped);
            // The thread releases the tables before it reports its end.
            drop(tables);
            drop(end);
        };
        thread::Builder::new().name(format!("maintenance {server}")).spawn(run)?;
        Ok(Self { server, stop: Some(stop), ended: Mutex::new(ended) })
    }
}

impl Drop for TableMaintenance {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.ended.get_mut().recv_timeout(TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            warn!(server = %self.server, "the maintenance thread of the tables has not ended within {TIMEOUT:?}; the server ends without it");
        }
    }
}

fn maintain(tables: &TableSet, seconds_before: u64, idle: Duration, stopped: &Receiver<()>) {
    // A monotonic clock. If the wall clock were set forward while the server runs, every row would age by the
    // difference.
    let started = Instant::now();
    loop {
        tables.advance_clock(0, seconds_before + started.elapsed().as_secs());
        // `WatchedStore` logs a failure.
        let pause = match tables.maintain() {
            Ok(tended) if tended.is_idle() => idle,
            Ok(_) => Duration::ZERO,
            Err(_) => AFTER_FAILURE,
        };
        if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

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

#[cfg(test)]
mod tests {
    use zagros_table::TableResources;

    use super::*;

    /// A wall clock counts some fifty years of seconds since its epoch, and it may be set.
    #[test]
    fn rows_age_by_the_seconds_that_the_server_runs_and_not_by_the_time_of_day() {
        let tables = Arc::new(TableSet::new(1, &[], TableResources::default()).unwrap());
        let maintenance = TableMaintenance::start(ServerIndex(0), Arc::clone(&tables), 0, IDLE).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while tables.take_snapshot().unwrap().snapshot_time().seconds == 0 {
            assert!(Instant::now() < deadline, "its clock stands still");
            thread::sleep(IDLE);
        }
        assert_eq!(Arc::strong_count(&tables), 2);
        drop(maintenance);
        assert_eq!(Arc::strong_count(&tables), 1, "the thread releases the tables when it ends");
        let seconds = tables.take_snapshot().unwrap().snapshot_time().seconds;
        assert!(seconds <= 60, "{seconds} seconds after it started");
    }
}
