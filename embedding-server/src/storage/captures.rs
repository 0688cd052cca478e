//! What a server keeps of its saves and loads: the last of each, and that one is under way at a time.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, Shared};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use zagros_plumbing::Deadline;
use zagros_protocol::control::{LoadResponse, SaveRequest, SaveResponse};
use zagros_protocol::{Refusal, RefusalKind};

/// The last captured snapshot. Its files are being written, or are complete.
#[derive(Debug, Default)]
pub(crate) struct SnapshotCaptures(pub(super) Mutex<Option<SnapshotCapture>>);

#[derive(Clone, Debug)]
pub(super) struct SnapshotCapture {
    pub(super) folder: String,
    pub(super) attempt: u64,
    pub(super) pause_seconds: f64,
    pub(super) files: Shared<BoxFuture<'static, Result<SaveResponse, Refusal>>>,
    /// Notified when a caller has got the answer with the files.
    pub(super) collected: Arc<Notify>,
}

/// The longest wait for files that are being written.
const LONGEST: Duration = Duration::from_secs(3600);

impl SnapshotCaptures {
    /// Waits until the files of the last snapshot are written and a caller has asked for them, for `timeout` after they are
    /// written. A server that ends before takes them from a checkpoint of servers that stay.
    pub(crate) async fn await_delivery(&self, timeout: Duration) {
        let Some(capture) = self.0.lock().clone() else { return };
        if Deadline::from_now(LONGEST).bound(capture.files.clone()).await.is_ok_and(|written| written.is_ok()) {
            // A caller that is gone does not ask.
            let _ = Deadline::from_now(timeout).bound(capture.collected.notified()).await;
        }
    }

    /// The snapshot of this request, unless its files could not be written.
    pub(super) fn made_for(&self, request: &SaveRequest) -> Option<SnapshotCapture> {
        let is_retry = |known: &SnapshotCapture| {
            request.attempt != 0 && (known.attempt, &known.folder) == (request.attempt, &request.folder)
        };
        let has_failed = |known: &SnapshotCapture| known.files.peek().is_some_and(Result::is_err);
        self.0.lock().clone().filter(|known| is_retry(known) && !has_failed(known))
    }
}

pub(super) type LoadAnswer = Shared<BoxFuture<'static, Result<LoadResponse, Refusal>>>;

/// The number of the last load, and its answer.
#[derive(Debug, Default)]
pub(crate) struct LastLoad(pub(super) Mutex<Option<(u64, LoadAnswer)>>);

/// Allows one save or load at a time. A second one would slow down the first.
#[derive(Debug, Default)]
pub(crate) struct StorageLock(Mutex<()>);

impl StorageLock {
    /// Does not wait.
    pub(crate) fn take_turn(&self) -> Result<MutexGuard<'_, ()>, Refusal> {
        let busy = "rows are being saved or loaded already; try again when this is done";
        self.0.try_lock().ok_or_else(|| Refusal::new(RefusalKind::Unavailable, busy))
    }
}
