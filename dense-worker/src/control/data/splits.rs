//! Splits leased from the coordinator, for the reading thread.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Mutex as AsyncMutex, watch};
use zagros_coordinator_client::{ControlPlane, Waiting, Waits};
use zagros_ingest::{SplitSource, SplitTask, StreamStart};
use zagros_plumbing::{Backoff, Deadline};
use zagros_protocol::control::{
    AssignRequest, EpochDone, PositionRequest, PositionResponse, ResumeCursor, Split, WaitKind, assign_response::Work,
};
use zagros_protocol::{Refusal, RefusalKind};

use super::StopSignal;
use crate::error::WorkerError;

/// The parts of a worker that ask for splits, as its waits name them.
pub(crate) const READER: &str = crate::datapath::read::PART;
pub(crate) const LOOP: &str = "training loop";

#[derive(Clone)]
pub(crate) struct SplitClient {
    pub(crate) control: Arc<dyn ControlPlane>,
    pub(crate) member: u64,
    pub(crate) incarnation: u32,
    pub(crate) files: Arc<Vec<PathBuf>>,
    pub(crate) timeout: Duration,
    pub(crate) stop: StopSignal,
    pub(crate) waits: Waits,
    /// How many questions this process has asked. One is asked at a time, and has its number however often it is repeated.
    pub(crate) asked: Arc<AsyncMutex<u64>>,
}

/// An answer to "what shall I read?".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AssignedSplits {
    Split(SplitTask),
    Remainder(AssignedStream),
    /// Others, or this worker itself, hold what is left: ask again.
    Later {
        pause: Duration,
        reason: String,
    },
    EpochDone,
    LetGo,
}

/// What is left of a stream that was started before, in the order of rows of the worker that started it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AssignedStream {
    pub(crate) order: u32,
    pub(crate) tasks: Vec<SplitTask>,
    pub(crate) start: StreamStart,
}

/// Whether the asker is in the middle of a stream: then there is no rest of another one for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitNeed {
    ForAStream,
    Within,
}

impl SplitClient {
    /// Asks once, trying again while the coordinator is away and timeout lasts.
    ///
    /// A stop that this process or the run is asked for does not end a stream: without its other splits a window of shuffled rows
    /// would be short, and the batch that the loop may still take would have other rows than that of a run without the stop.
    pub(crate) async fn ask_for_splits(&self, epoch: u32, asking: SplitNeed) -> Result<AssignedSplits, WorkerError> {
        let deadline = Deadline::from_now(self.timeout);
        let continuing = asking == SplitNeed::Within;
        let mut asked = self.asked.lock().await;
        *asked += 1;
        let (member, incarnation) = (self.member, self.incarnation);
        let request = AssignRequest { member, incarnation, epoch, continuing, question: *asked };
        let (backoff, mut stop) = (Backoff::default(), self.stop.clone());
        let is_stopping = || continuing && self.stop.is_requested();
        let is_away = |refusal: &Refusal| refusal.kind.is_retryable() && !is_stopping();
        let part = if continuing { READER } else { LOOP };
        let waiting = Waiting::new(part, WaitKind::Coordinator, "its next split").with_timeout(self.timeout);
        let _waiting = self.waits.begin_wait(waiting);
        let ended = async { if continuing { stop.run_ended().await } else { stop.wait_for_request().await } };
        let answer = tokio::select! {
            biased;
            reason = ended => return Err(reason),
            answer = backoff.retry(deadline, is_away, || self.control.assign(request)) => answer,
        };
        let answer = answer.map_err(|refusal| match refusal.kind.is_retryable() && is_stopping() {
            // A user who stops the run may have stopped the coordinator as well.
            true => WorkerError::Interrupted,
            false => control_error(&*self.control, "assign a split", deadline, refusal),
        })?;
        match answer.work {
            Some(Work::Split(split)) => Ok(AssignedSplits::Split(self.task(split)?)),
            Some(Work::ResumeCursor(rest)) => Ok(AssignedSplits::Remainder(self.remainder(rest)?)),
            Some(Work::Wait(wait)) => {
                let pause = Duration::from_millis(u64::from(wait.retry_ms)).max(Duration::from_millis(1));
                Ok(AssignedSplits::Later { pause, reason: wait.reason })
            }
            Some(Work::EpochDone(EpochDone { leave: true })) => Ok(AssignedSplits::LetGo),
            Some(Work::EpochDone(EpochDone { leave: false })) => Ok(AssignedSplits::EpochDone),
            None => {
                let empty = Refusal::new(RefusalKind::Mismatch, "an empty answer; are both ends the same release?");
                Err(control_error(&*self.control, "assign a split", deadline, empty))
            }
        }
    }

    /// The rest of what can be had now, starting with `first`, for a stream of its own.
    pub(crate) fn lease_stream(&self, epoch: u32, first: Vec<SplitTask>) -> LeasedSplits {
        let (dealt, _) = watch::channel(first.clone());
        LeasedSplits { splits: self.clone(), epoch, first: first.into(), runtime: Handle::current(), dealt }
    }

    fn remainder(&self, rest: ResumeCursor) -> Result<AssignedStream, WorkerError> {
        let ResumeCursor { reader, splits, drop, windows, skip } = rest;
        let tasks = splits.into_iter().map(|split| self.task(split)).collect::<Result<_, _>>()?;
        Ok(AssignedStream { order: reader, tasks, start: StreamStart { drop, windows, skip } })
    }

    pub(crate) fn task(&self, split: Split) -> Result<SplitTask, WorkerError> {
        let path = self.files.get(split.file as usize).cloned();
        let path = path.ok_or_else(|| WorkerError::Control {
            coordinator: self.control.name().to_owned(),
            what: "assign a split",
            waited: Duration::ZERO,
            refusal: Refusal::invalid(format!("it names file {} of {}", split.file, self.files.len())),
        })?;
        Ok(SplitTask { id: split.id, path, start: split.start, end: split.end })
    }

    /// Where the run is in an epoch, and what of it is in this worker's name. A request to stop does not end the call: workers who
    /// step together go on to their next call together.
    pub(crate) async fn position(&self, epoch: u32) -> Result<PositionResponse, WorkerError> {
        let (member, incarnation) = (self.member, self.incarnation);
        let deadline = Deadline::from_now(self.timeout);
        let waiting = Waiting::new(LOOP, WaitKind::Coordinator, "the position of the run").with_timeout(self.timeout);
        let _waiting = self.waits.begin_wait(waiting);
        let ask = || async move {
            let asked = deadline.bound(self.control.position(PositionRequest { member, incarnation, epoch })).await;
            asked.unwrap_or_else(|within| Err(Refusal::no_answer(within)))
        };
        call_coordinator(&*self.control, "tell the position", deadline, ask).await
    }
}

/// Calls the coordinator, again while it is away and the deadline lasts.
pub(crate) async fn call_coordinator<T, F>(
    control: &dyn ControlPlane,
    what: &'static str,
    deadline: Deadline,
    call: impl FnMut() -> F,
) -> Result<T, WorkerError>
where
    F: Future<Output = Result<T, Refusal>>,
{
    let is_away = |refusal: &Refusal| refusal.kind.is_retryable();
    let answer = Backoff::default().retry(deadline, is_away, call).await;
    answer.map_err(|refusal| control_error(control, what, deadline, refusal))
}

pub(crate) fn control_error(
    control: &dyn ControlPlane,
    what: &'static str,
    deadline: Deadline,
    refusal: Refusal,
) -> WorkerError {
    if refusal.kind == RefusalKind::Fenced {
        return WorkerError::Fenced { reason: refusal.message };
    }
    WorkerError::Control { coordinator: control.name().to_owned(), what, waited: deadline.time_waited(), refusal }
}

/// A stream's splits. Says `None` as soon as nothing can be had at once: what this worker holds itself is complete
/// only after its stream has ended ([`SplitSource::next`]).
pub(crate) struct LeasedSplits {
    splits: SplitClient,
    epoch: u32,
    first: VecDeque<SplitTask>,
    runtime: Handle,
    /// The splits dealt out so far. Its receivers are closed once there will be no more.
    pub(super) dealt: watch::Sender<Vec<SplitTask>>,
}

impl SplitSource for LeasedSplits {
    fn next(&mut self) -> Result<Option<SplitTask>, String> {
        if let Some(first) = self.first.pop_front() {
            return Ok(Some(first));
        }
        let task = match self.runtime.block_on(self.splits.ask_for_splits(self.epoch, SplitNeed::Within)) {
            Ok(AssignedSplits::Split(task)) => Some(task),
            Ok(AssignedSplits::Remainder(_)) => {
                return Err("the coordinator gave a rest in the middle of a stream".to_owned());
            }
            Ok(AssignedSplits::Later { .. } | AssignedSplits::EpochDone | AssignedSplits::LetGo)
            | Err(WorkerError::Interrupted) => None,
            Err(error) => return Err(error.to_string()),
        };
        self.dealt.send_modify(|dealt| dealt.extend(task.clone()));
        Ok(task)
    }
}

#[cfg(test)]
impl SplitClient {
    pub(crate) fn of_test(control: Arc<zagros_fakes::FakeControlPlane>) -> Self {
        Self {
            control,
            member: 7,
            incarnation: 1,
            files: Arc::new(vec!["a".into(), "b".into()]),
            timeout: Duration::from_secs(5),
            stop: StopSignal::from_shutdown(zagros_plumbing::Shutdown::new()),
            waits: Waits::default(),
            asked: Arc::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use zagros_fakes::FakeControlPlane;
    use zagros_protocol::control::{AssignResponse, Wait};

    use super::*;
    use crate::testing::assert_refused;

    fn splits(work: impl IntoIterator<Item = Result<Work, Refusal>>) -> SplitClient {
        let control = FakeControlPlane::default();
        let answers = work.into_iter().map(|work| work.map(|work| AssignResponse { work: Some(work) }));
        let epoch_done = AssignResponse { work: Some(Work::EpochDone(EpochDone::default())) };
        control.assign.respond_in_order(answers.chain([Ok(epoch_done)]));
        SplitClient::of_test(Arc::new(control))
    }

    fn split(id: u64, file: u32) -> Result<Work, Refusal> {
        Ok(Work::Split(Split { id, file, start: 0, end: 9 }))
    }

    fn away() -> Result<Work, Refusal> {
        Err(Refusal::new(RefusalKind::Unavailable, "connection refused"))
    }

    fn task(id: u64, path: &str) -> SplitTask {
        SplitTask { id, path: path.into(), start: 0, end: 9 }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_stream_takes_what_can_be_had_and_then_ends() {
        let wait = Ok(Work::Wait(Wait { retry_ms: 10, reason: "worker 0 holds 1 split".to_owned() }));
        let splits = splits([split(4, 1), wait, split(5, 0)]);
        let mut leased = splits.lease_stream(0, vec![task(3, "a")]);
        let dealt = leased.dealt.subscribe();
        let taken = tokio::task::spawn_blocking(move || [leased.next(), leased.next(), leased.next()]).await.unwrap();
        assert_eq!(taken, [Ok(Some(task(3, "a"))), Ok(Some(task(4, "b"))), Ok(None)]);
        assert_eq!(*dealt.borrow(), [task(3, "a"), task(4, "b")]);
        assert!(dealt.has_changed().is_err(), "more could be dealt to a stream that has ended");
    }

    /// A stream that ended there made a step of the rows of half a window.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_stream_that_is_asked_to_stop_takes_all_of_its_splits() {
        let splits = splits([split(4, 1), split(5, 0)]);
        splits.stop.shutdown.request();
        assert!(matches!(splits.ask_for_splits(0, SplitNeed::ForAStream).await, Err(WorkerError::Interrupted)));
        let mut leased = splits.lease_stream(0, vec![task(3, "a")]);
        let taken = tokio::task::spawn_blocking(move || std::array::from_fn(|_| leased.next())).await.unwrap();
        assert_eq!(taken, [Ok(Some(task(3, "a"))), Ok(Some(task(4, "b"))), Ok(Some(task(5, "a"))), Ok(None)]);
    }

    /// A coordinator that has dealt a split and whose answer is lost must not deal another one, which no stream would read.
    #[tokio::test(start_paused = true)]
    async fn a_coordinator_that_comes_back_is_asked_again_and_a_question_keeps_its_number() {
        let questions = Arc::new(std::sync::Mutex::new(Vec::new()));
        let (noted, control) = (Arc::clone(&questions), FakeControlPlane::default());
        control.assign.set(move |request| {
            let mut questions = noted.lock().unwrap();
            questions.push(request.question);
            match questions.len() {
                1 | 2 => Err(Refusal::new(RefusalKind::Unavailable, "connection reset")),
                _ => Ok(AssignResponse { work: Some(Work::EpochDone(EpochDone::default())) }),
            }
        });
        let splits = SplitClient { control: Arc::new(control), ..splits([]) };
        for _ in 0..2 {
            assert_eq!(splits.ask_for_splits(0, SplitNeed::ForAStream).await.unwrap(), AssignedSplits::EpochDone);
        }
        assert_eq!(*questions.lock().unwrap(), [1, 1, 1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_stays_away_is_named_with_the_time_waited() {
        let away = std::iter::repeat_with(away);
        let refused = splits(away.take(1000)).ask_for_splits(0, SplitNeed::ForAStream).await;
        let words = ["coordinator (fake) did not assign a split for 5.0s: connection refused; see whether"];
        assert_refused(refused, &words);
    }

    #[tokio::test]
    async fn answers_that_make_no_sense_are_errors() {
        let ask = async |answer| splits([answer]).ask_for_splits(0, SplitNeed::ForAStream).await;
        assert!(matches!(ask(split(4, 2)).await, Err(WorkerError::Control { .. })));
        let fenced = Err(Refusal::new(RefusalKind::Fenced, "replaced"));
        assert!(matches!(ask(fenced).await, Err(WorkerError::Fenced { .. })));
    }
}
