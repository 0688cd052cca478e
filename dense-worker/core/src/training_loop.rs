//! The machine: which actions follow from an event in a state.

mod batch;
mod epoch;

use crate::action::{Action, Event, FailureCause, GroupMember, LoopCounts, LoopEnd};
use crate::agreement::RankProgress;
use crate::config::{LoopConfig, PatienceUse, SearchState};
use crate::state::{DrainPoint, EvaluationPoint, FinishPhase, LoopState, RegroupPhase, RoundEnd, StepPhase};

#[derive(Clone, Debug)]
pub struct TrainingLoop {
    config: LoopConfig,
    state: LoopState,
    counts: LoopCounts,
    has_trained: bool,
    member: GroupMember,
    /// The newest checkpoint barrier that it was at.
    attended: u64,
    has_stream: bool,
    steps_before_round: u64,
    steps_before_group: u64,
    /// Groups in a row in which no step was made.
    fruitless_groups: u32,
    /// It leaves the run: in a synchronous group its last vote says so, of asynchronous workers all have decided so.
    leaving: bool,
}

impl TrainingLoop {
    pub fn new(config: LoopConfig) -> Self {
        Self {
            config,
            state: LoopState::Joining,
            counts: LoopCounts::default(),
            has_trained: false,
            member: GroupMember { rank: 0, generation: 0 },
            attended: 0,
            has_stream: false,
            steps_before_round: 0,
            steps_before_group: 0,
            fruitless_groups: 0,
            leaving: false,
        }
    }

    pub fn start(&mut self) -> Vec<Action> {
        self.form(0)
    }

    /// What follows from an event. The last action has a reply, or ends training.
    pub fn on_event(&mut self, event: Event) -> Vec<Action> {
        match (self.state, event) {
            (LoopState::Ended(ending), _) => vec![Action::End(ending)],
            (LoopState::Joining, _) => self.end(LoopEnd::Failed(FailureCause::Unexpected)),
            (_, Event::Failed) => self.end(LoopEnd::Failed(FailureCause::LastEvent)),
            (_, Event::Lost(loss)) => self.on_loss(loss),
            (LoopState::Regrouping(_) | LoopState::Resuming, event) => self.on_group_event(event),
            (LoopState::Training(StepPhase::AwaitingStream), event) => self.on_stream_event(event),
            (LoopState::Training(StepPhase::AwaitingBatch { ahead, stopping }), event) => {
                self.on_batch_event(ahead, stopping, event)
            }
            (LoopState::Training(StepPhase::Agreeing { batch }), event) => self.on_agreed(batch, event),
            (LoopState::Training(StepPhase::Stepping { checkpoint, last }), event) => {
                self.on_stepped(checkpoint, last, event)
            }
            (LoopState::Waiting, event) => self.on_wait_event(event),
            (LoopState::AtBarrier(point), event) => self.on_barrier_event(point, event),
            (LoopState::Draining(drain), event) => self.on_drained(drain, event),
            (LoopState::Evaluating(point), event) => self.on_evaluation_event(point, event),
            (LoopState::Checkpointing(point), event) => self.on_checkpoint_event(point, event),
            (LoopState::Finishing(finish), event) => self.on_finish_event(finish, event),
        }
    }

    pub fn state(&self) -> LoopState {
        self.state
    }

    pub fn rank_progress(&self) -> RankProgress {
        let LoopCounts { epoch, steps, evaluated, .. } = self.counts;
        let (has_trained, evaluated) = (self.has_trained, evaluated.unwrap_or(0));
        RankProgress { has_trained, epoch, steps, evaluated, barriers: self.attended }
    }

    pub fn epoch(&self) -> u32 {
        self.counts.epoch
    }

    pub fn search_state(&self) -> SearchState {
        self.counts.search
    }

    fn on_drained(&mut self, drain: DrainPoint, event: Event) -> Vec<Action> {
        match (drain, event) {
            (DrainPoint::BeforeEvaluation(point), Event::Drained) => self.evaluate(point),
            (DrainPoint::Round(end), Event::Drained) => self.round_over(end),
            (DrainPoint::Stream(end), Event::Drained) => self.stream_over(end),
            (DrainPoint::Leaving, Event::Drained) => self.end(LoopEnd::Left),
            (_, event) => self.given_up(&event),
        }
    }

    /// Scores the held-out part, unless that was done after this very step.
    fn evaluate(&mut self, point: EvaluationPoint) -> Vec<Action> {
        let is_done = self.counts.evaluated == Some(self.all_steps());
        if self.config.has_held_out && !is_done {
            return self.go(LoopState::Evaluating(point), Action::Evaluate);
        }
        self.evaluated(point)
    }

    fn on_evaluation_event(&mut self, point: EvaluationPoint, event: Event) -> Vec<Action> {
        match (event, point) {
            (Event::Evaluated { measured }, _) => {
                let step = self.all_steps();
                if let Some(rule) = self.config.early_stop {
                    let since = self.counts.evaluated.map(|last| step.saturating_sub(last));
                    let patience = PatienceUse::after_steps(since, self.config.evaluate_every);
                    self.counts.search.note_evaluation(rule, step, measured, patience);
                }
                self.counts.evaluated = Some(step);
                self.evaluated(point)
            }
            (Event::Interrupted, EvaluationPoint::Owed) => self.conclude(false),
            (Event::Interrupted, EvaluationPoint::BetweenSteps { .. }) => self.close_round(RoundEnd::Interrupted),
            (Event::Interrupted, EvaluationPoint::EpochEnd(_)) => {
                prepend(Action::ForgetEpoch, self.stop_all(RoundEnd::Interrupted))
            }
            (event, _) => self.given_up(&event),
        }
    }

    fn evaluated(&mut self, point: EvaluationPoint) -> Vec<Action> {
        match point {
            EvaluationPoint::Owed => self.begin_epoch(self.counts.epoch, self.counts.untouched),
            EvaluationPoint::BetweenSteps { .. } if self.is_settled() => self.close_round(RoundEnd::Steps),
            EvaluationPoint::BetweenSteps { checkpoint, ahead } => {
                prepend(Action::ResumeClock, self.checkpoint_between(checkpoint, ahead))
            }
            EvaluationPoint::EpochEnd(end) => self.next_epoch(end),
        }
    }

    fn on_finish_event(&mut self, finish: FinishPhase, event: Event) -> Vec<Action> {
        match (finish, event) {
            (FinishPhase::EpochBarrier(end), Event::AllHere) => self.close_epoch(end),
            (FinishPhase::ClosingEpoch(end), Event::EpochClosed) => self.evaluate(EvaluationPoint::EpochEnd(end)),
            (FinishPhase::ResettingRows, Event::RowsReset) => self.begin_epoch(self.counts.epoch + 1, true),
            (FinishPhase::Concluding { finished }, Event::Concluded) => self.save(finished),
            (FinishPhase::Concluding { .. }, Event::Interrupted) => self.save(false),
            (FinishPhase::Saving { finished: true }, Event::Saved) => self.end(LoopEnd::Finished),
            (FinishPhase::Saving { finished: false }, Event::Saved) => self.end(LoopEnd::Interrupted),
            (_, event) => self.given_up(&event),
        }
    }

    fn conclude(&mut self, finished: bool) -> Vec<Action> {
        if self.config.from_memory {
            return self.save(finished);
        }
        self.go(LoopState::Finishing(FinishPhase::Concluding { finished }), Action::Conclude { finished })
    }

    /// A worker that left before the model is saved could not help a replacement of the first one to save it. Where a lost
    /// worker sets the run back, and after an interruption, the newest checkpoint helps.
    fn save(&mut self, finished: bool) -> Vec<Action> {
        let is_joint = finished && self.config.policy.regroups_after_loss() && !self.config.from_memory;
        self.go(LoopState::Finishing(FinishPhase::Saving { finished }), Action::Save { finished, together: is_joint })
    }

    /// An action that was given up where nothing tidy can follow, or an event that is no reply to the last action.
    fn given_up(&mut self, event: &Event) -> Vec<Action> {
        let cause = if *event == Event::Interrupted { FailureCause::LastEvent } else { FailureCause::Unexpected };
        self.end(LoopEnd::Failed(cause))
    }

    fn end(&mut self, ending: LoopEnd) -> Vec<Action> {
        self.go(LoopState::Ended(ending), Action::End(ending))
    }

    fn go(&mut self, state: LoopState, action: Action) -> Vec<Action> {
        self.state = state;
        vec![action]
    }

    fn form(&mut self, attempts: u32) -> Vec<Action> {
        let (after, progress) = (self.member.generation, self.rank_progress());
        self.go(LoopState::Regrouping(RegroupPhase::Forming { attempts }), Action::Form { after, progress })
    }

    fn all_steps(&self) -> u64 {
        self.counts.steps + self.counts.others_steps
    }

    /// Whether training is to end, because no better state is to be expected.
    fn is_settled(&self) -> bool {
        self.config.early_stop.is_some_and(|rule| self.counts.search.is_over(rule))
    }

    /// Barriers that are listened for: those after the last one.
    fn barriers_after(&self) -> Option<u64> {
        let may_be_called = self.config.policy.is_asynchronous() && !self.config.from_memory;
        may_be_called.then_some(self.attended)
    }
}

fn prepend(first: Action, mut then: Vec<Action>) -> Vec<Action> {
    then.insert(0, first);
    then
}
