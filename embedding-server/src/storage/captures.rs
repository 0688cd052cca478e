//! The last captured snapshot of a server.

use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use zagros_protocol::Refusal;
use zagros_protocol::control::{SaveRequest, SaveResponse};

/// The last captured snapshot. Its files are being written, or are complete.
#[derive(Debug, Default)]
pub(crate) struct SnapshotCaptures(pub(super) Mutex<Option<SnapshotCapture>>);

#[derive(Clone, Debug)]
pub(super) struct SnapshotCapture {
    pub(super) folder: String,
    pub(super) attempt: u64,
    pub(super) pause_seconds: f64,
    /// Resolves when the files are written.
    pub(super) files: Shared<BoxFuture<'static, Result<SaveResponse, Refusal>>>,
}

impl SnapshotCaptures {
    /// The snapshot of this request, unless its files could not be written.
    pub(super) fn made_for(&self, request: &SaveRequest) -> Option<SnapshotCapture> {
        let is_retry = |known: &SnapshotCapture| {
            request.attempt != 0 && (known.attempt, &known.folder) == (request.attempt, &request.folder)
        };
        let has_failed = |known: &SnapshotCapture| known.files.peek().is_some_and(Result::is_err);
        self.0.lock().clone().filter(|known| is_retry(known) && !has_failed(known))
    }
}
