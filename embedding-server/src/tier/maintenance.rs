//! The maintenance thread: it evicts rows before memory is full, and removes expired rows. Requests then seldom wait
//! for an eviction.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::warn;
use zagros_job::Job;
use zagros_protocol::ServerIndex;
use zagros_table::{TableConfig, TableSet};

use crate::ServerError;

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
        let leave = |config: &TableConfig| config.retention.ttl.is_some() || config.retention.small_norm > 0.0;
        if job.cluster.memory.is_none() && !configs.iter().any(leave) {
            return Ok(None);
        }
        let idle = if job.cluster.memory.is_some() { IDLE } else { IDLE_UNLIMITED };
        let started = Self::start(server, Arc::clone(tables), seconds_before, idle);
        started.map(Some).map_err(|source| ServerError::Maintenance { index: server.0, source })
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
