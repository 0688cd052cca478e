//! The barriers of a process group: when the coordinator calls one, and this worker's votes there. The coordinator counts the
//! votes and decides (invariant AS-1).

use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, sleep_until};
use zagros_coordinator_client::{MemberView, Waiting};
use zagros_plumbing::{Backoff, Deadline};
use zagros_protocol::Refusal;
use zagros_protocol::control::barrier_response::State;
use zagros_protocol::control::{
    BarrierDecision, BarrierFailure, BarrierReason, BarrierRequest, BarrierResponse, BarrierResult, BarrierVote,
    WaitKind,
};

use crate::control::data::{LOOP, SplitClient, control_error};
use crate::datapath::prepared::inconsistent_batch;
use crate::error::WorkerError;

/// How often the coordinator hears that this worker is on its way to a barrier.
const ON_THE_WAY: Duration = Duration::from_millis(500);
/// Reports of being on the way that may be lost in a row: the coordinator counts a worker as late after a whole timeout
/// without one, so one report that hangs must not take the timeout.
const REPORTS_PER_TIMEOUT: u32 = 4;
/// Pauses between two requests of a vote. The coordinator holds each for a while, so these are short.
const PAUSES: Backoff = Backoff { first: Duration::from_millis(5), most: Duration::from_millis(250) };
const WHAT: &str = "count a vote at a barrier";

/// The ballots of one process group, one after another. A job of one worker has none.
#[derive(Clone)]
pub(crate) struct GroupBallots {
    /// Names this worker, and the coordinator.
    splits: SplitClient,
    /// Generation of the process group; 0 before the first, and in a job of one worker.
    group: u64,
    next: u64,
}

impl GroupBallots {
    pub(crate) fn new(splits: &SplitClient) -> Self {
        Self { splits: splits.clone(), group: 0, next: 1 }
    }

    pub(crate) fn enter_group(&mut self, generation: u64) {
        (self.group, self.next) = (generation, 1);
    }

    /// Votes, and waits for the votes of all workers.
    ///
    /// # Errors
    /// [`WorkerError::BarrierMissed`] names the workers that do not come. When the coordinator refuses, or does not answer for
    /// the job's timeout.
    pub(crate) async fn vote(&mut self, vote: BarrierVote) -> Result<BarrierResult, WorkerError> {
        let request = self.request(Some(vote));
        let SplitClient { control, timeout, waits, .. } = &self.splits;
        let waiting = Waiting::new(LOOP, WaitKind::Workers, "the vote at barrier").with_number(self.next);
        let _waiting = waits.begin_wait(waiting.with_timeout(*timeout));
        let (mut silence, mut attempt) = (Deadline::from_now(*timeout), 0);
        loop {
            match silence.bound(control.barrier(request.clone())).await {
                Ok(Ok(response)) => {
                    if let Some(result) = closed(response)? {
                        self.next += 1;
                        return Ok(result);
                    }
                    // The coordinator answers for the timeout of the others.
                    (silence, attempt) = (Deadline::from_now(*timeout), 0);
                }
                Ok(Err(refusal)) if refusal.kind.is_retryable() && !silence.is_past() => {}
                Ok(Err(refusal)) => return Err(control_error(&**control, WHAT, silence, refusal)),
                Err(waited) => return Err(control_error(&**control, WHAT, silence, Refusal::no_answer(waited))),
            }
            sleep(PAUSES.pause_before(attempt).min(silence.time_left())).await;
            attempt += 1;
        }
    }

    /// In a job of one worker that is at once.
    ///
    /// # Errors
    /// As [`Self::vote`]. [`WorkerError::Interrupted`] where one of them was asked to stop.
    pub(crate) async fn wait_for_all(&mut self) -> Result<(), WorkerError> {
        if self.group == 0 {
            return Ok(());
        }
        match self.vote_for(BarrierReason::Ready).await?.decision() {
            BarrierDecision::Continue => Ok(()),
            BarrierDecision::Stop => Err(WorkerError::Interrupted),
            other => Err(inconsistent_batch(0, format!("a barrier for all is decided as {other:?}"))),
        }
    }

    pub(crate) async fn vote_for(&mut self, reason: BarrierReason) -> Result<BarrierResult, WorkerError> {
        self.vote(BarrierVote { reason: reason.into(), ..BarrierVote::default() }).await
    }

    /// Does `work` before the next barrier. The other workers wait there for as long as it takes.
    pub(crate) async fn on_the_way<T>(
        &self,
        work: impl Future<Output = Result<T, WorkerError>>,
    ) -> Result<T, WorkerError> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                reported = self.report_on_the_way() => reported?,
            }
        }
    }

    /// A coordinator that cannot be reached is asked again; the others cannot reach it either.
    async fn report_on_the_way(&self) -> Result<(), WorkerError> {
        sleep(ON_THE_WAY).await;
        if self.group == 0 {
            return Ok(());
        }
        let deadline = Deadline::from_now(self.splits.timeout / REPORTS_PER_TIMEOUT);
        match deadline.bound(self.splits.control.barrier(self.request(None))).await {
            Ok(Ok(response)) => closed(response).map(|_| ()),
            Ok(Err(refusal)) if refusal.kind.is_retryable() => Ok(()),
            Ok(Err(refusal)) => Err(control_error(&*self.splits.control, WHAT, deadline, refusal)),
            Err(_) => Ok(()),
        }
    }

    fn request(&self, vote: Option<BarrierVote>) -> BarrierRequest {
        let SplitClient { member, incarnation, .. } = self.splits;
        BarrierRequest { member, incarnation, group: self.group, ballot: self.next, vote }
    }
}

/// `None` while the ballot is open.
fn closed(response: BarrierResponse) -> Result<Option<BarrierResult>, WorkerError> {
    match response.state {
        Some(State::Result(result)) => Ok(Some(result)),
        Some(State::Failure(BarrierFailure { workers, reason })) => {
            let workers = workers.into_iter().map(|index| index as usize).collect();
            Err(WorkerError::BarrierMissed { workers, reason })
        }
        Some(State::Wait(_)) | None => Ok(None),
    }
}

/// Barriers of asynchronous workers that the coordinator calls.
#[derive(Debug)]
pub(crate) struct BarrierCalls(pub(crate) watch::Receiver<MemberView>);

impl BarrierCalls {
    /// Waits until it is time for a barrier with a number above `attended`. Dropped while it waits, it loses nothing.
    pub(crate) async fn wait_until_due(&mut self, attended: u64) {
        let is_next = |view: &MemberView| view.barrier.is_some_and(|barrier| barrier.number > attended);
        let called = self.0.wait_for(is_next).await.ok().and_then(|view| view.barrier);
        match called {
            Some(barrier) => sleep_until(barrier.at).await,
            // The membership is gone, so no call comes.
            None => std::future::pending().await,
        }
    }

    pub(super) fn newest_heard(&self) -> u64 {
        self.0.borrow().barrier.map_or(0, |barrier| barrier.number)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::FutureExt;
    use tokio::time::Instant;
    use zagros_coordinator_client::AnnouncedBarrier;
    use zagros_fakes::FakeControlPlane;
    use zagros_protocol::RefusalKind;
    use zagros_protocol::control::BarrierWait;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);

    fn ballots() -> (GroupBallots, Arc<FakeControlPlane>) {
        let control = Arc::new(FakeControlPlane::default());
        let mut ballots = GroupBallots::new(&SplitClient::of_test(control.clone()));
        ballots.enter_group(3);
        (ballots, control)
    }

    fn answer(state: State) -> Result<BarrierResponse, Refusal> {
        Ok(BarrierResponse { state: Some(state) })
    }

    fn wait() -> Result<BarrierResponse, Refusal> {
        answer(State::Wait(BarrierWait { waiting_for: "dense worker 1".to_owned() }))
    }

    fn decided(decision: BarrierDecision) -> Result<BarrierResponse, Refusal> {
        answer(State::Result(BarrierResult { decision: decision.into(), votes: Vec::new() }))
    }

    fn failed(worker: u32, reason: &str) -> Result<BarrierResponse, Refusal> {
        answer(State::Failure(BarrierFailure { workers: vec![worker], reason: reason.to_owned() }))
    }

    /// Work that takes so long.
    async fn work(time: Duration) -> Result<u32, WorkerError> {
        sleep(time).await;
        Ok(5)
    }

    fn away() -> Result<BarrierResponse, Refusal> {
        Err(Refusal::new(RefusalKind::Unavailable, "connection refused"))
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_vote_is_sent_until_it_is_answered_and_ballots_are_numbered() {
        let (mut ballots, control) = ballots();
        control.barrier.respond_in_order([away(), wait(), away(), decided(BarrierDecision::Continue)]);
        ballots.wait_for_all().await.unwrap();
        ballots.wait_for_all().await.unwrap();
        let requests = control.barrier.requests();
        let sent = |request: &BarrierRequest| (request.group, request.ballot, request.vote.as_ref().unwrap().reason());
        let first = (3, 1, BarrierReason::Ready);
        assert_eq!(requests.iter().map(sent).collect::<Vec<_>>(), [first, first, first, first, (3, 2, first.2)]);
        ballots.enter_group(4);
        ballots.wait_for_all().await.unwrap();
        assert_eq!(sent(control.barrier.requests().last().unwrap()), (4, 1, first.2));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_stops_stops_all_and_a_worker_that_does_not_come_is_named() {
        let (mut ballots, control) = ballots();
        control.barrier.respond_in_order([decided(BarrierDecision::Stop)]);
        assert!(matches!(ballots.wait_for_all().await, Err(WorkerError::Interrupted)));
        control.barrier.respond_in_order([wait(), failed(1, "it did not come")]);
        let error = ballots.wait_for_all().await.unwrap_err();
        assert!(error.to_string().starts_with("dense worker 1 gone or late: it did not come; see"), "{error}");
    }

    /// Invariant WT-1.
    #[tokio::test(start_paused = true)]
    async fn a_coordinator_that_stays_away_is_named_and_one_that_answers_is_waited_for() {
        let (mut ballots, control) = ballots();
        control.barrier.respond_in_order([away()]);
        let error = ballots.wait_for_all().await.unwrap_err().to_string();
        let expected = "coordinator (fake) did not count a vote at a barrier for 5.0s: connection refused; see whether";
        assert!(error.starts_with(expected), "{error}");
        control.hang(1);
        let error = ballots.wait_for_all().await.unwrap_err().to_string();
        assert!(error.contains("no answer within 5.0s"), "{error}");
        // The coordinator decides how long the others may take.
        let long = (0..2000).map(|_| wait()).chain([decided(BarrierDecision::Continue)]);
        control.barrier.respond_in_order(long.collect::<Vec<_>>());
        let started = tokio::time::Instant::now();
        ballots.wait_for_all().await.unwrap();
        assert!(started.elapsed() > TIMEOUT, "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_on_its_way_says_so_and_ends_with_a_barrier_that_fails() {
        let (ballots, control) = ballots();
        control.barrier.respond_in_order([wait(), away(), wait()]);
        assert_eq!(ballots.on_the_way(work(ON_THE_WAY * 7 / 2)).await.unwrap(), 5);
        let requests = control.barrier.requests();
        assert_eq!(requests.len(), 3);
        assert!(requests.iter().all(|request| request.ballot == 1 && request.vote.is_none()));
        control.barrier.respond_in_order([failed(2, "it is gone")]);
        let ended = ballots.on_the_way(std::future::pending::<Result<(), _>>()).await;
        assert!(matches!(ended, Err(WorkerError::BarrierMissed { workers, .. }) if workers == [2]));
    }

    /// The coordinator counts a worker as late once it has heard nothing of it for the timeout.
    #[tokio::test(start_paused = true)]
    async fn a_report_that_hangs_does_not_make_the_worker_late() {
        let (ballots, control) = ballots();
        control.hang(1);
        control.barrier.respond(BarrierResponse { state: Some(State::Wait(BarrierWait::default())) });
        let started = tokio::time::Instant::now();
        ballots.on_the_way(work(TIMEOUT)).await.unwrap();
        assert_eq!(started.elapsed(), TIMEOUT);
        assert!(control.barrier.accepted().len() > 1, "one report took the whole timeout");
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_without_a_group_asks_nobody() {
        let (mut ballots, control) = ballots();
        ballots.enter_group(0);
        ballots.wait_for_all().await.unwrap();
        ballots.on_the_way(work(ON_THE_WAY * 3)).await.unwrap();
        assert_eq!(control.barrier.requests(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_goes_to_each_barrier_once_and_not_before_its_time() {
        let (call_to, view) = watch::channel(MemberView::default());
        let mut calls = BarrierCalls(view);
        assert!(calls.wait_until_due(0).now_or_never().is_none());
        let started = Instant::now();
        let call = |number, at| call_to.send_modify(|view| view.barrier = Some(AnnouncedBarrier { number, at }));
        call(1, started + Duration::from_secs(2));
        calls.wait_until_due(0).await;
        assert_eq!((started.elapsed(), calls.newest_heard()), (Duration::from_secs(2), 1));
        // The coordinator goes on reporting it.
        sleep(Duration::from_secs(1)).await;
        assert!(calls.wait_until_due(1).now_or_never().is_none());
        // The end of an epoch comes before the next.
        call(2, Instant::now() + Duration::from_secs(1));
        calls.wait_until_due(1).await;
        assert!(calls.wait_until_due(2).now_or_never().is_none());
    }
}
