//! The thread that looks after the log: it tries again when the disk has failed, flushes what no push waits for, and writes a
//! base when the tail is long.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::{error, info, warn};

use super::server_log::ServerLog;
use crate::ServerError;

/// How often it looks.
const PERIOD: Duration = Duration::from_millis(200);
/// How often a failed disk is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// The pause after a base that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(30);
/// The longest wait for the thread's work when the server ends.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Writes a base.
pub(crate) trait BaseWriting: Fn() -> Option<Result<(), ServerError>> + Send + 'static {}

impl<T: Fn() -> Option<Result<(), ServerError>> + Send + 'static> BaseWriting for T {}

/// The running thread. Dropping this value ends it.
#[derive(Debug)]
pub(crate) struct LogKeeper {
    stop: Option<Sender<()>>,
    ended: Mutex<Receiver<()>>,
    thread: ThreadId,
}

impl LogKeeper {
    /// Looks after a log. `write_base` writes a base; it answers `None` once there is nothing to write one of.
    ///
    /// # Errors
    /// If the operating system cannot start a thread.
    pub(crate) fn start(log: &Arc<ServerLog>, write_base: impl BaseWriting) -> Result<Self, ServerError> {
        let (stop, stopped) = channel();
        let (end, ended) = channel();
        let log = Arc::clone(log);
        let index = log.server().0;
        let run = move || {
            keep(&log, &write_base, &stopped);
            drop(log);
            drop(end);
        };
        let started = thread::Builder::new().name(format!("log {index}")).spawn(run);
        let thread = started.map_err(|source| ServerError::Maintenance { index, source })?.thread().id();
        Ok(Self { stop: Some(stop), ended: Mutex::new(ended), thread })
    }
}

impl Drop for LogKeeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        // The thread itself drops the service if it wrote a base when everybody else let go of it.
        if self.thread == thread::current().id() {
            return;
        }
        if self.ended.get_mut().recv_timeout(TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            warn!("the thread of the log has not ended within {TIMEOUT:?}; the server ends without it");
        }
    }
}

fn keep(log: &ServerLog, write_base: &impl BaseWriting, stopped: &Receiver<()>) {
    let (mut was_stopped, mut tried, mut failed) = (false, Instant::now(), None::<Instant>);
    let mut counted = log.writer.durable();
    while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
        if log.writer.check().is_err() && tried.elapsed() >= RETRY {
            tried = Instant::now();
            // Reported below.
            let _ = log.writer.retry();
        }
        let health = log.writer.flush_appended().and_then(|()| log.writer.check());
        was_stopped = report(log, was_stopped, health.err().map(|stopped| stopped.to_string()));
        let durable = log.writer.durable();
        log.metrics.appended.inc_by(durable - counted);
        counted = durable;
        let tail = log.tail_bytes();
        log.metrics.tail.set(tail as i64);
        if log.bound.is_due(tail) && !was_stopped && failed.is_none_or(|failed| failed.elapsed() > AFTER_FAILURE) {
            let Some(written) = write_base() else { return };
            failed = written.err().map(|error| {
                warn!(server = %log.server(), error = &error as &dyn std::error::Error, "a base of the log could not be written");
                log.bound.base_failed(error.to_string());
                Instant::now()
            });
        }
    }
}

/// Reports once that the log stopped, and once that it goes on.
fn report(log: &ServerLog, was_stopped: bool, reason: Option<String>) -> bool {
    log.metrics.stopped.set(i64::from(reason.is_some()));
    match &reason {
        Some(reason) if !was_stopped => error!(server = %log.server(), reason, "the log stopped; pushes are refused"),
        None if was_stopped => info!(server = %log.server(), "the log goes on; pushes are accepted again"),
        _ => {}
    }
    reason.is_some()
}

impl ServerLog {
    /// Bytes that recovery would read besides the base.
    pub(super) fn tail_bytes(&self) -> u64 {
        self.writer.durable().saturating_sub(self.tail_start.load(Ordering::Acquire))
    }
}
