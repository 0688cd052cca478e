//! The driver: its parts, and how it performs the actions of the training loop ([`TrainingLoop`]) and reports their replies.
//!
//! The loop decides, the driver does. An action that fails is reported in place of its reply; the error itself stays here. What is done with
//! the parts is in the files that perform the actions.

use std::sync::Arc;

use tracing::{info, warn};
use zagros_collective::CollectiveError;
use zagros_coordinator_client::{Membership, Waiting};
use zagros_embedding_client::EmbeddingClient;
use zagros_job::{Job, StepCount};
use zagros_protocol::control::WaitKind;
use zagros_scoring::TrainingOutcome;
use zagros_worker_core::{
    Action, Event, FailureCause, GroupFailure, LoopConfig, LoopEnd, TrainingLoop, TrainingPolicy,
};

use super::checkpoint::{CheckpointWriter, ResumePoint};
use super::data::{LOOP, SplitClient, SplitCompleter, StopSignal, StreamState, is_interruption};
use super::evaluate::{ScoringState, early_stop_rule};
use super::group::{BarrierCalls, GroupBallots, GroupSession};
use super::join::StartModel;
use super::step::{LossWatch, TrainingTracker};
use crate::datapath::dense::DenseThread;
use crate::error::{WorkerError, worker_names};
use crate::event::{Observer, WorkerEvent};
use crate::metrics::WorkerMetrics;
use crate::report::RunFolder;
use crate::summary::RunSummary;

pub(crate) struct Trainer {
    pub(crate) run: RunContext,
    pub(crate) group: GroupSession,
    pub(crate) stream: StreamState,
    pub(crate) scoring: ScoringState,
    pub(crate) tracker: TrainingTracker,
    pub(crate) loss: LossWatch,
    pub(crate) checkpoints: CheckpointWriter,
    pub(crate) barrier_calls: BarrierCalls,
    pub(crate) ballots: GroupBallots,
    pub(crate) start: Option<StartModel>,
    pub(crate) saved: Option<RunSummary>,
    /// Over the data, from 0, by the loop.
    pub(crate) epoch: u32,
}

/// What a worker works with during the whole run.
pub(crate) struct RunContext {
    pub(crate) job: Arc<Job>,
    pub(crate) client: Arc<EmbeddingClient>,
    pub(crate) dense: DenseThread,
    pub(crate) metrics: WorkerMetrics,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) stop: StopSignal,
    pub(crate) splits: SplitClient,
    pub(crate) completer: SplitCompleter,
    /// Where the first worker writes summary and model; `None` for the others, and where nothing is written.
    pub(crate) folder: Option<RunFolder>,
}

impl RunContext {
    /// Whether this process comes to a run that may have trained before: it takes the place of another process, or there was
    /// no place for it when the run began.
    pub(super) fn joins_late(&self) -> bool {
        let index = self.membership.member_id() as u32;
        self.membership.incarnation() > 1 || index >= self.job.cluster.workers
    }
}

impl Trainer {
    /// Trains to the end, in as many groups as it takes: from `point` if no other worker has trained in this run before.
    ///
    /// # Errors
    /// The first cause of whatever went wrong. A lost worker is one where none takes its place in time, and in other modes
    /// than `hybrid`.
    pub(crate) async fn train(&mut self, point: Option<&ResumePoint>) -> Result<TrainingOutcome, WorkerError> {
        let mut training = TrainingLoop::new(self.loop_config());
        let (mut actions, mut failure) = (training.start(), None);
        loop {
            if let Some(Action::End(ending)) = actions.last().copied() {
                self.perform_all(&training, &actions, point, failure.as_ref()).await?;
                return outcome(ending, failure);
            }
            // What the loop has decided is part of the next checkpoint.
            self.scoring.model.search = training.search_state();
            let event = match self.perform_all(&training, &actions, point, failure.as_ref()).await {
                Ok(event) => event,
                Err(error) => {
                    let error = error.by_index(&self.group.indices);
                    let event = self.failure(&error);
                    failure = Some(error);
                    Some(event)
                }
            };
            // A loop that gets no reply is reported so by an event that it does not expect.
            actions = training.on_event(event.unwrap_or(Event::Left));
        }
    }

    fn loop_config(&self) -> LoopConfig {
        let job = &self.run.job;
        let several = job.cluster.has_groups();
        LoopConfig {
            policy: policy(job.train.mode, several),
            from_memory: self.stream.preloaded.is_some(),
            epochs: job.train.epochs,
            max_steps: job.train.max_steps,
            evaluate_every: job.train.evaluate_every.map(StepCount::in_steps),
            early_stop: job.train.early_stop.map(early_stop_rule),
            resets_rows: job.train.reset_embeddings,
            has_held_out: self.scoring.held_out.during.is_some(),
            keeps_checkpoints: job.checkpoint.keep > 0,
            checkpoint_every: self.checkpoints.every_steps(),
            is_replacement: self.run.joins_late(),
        }
    }

    async fn perform_all(
        &mut self,
        training: &TrainingLoop,
        actions: &[Action],
        point: Option<&ResumePoint>,
        failure: Option<&WorkerError>,
    ) -> Result<Option<Event>, WorkerError> {
        self.epoch = training.epoch();
        let mut reply = None;
        for action in actions {
            reply = Box::pin(self.perform(*action, point, failure)).await?;
        }
        Ok(reply)
    }

    /// The reply of the action, if it has one.
    async fn perform(
        &mut self,
        action: Action,
        point: Option<&ResumePoint>,
        failure: Option<&WorkerError>,
    ) -> Result<Option<Event>, WorkerError> {
        match action {
            Action::ReportLost => self.report_lost(failure),
            Action::ReportJoin => info!(step = self.tracker.own_steps(), "{}", WorkerError::AnotherJoins),
            Action::WarnNoRegroup => {
                warn!("in mode sync the other workers do not wait for a lost one; the run ends");
            }
            Action::StartEpoch(epoch) => self.tracker.epoch_started(epoch),
            Action::StartRound { stream, limit } => self.start_round(stream, limit)?,
            Action::AskForBarrier(number) => self.run.membership.ask_for_barrier(number),
            Action::ResumeClock => self.tracker.resume_clock(),
            Action::ReleasePermit => self.stream.permit = None,
            Action::ForgetEpoch => {
                self.scoring.of_epochs.pop();
            }
            Action::End(_) => {}
            action => return self.perform_call(action, point).await.map(Some),
        }
        Ok(None)
    }

    async fn perform_call(&mut self, action: Action, point: Option<&ResumePoint>) -> Result<Event, WorkerError> {
        let _working = self.run.metrics.waits.begin_wait(work(action, self.tracker.own_steps()));
        let end = |finished| if finished { TrainingOutcome::Finished } else { TrainingOutcome::Interrupted };
        match action {
            Action::Form { after, progress } => self.form_group(after, progress).await,
            Action::Resume => self.resume(point).await,
            Action::Follow { source, in_flight, adopt, same_epoch } => {
                self.reconcile_step(in_flight).await?;
                self.follow_rank(source, adopt, same_epoch).await
            }
            Action::LeaveGroup => self.leave_group().await,
            Action::FindStream(_) => self.find_stream().await,
            Action::WaitForSplits { pause, barriers_after } => self.wait_for_splits(pause, barriers_after).await,
            Action::NextBatch { stop, deadline, barriers_after } => {
                self.next_batch(stop, deadline, barriers_after).await
            }
            Action::Agree { vote, batch } => self.agree_on_step(vote, batch).await,
            Action::Step { batch, ahead, last } => self.step(batch, ahead, last).await,
            Action::Drain => self.drain().await.map(|()| Event::Drained),
            Action::Evaluate => self.evaluate().await,
            Action::Checkpoint => self.make_checkpoint().await.map(|()| Event::CheckpointDone),
            Action::CloseRound { checked } => self.close_round(checked).await,
            Action::CompleteStream => self.complete_stream().await,
            Action::Vote(reason) => self.vote_at_barrier(reason).await,
            Action::WaitForAll => self.wait_for_all().await.map(|()| Event::AllHere),
            Action::CloseEpoch { check_books, .. } => self.close_epoch(check_books).await,
            Action::ResetRows => self.reset_rows().await.map(|()| Event::RowsReset),
            Action::FinalCheckpoint => self.final_checkpoint().await.map(|()| Event::CheckpointDone),
            Action::Conclude { finished } => self.choose_model(end(finished)).await,
            Action::Save { finished, together } => self.save(end(finished), together).await.map(|()| Event::Saved),
            action => Err(out_of_order(&format!("{action:?} has no reply"))),
        }
    }

    fn failure(&self, error: &WorkerError) -> Event {
        let (generation, stop_requested) = (self.group.generation(), self.run.stop.is_requested());
        let lost = |about_others| Event::Lost(GroupFailure { generation, about_others, stop_requested });
        match error {
            WorkerError::Peers(error) => lost(!matches!(error, CollectiveError::Address { .. })),
            WorkerError::BarrierMissed { .. } => lost(true),
            error if is_interruption(error) => Event::Interrupted,
            _ => Event::Failed,
        }
    }

    fn report_lost(&self, failure: Option<&WorkerError>) {
        let (missing, error) = match failure {
            Some(WorkerError::Peers(error)) => (error.missing_ranks(), error.to_string()),
            Some(WorkerError::BarrierMissed { workers, reason }) => (&workers[..], reason.clone()),
            _ => return,
        };
        let has_newer = matches!(failure, Some(WorkerError::BarrierMissed { .. }));
        if missing.is_empty() && (has_newer || self.group.is_asynchronous()) {
            // A newer group has formed meanwhile.
            return info!(step = self.tracker.own_steps(), "{error}");
        }
        let (step, workers) = (self.tracker.own_steps(), worker_names(missing));
        warn!(step, workers, %error, "a worker is lost; waiting for another process in its place");
        let timeout = self.run.job.cluster.timeout;
        self.run.observer.observe(&WorkerEvent::WorkerLost { step, workers, cause: error, timeout });
    }
}

/// What this worker works on while it performs an action, after so many steps (invariant WT-2). What it waits for meanwhile is
/// a wait of its own.
fn work(action: Action, steps: u64) -> Waiting {
    let waiting = |what| Waiting::new(LOOP, WaitKind::Work, what);
    match action {
        Action::Form { .. } => waiting("its next process group"),
        Action::Resume => waiting("the checkpoint that it resumes from"),
        Action::Follow { .. } => waiting("the state of the most advanced rank"),
        Action::LeaveGroup => waiting("the end of its process group"),
        Action::FindStream(_) | Action::WaitForSplits { .. } => waiting("its next split"),
        Action::NextBatch { .. } => waiting("the batch of step").with_number(steps + 1),
        Action::Agree { .. } => waiting("the agreement on step").with_number(steps + 1),
        Action::Step { .. } => waiting("step").with_number(steps + 1),
        Action::Drain | Action::CloseRound { .. } | Action::CompleteStream => waiting("its last acknowledgements"),
        Action::Evaluate => waiting("the score of the held-out part"),
        Action::Checkpoint | Action::FinalCheckpoint => waiting("a checkpoint"),
        Action::Vote(_) | Action::WaitForAll => waiting("a barrier"),
        Action::CloseEpoch { .. } => waiting("the end of the epoch"),
        Action::ResetRows => waiting("the removal of all rows"),
        Action::Conclude { .. } => waiting("the choice of the model"),
        Action::Save { .. } => waiting("what the run leaves"),
        _ => waiting("its next action"),
    }
}

fn policy(mode: zagros_job::Mode, several: bool) -> TrainingPolicy {
    use zagros_job::Mode;
    match (mode, several) {
        (mode, false) => TrainingPolicy::OneWorker { in_turns: mode == Mode::Sync },
        (Mode::Sync, true) => TrainingPolicy::SynchronousGroup { in_turns: true },
        (Mode::Hybrid, true) => TrainingPolicy::SynchronousGroup { in_turns: false },
        (Mode::Async, true) => TrainingPolicy::AsynchronousWorkers,
    }
}

fn outcome(ending: LoopEnd, failure: Option<WorkerError>) -> Result<TrainingOutcome, WorkerError> {
    match ending {
        LoopEnd::Finished => Ok(TrainingOutcome::Finished),
        LoopEnd::Left => Ok(TrainingOutcome::Left),
        LoopEnd::Interrupted => Ok(TrainingOutcome::Interrupted),
        LoopEnd::Failed(FailureCause::NobodyLeft) => Err(WorkerError::NobodyLeft),
        LoopEnd::Failed(FailureCause::OnlyJoins) => Err(WorkerError::AnotherJoins),
        LoopEnd::Failed(FailureCause::LastEvent) => Err(failure.unwrap_or(WorkerError::Interrupted)),
        LoopEnd::Failed(FailureCause::Unexpected) => Err(out_of_order("an event is no reply to the last action")),
    }
}

fn out_of_order(what: &str) -> WorkerError {
    WorkerError::Thread { thread: "training loop", reason: what.to_owned() }
}
