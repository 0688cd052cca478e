//! The data of a worker: splits from the coordinator, the stream of batches that they make, the next batch with its rows, the
//! reports of complete splits, and what ends all of it early.

mod lookup;
mod round;
mod splits;
mod stream;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::task::AbortOnDropHandle;
use zagros_coordinator_client::{ControlPlane, MemberError, MemberView, Membership, Waiting, Waits};
use zagros_ingest::IngestError;
use zagros_job::{Job, Mode};
use zagros_plumbing::{Deadline, Shutdown};
use zagros_protocol::control::{CompleteRequest, WaitKind};

use crate::error::WorkerError;

pub(super) use splits::{LOOP, SplitClient, call_coordinator, control_error};
pub(super) use stream::StreamState;

const WORD_OF_DRAIN: Duration = Duration::from_secs(2);

/// What ends training before its data does: a request to this process, the end of the run, the loss of its lease. A request to end is
/// no failure, and in a job that can spare a worker the run may go on without it (invariant RK-4).
#[derive(Clone, Debug)]
pub(crate) struct StopSignal {
    pub(crate) shutdown: Shutdown,
    view: watch::Receiver<MemberView>,
}

impl StopSignal {
    pub(crate) fn new(shutdown: Shutdown, view: watch::Receiver<MemberView>) -> Self {
        Self { shutdown, view }
    }

    #[cfg(test)]
    pub(crate) fn from_shutdown(shutdown: Shutdown) -> Self {
        let (_, view) = watch::channel(MemberView::default());
        Self { shutdown, view }
    }

    /// Which other process was asked to end, so that the run is drained; `None` where this one was. A worker that heard it
    /// from the others of its group first waits for the coordinator's word.
    pub(crate) async fn drained_because(&self) -> Option<String> {
        if self.shutdown.is_requested() {
            return None;
        }
        let mut view = self.view.clone();
        let reported = view.wait_for(|view| view.draining.is_some() || end(view).is_some());
        let reported = tokio::time::timeout(WORD_OF_DRAIN, reported).await.ok()?.ok()?;
        reported.draining.clone()
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.shutdown.is_requested() || reason(&self.view.borrow()).is_some()
    }

    /// Resolves once training must end, with why: [`WorkerError::Interrupted`] asks to finish tidily, because this
    /// process was asked to end or the run is drained; anything else is a failure. A coordinator that is merely silent is
    /// no reason.
    pub(crate) async fn wait_for_request(&mut self) -> WorkerError {
        tokio::select! {
            biased;
            () = self.shutdown.requested() => WorkerError::Interrupted,
            reason = reported(&mut self.view, reason) => reason,
        }
    }

    /// Resolves once nothing that this worker does can count any more: the run is over, or this worker is fenced.
    pub(crate) async fn run_ended(&mut self) -> WorkerError {
        reported(&mut self.view, end).await
    }
}

async fn reported(
    view: &mut watch::Receiver<MemberView>,
    of: impl Fn(&MemberView) -> Option<WorkerError>,
) -> WorkerError {
    let reported = view.wait_for(|view| of(view).is_some()).await.ok().and_then(|view| of(&view));
    match reported {
        Some(reason) => reason,
        // The membership is gone, so no report comes.
        None => std::future::pending().await,
    }
}

fn reason(view: &MemberView) -> Option<WorkerError> {
    end(view).or_else(|| view.draining.as_ref().map(|_| WorkerError::Interrupted))
}

/// Why this worker is no part of the run any more, if it is none.
fn end(view: &MemberView) -> Option<WorkerError> {
    let fenced = view.fenced.clone().map(|reason| WorkerError::Fenced { reason });
    let stopped = |reason| match view.finished {
        // It came too late to train.
        true => WorkerError::Member(MemberError::Over { coordinator: "the coordinator".to_owned() }),
        false => WorkerError::Stopped { reason },
    };
    fenced.or_else(|| view.stop.clone().map(stopped))
}

/// A request to end is no failure; anything else is.
pub(crate) fn interrupted_or(reason: WorkerError) -> Result<(), WorkerError> {
    if is_interruption(&reason) { Ok(()) } else { Err(reason) }
}

pub(crate) fn is_interruption(error: &WorkerError) -> bool {
    matches!(error, WorkerError::Interrupted | WorkerError::Ingest(IngestError::Cancelled))
}

/// From now on a request to end the process of this worker is put to the coordinator first. Either the worker leaves the run,
/// which goes on without it, or the request ends training, as it does where no worker may leave. `shutdown` becomes the
/// request that ends training.
pub(crate) fn ask_to_leave_first(
    job: &Job,
    index: u32,
    shutdown: &mut Shutdown,
    membership: &Arc<Membership>,
) -> Option<AbortOnDropHandle<()>> {
    let may_be_spared = job.cluster.least_workers() < job.cluster.most_workers();
    if job.train.mode == Mode::Sync || index == 0 || !may_be_spared {
        return None;
    }
    let (stop, membership) = (Shutdown::new(), Arc::clone(membership));
    let asked = std::mem::replace(shutdown, stop.clone());
    Some(AbortOnDropHandle::new(tokio::spawn(async move {
        asked.requested().await;
        if membership.ask_to_leave().await {
            tracing::info!("asked to end, and the run goes on without this worker");
        } else {
            stop.request();
        }
    })))
}

/// A task that reports complete splits to the coordinator, in order, beside training: a coordinator that is away for a while delays
/// nothing. Dropping it ends it.
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
    use futures::FutureExt;

    use super::*;
    use crate::error::ExitClass;

    fn watched(view: MemberView) -> (watch::Sender<MemberView>, StopSignal) {
        let (tell, view) = watch::channel(view);
        (tell, StopSignal::new(Shutdown::new(), view))
    }

    #[tokio::test]
    async fn silence_is_no_reason_to_stop_but_an_order_is() {
        let (tell, mut stop) = watched(MemberView { lost: Some("silent".to_owned()), ..MemberView::default() });
        assert!(stop.wait_for_request().now_or_never().is_none());
        tell.send_modify(|view| view.stop = Some("run failed".to_owned()));
        assert!(matches!(stop.wait_for_request().await, WorkerError::Stopped { reason } if reason == "run failed"));
        tell.send_modify(|view| view.finished = true);
        assert_eq!(stop.wait_for_request().await.exit_class(), ExitClass::NothingLeft);
        tell.send_modify(|view| view.fenced = Some("replaced".to_owned()));
        assert!(matches!(stop.wait_for_request().await, WorkerError::Fenced { reason } if reason == "replaced"));
    }

    #[tokio::test]
    async fn a_drain_asks_to_finish_tidily_and_is_not_the_end() {
        let (tell, mut stop) = watched(MemberView::default());
        assert!(!stop.is_requested());
        tell.send_modify(|view| view.draining = Some("embedding server 0 was asked to end".to_owned()));
        assert!(stop.is_requested() && stop.run_ended().now_or_never().is_none());
        assert!(matches!(stop.wait_for_request().await, WorkerError::Interrupted));
        assert_eq!(stop.drained_because().await.as_deref(), Some("embedding server 0 was asked to end"));
        tell.send_modify(|view| view.stop = Some("run failed".to_owned()));
        assert!(matches!(stop.run_ended().await, WorkerError::Stopped { .. }));
        assert!(matches!(stop.wait_for_request().await, WorkerError::Stopped { .. }));
    }

    /// The other workers of its group stop with this one, often before its own heartbeat is answered.
    #[tokio::test(start_paused = true)]
    async fn the_reason_of_a_drain_may_come_after_the_others_stopped() {
        let (tell, stop) = watched(MemberView::default());
        let later = async {
            tokio::time::sleep(WORD_OF_DRAIN / 2).await;
            tell.send_modify(|view| view.draining = Some("embedding server 1 was asked to end".to_owned()));
        };
        let (reason, ()) = tokio::join!(stop.drained_because(), later);
        assert_eq!(reason.as_deref(), Some("embedding server 1 was asked to end"));
        assert_eq!(watched(MemberView::default()).1.drained_because().await, None);
    }

    #[tokio::test]
    async fn shutdown_comes_first() {
        let shutdown = Shutdown::new();
        let mut stop = StopSignal::from_shutdown(shutdown.clone());
        assert!(stop.wait_for_request().now_or_never().is_none());
        shutdown.request();
        assert!(matches!(stop.wait_for_request().await, WorkerError::Interrupted));
    }
}

#[cfg(test)]
mod completer_tests {
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
