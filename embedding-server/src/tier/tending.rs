//! The thread that does ahead of time what requests would have to wait for: rows leave memory before it is full, and
//! are forgotten past their time.

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

/// Rest when there is nothing to do: short, since a busy server fills the last twentieth of its memory in a moment.
const IDLE: Duration = Duration::from_millis(10);
/// Rest after a failure, which more haste would not mend.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// How long the end waits for the part that is being done.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The running thread; it ends with this.
#[derive(Debug)]
pub(crate) struct Tending {
    server: ServerIndex,
    /// Dropped to ask for the end.
    stop: Option<Sender<()>>,
    ended: Mutex<Receiver<()>>,
}

impl Tending {
    /// Starts tending tables whose rows may have to leave.
    ///
    /// # Errors
    /// [`ServerError::Tending`] when the system gives no thread.
    pub(crate) fn start_if_needed(
        job: &Job,
        server: ServerIndex,
        configs: &[TableConfig],
        tables: &Arc<TableSet>,
    ) -> Result<Option<Self>, ServerError> {
        let leave = |config: &TableConfig| config.retention.ttl.is_some() || config.retention.small_norm > 0.0;
        if job.cluster.memory.is_none() && !configs.iter().any(leave) {
            return Ok(None);
        }
        let started = Self::start(server, Arc::clone(tables));
        started.map(Some).map_err(|source| ServerError::Tending { index: server.0, source })
    }

    fn start(server: ServerIndex, tables: Arc<TableSet>) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let (end, ended) = channel();
        let run = move || {
            tend(&tables, &stopped);
            // First what the tables hold is released, then whoever waits is told.
            drop(tables);
            drop(end);
        };
        thread::Builder::new().name(format!("tending {server}")).spawn(run)?;
        Ok(Self { server, stop: Some(stop), ended: Mutex::new(ended) })
    }
}

impl Drop for Tending {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.ended.get_mut().recv_timeout(TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            warn!(server = %self.server, "the thread that tends the tables is still at work after {TIMEOUT:?}");
        }
    }
}

fn tend(tables: &TableSet, stopped: &Receiver<()>) {
    // Not the time of day: that may be set while the server runs, and every row would be as much older.
    let started = Instant::now();
    loop {
        tables.tick(0, started.elapsed().as_secs());
        // A failure is told where the store is watched.
        let rest = match tables.tend() {
            Ok(tended) if tended.is_idle() => IDLE,
            Ok(_) => Duration::ZERO,
            Err(_) => AFTER_FAILURE,
        };
        if stopped.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use zagros_table::Capacity;

    use super::*;

    /// The time of day is some fifty years after the moment in which its seconds start, and may be set.
    #[test]
    fn rows_age_by_the_seconds_that_the_server_runs_and_not_by_the_time_of_day() {
        let tables = Arc::new(TableSet::new(1, &[], Capacity::default()).unwrap());
        let tending = Tending::start(ServerIndex(0), Arc::clone(&tables)).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while tables.cut().unwrap().moment().seconds == 0 {
            assert!(Instant::now() < deadline, "its clock stands still");
            thread::sleep(IDLE);
        }
        drop(tending);
        let seconds = tables.cut().unwrap().moment().seconds;
        assert!(seconds <= 60, "{seconds} seconds after it started");
    }

    #[test]
    fn it_lets_go_of_the_tables_when_it_ends() {
        let tables = Arc::new(TableSet::new(1, &[], Capacity::default()).unwrap());
        let tending = Tending::start(ServerIndex(0), Arc::clone(&tables)).unwrap();
        assert_eq!(Arc::strong_count(&tables), 2);
        drop(tending);
        assert_eq!(Arc::strong_count(&tables), 1);
    }
}
