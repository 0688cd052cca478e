//! Reports complete splits to the coordinator, beside training: a coordinator that is away for a while delays nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;
use zagros_coordinator_client::{ControlPlane, Waiting, Waits};
use zagros_plumbing::Deadline;
use zagros_protocol::control::{CompleteRequest, WaitKind};

use super::splits::call_coordinator;
use crate::error::WorkerError;

/// A task that reports complete splits, in order. Dropping it ends it.
pub(crate) struct SplitCompleter {
    orders: mpsc::UnboundedSender<CompleterRequest>,
    bad_rows: Arc<AtomicU64>,
    _task: AbortOnDropHandle<()>,
}

enum CompleterRequest {
    Complete(CompleteRequest),
    Flush(oneshot::Sender<Result<(), WorkerError>>),
}

impl SplitCompleter {
    pub(crate) fn start(control: Arc<dyn ControlPlane>, timeout: Duration, waits: Waits) -> Self {
        let (orders, incoming) = mpsc::unbounded_channel();
        let bad_rows = Arc::<AtomicU64>::default();
        let task = CompleterTask { control, timeout, waits, pending: Vec::new(), bad_rows: Arc::clone(&bad_rows) };
        Self { orders, bad_rows, _task: AbortOnDropHandle::new(tokio::spawn(task.run(incoming))) }
    }

    /// Of the complete splits of all workers and epochs, by the newest answer.
    pub(crate) fn bad_rows(&self) -> u64 {
        self.bad_rows.load(Ordering::Relaxed)
    }

    pub(crate) fn count_bad_rows_from(&self, bad_rows: u64) {
        self.bad_rows.fetch_max(bad_rows, Ordering::Relaxed);
    }

    pub(crate) fn report_complete(&self, request: CompleteRequest) {
        // The task ends only with this value.
        let _ = self.orders.send(CompleterRequest::Complete(request));
    }

    pub(crate) async fn flush(&self) -> Result<(), WorkerError> {
        let (reply, reported) = oneshot::channel();
        let _ = self.orders.send(CompleterRequest::Flush(reply));
        let ended = |_| WorkerError::Thread { thread: "completer", reason: "ended without saying why".to_owned() };
        reported.await.map_err(ended)?
    }
}

struct CompleterTask {
    control: Arc<dyn ControlPlane>,
    timeout: Duration,
    waits: Waits,
    /// Not reported yet, oldest first.
    pending: Vec<CompleteRequest>,
    bad_rows: Arc<AtomicU64>,
}

impl CompleterTask {
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<CompleterRequest>) {
        while let Some(order) = orders.recv().await {
            match order {
                CompleterRequest::Complete(request) => {
                    self.pending.push(request);
                    if let Err(error) = self.report().await {
                        tracing::warn!(%error, "complete splits are not reported yet; training goes on");
                    }
                }
                CompleterRequest::Flush(reply) => {
                    let reported = self.report().await;
                    let _ = reply.send(reported);
                }
            }
        }
    }

    /// What could not be reported stays pending.
    async fn report(&mut self) -> Result<(), WorkerError> {
        let deadline = Deadline::from_now(self.timeout);
        let waiting = Waiting::new("completer", WaitKind::Coordinator, "the receipt of complete splits");
        let _waiting = (!self.pending.is_empty()).then(|| self.waits.begin_wait(waiting.with_timeout(self.timeout)));
        while let Some(request) = self.pending.first() {
            let complete = || self.control.complete(request.clone());
            let reported = call_coordinator(&*self.control, "complete splits", deadline, complete).await?;
            self.bad_rows.fetch_max(reported.bad_rows, Ordering::Relaxed);
            self.pending.remove(0);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use zagros_fakes::FakeControlPlane;
    use zagros_protocol::control::CompleteResponse;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);

    fn request(split: u64) -> CompleteRequest {
        CompleteRequest { member: 1, incarnation: 1, epoch: 0, splits: vec![split], bad_rows: vec![] }
    }

    #[tokio::test(start_paused = true)]
    async fn splits_are_reported_in_order_however_long_it_takes() {
        let control = Arc::new(FakeControlPlane::default());
        control.complete.disconnect();
        let completer = SplitCompleter::start(control.clone(), TIMEOUT, Waits::default());
        completer.report_complete(request(1));
        completer.report_complete(request(2));
        tokio::time::sleep(TIMEOUT * 3).await;
        control.complete.respond(CompleteResponse::default());
        completer.flush().await.unwrap();
        assert_eq!(control.completed_splits(), [1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_does_not_wait_for_ever() {
        let control = Arc::new(FakeControlPlane::default());
        control.complete.disconnect();
        let completer = SplitCompleter::start(control, TIMEOUT, Waits::default());
        completer.report_complete(request(1));
        let error = completer.flush().await.unwrap_err().to_string();
        assert!(error.contains("coordinator (fake) did not complete splits for 5.0s"), "{error}");
    }
}
