//! The threads that look after the log. One tries again when the disk has failed, flushes what no push waits for, and asks the other
//! for a base when the tail is long.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::{error, info, warn};
use zagros_rows::log::LogStopped;

use super::server_log::ServerLog;
use crate::ServerError;
use crate::errors::MAINTENANCE;

/// How often it looks.
const PERIOD: Duration = Duration::from_millis(200);
/// How often a failed disk is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// The pause after a base that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(30);
/// The longest wait for the thread's work when the server ends.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The running threads. Dropping this value ends them.
#[derive(Debug)]
pub(crate) struct LogKeeper {
    stop: Option<Sender<()>>,
    ended: Mutex<Receiver<()>>,
    threads: [ThreadId; 2],
}

/// The thread that writes bases: the log is flushed, and tried again, also while one is written.
struct BaseThread {
    due: SyncSender<()>,
    written: Receiver<Result<(), ServerError>>,
    is_busy: bool,
    failed: Option<Instant>,
}

impl LogKeeper {
    /// Looks after a log. `write_base` writes a base; it answers `None` once there is nothing to write one of.
    pub(crate) fn start(
        log: &Arc<ServerLog>,
        write_base: impl Fn() -> Option<Result<(), ServerError>> + Send + 'static,
    ) -> Result<Self, ServerError> {
        let (stop, stopped) = channel();
        let (end, ended) = channel();
        let (due, wanted) = sync_channel(1);
        let (report, written) = channel();
        let index = log.index.0;
        let start = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let started = thread::Builder::new().name(format!("{name} {index}")).spawn(run);
            started.map(|thread| thread.thread().id()).map_err(ServerError::failed(index, MAINTENANCE))
        };
        let base_end = end.clone();
        let write = move || {
            while let Ok(()) = wanted.recv()
                && let Some(done) = write_base()
                && report.send(done).is_ok()
            {}
            drop((write_base, base_end));
        };
        let bases = BaseThread { due, written, is_busy: false, failed: None };
        let log = Arc::clone(log);
        let keep = move || {
            keep_log(&log, bases, &stopped);
            drop((log, end));
        };
        let threads = [start("log base", Box::new(write))?, start("log", Box::new(keep))?];
        Ok(Self { stop: Some(stop), ended: Mutex::new(ended), threads })
    }
}

impl Drop for LogKeeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        // One of these threads drops the service itself if it wrote a base when all other holders let go of the service.
        if self.threads.contains(&thread::current().id()) {
            return;
        }
        if self.ended.get_mut().recv_timeout(TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            warn!("the threads of the log have not ended within {TIMEOUT:?}; the server ends without them");
        }
    }
}

fn keep_log(log: &ServerLog, mut bases: BaseThread, stopped: &Receiver<()>) {
    let (mut was_stopped, mut tried) = (false, Instant::now());
    let mut counted = log.writer.durable_lsn();
    // A log that has ended has nothing to look after.
    while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) && !log.is_over() {
        if log.writer.check_running().is_err() && tried.elapsed() >= RETRY {
            tried = Instant::now();
            // Reported below.
            let _ = log.writer.retry();
        }
        let health = log.writer.flush_appended().and_then(|()| log.writer.check_running());
        was_stopped = report_health(log, was_stopped, health.err());
        let durable = log.writer.durable_lsn();
        log.metrics.appended.inc_by(durable - counted);
        counted = durable;
        let tail = log.tail_bytes();
        log.metrics.tail.set(tail as i64);
        bases.take_result(log);
        if log.bound.is_due(tail) && !was_stopped {
            bases.request_base();
        }
    }
}

impl BaseThread {
    /// Notes how the base has ended that was being written.
    fn take_result(&mut self, log: &ServerLog) {
        let Ok(written) = self.written.try_recv() else { return };
        self.is_busy = false;
        self.failed = written.err().map(|error| {
            warn!(server = %log.index, error = &error as &dyn std::error::Error, "a base of the log could not be written");
            log.bound.base_failed(error.to_string());
            Instant::now()
        });
    }

    /// Begins one, unless one is being written, or the last one failed just now.
    fn request_base(&mut self) {
        if !self.is_busy && self.failed.is_none_or(|failed| failed.elapsed() > AFTER_FAILURE) {
            self.is_busy = self.due.try_send(()).is_ok();
        }
    }
}

/// Reports once that the log stopped, and once that it goes on. Its end is no failure.
fn report_health(log: &ServerLog, was_stopped: bool, stopped: Option<LogStopped>) -> bool {
    let reason = stopped.filter(|stopped| *stopped != LogStopped::Ended).map(|stopped| stopped.to_string());
    log.metrics.stopped.set(i64::from(reason.is_some()));
    match &reason {
        Some(reason) if !was_stopped => {
            error!(server = %log.index, reason, "the log stopped; pushes are refused")
        }
        None if was_stopped => info!(server = %log.index, "the log goes on; pushes are accepted again"),
        _ => {}
    }
    reason.is_some()
}

impl ServerLog {
    /// Bytes that recovery would read besides the base.
    pub(super) fn tail_bytes(&self) -> u64 {
        self.writer.durable_lsn().saturating_sub(self.tail_start.load(Ordering::Acquire))
    }
}
