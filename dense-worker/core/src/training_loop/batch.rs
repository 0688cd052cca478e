//! Between two steps: the next batch, what all ranks agree on, the step, and what follows it.

use zagros_protocol::control::BarrierReason;

use super::{TrainingLoop, prepend};
use crate::action::{Action, Event, GroupMember};
use crate::agreement::{StepAgreement, StepFacts, StepVote, VoteRule};
use crate::state::{BarrierPoint, CheckpointPoint, DrainPoint, EvaluationPoint, LoopState, RoundEnd, StepPhase};

impl TrainingLoop {
    /// A stream to its end. In a group, until the last stream of any rank ends: without one of its own, this worker steps
    /// with the others.
    pub(super) fn start_round(&mut self, stream: bool) -> Vec<Action> {
        (self.has_stream, self.steps_before_round) = (stream, self.counts.steps);
        let limit = self.config.steps_left(self.counts.steps);
        prepend(Action::StartRound { stream, limit }, self.next_batch(None))
    }

    pub(super) fn next_batch(&mut self, ahead: Option<StepAgreement>) -> Vec<Action> {
        // Settled already where an evaluation was the last thing that a group did.
        if self.config.steps_left(self.counts.steps) == 0 || self.is_settled() {
            return self.close_round(RoundEnd::Steps);
        }
        // Of a batch that the others count on, this worker makes the step first.
        self.wait_for_batch(ahead, false, ahead.is_none())
    }

    fn wait_for_batch(&mut self, ahead: Option<StepAgreement>, stopping: bool, stop: bool) -> Vec<Action> {
        let action = Action::NextBatch { stop, deadline: stopping, barriers_after: self.barriers_after() };
        self.go(LoopState::Training(StepPhase::AwaitingBatch { ahead, stopping }), action)
    }

    pub(super) fn on_batch_event(&mut self, ahead: Option<StepAgreement>, stopping: bool, event: Event) -> Vec<Action> {
        match event {
            Event::BatchReady(facts) => self.on_supply(true, Some(facts), ahead, stopping),
            // The others weigh their samples by those of this batch. Without it the step would be that of other samples
            // than all have agreed on (RK-1), so this worker leaves, and the step is no one's.
            event if ahead.is_some() => self.given_up(&event),
            Event::StreamDry(facts) => self.on_supply(false, Some(facts), ahead, stopping),
            // The batch whose lookup was counted is waited for no longer than a server.
            Event::StopRequested if self.config.policy.is_in_turns() => self.wait_for_batch(ahead, true, false),
            Event::StopRequested | Event::BatchLate | Event::Interrupted => {
                self.on_supply(false, None, ahead, stopping)
            }
            Event::BarrierDue => self.vote(BarrierPoint::BetweenSteps),
            Event::GroupDue => self.on_newer_group(),
            event => self.given_up(&event),
        }
    }

    /// A batch, or none because the stream is dry. Without facts the wait was interrupted.
    fn on_supply(
        &mut self,
        batch: bool,
        facts: Option<StepFacts>,
        ahead: Option<StepAgreement>,
        stopping: bool,
    ) -> Vec<Action> {
        if self.config.policy.is_group() {
            return match ahead {
                Some(agreed) => self.on_agreed(batch, Event::Agreed(agreed)),
                None => self.agree(batch, facts, stopping),
            };
        }
        match facts {
            Some(facts) if batch => self.step_alone(facts, stopping),
            Some(_) if !stopping => self.close_round(RoundEnd::Data),
            _ => self.close_round(RoundEnd::Interrupted),
        }
    }

    fn agree(&mut self, batch: bool, facts: Option<StepFacts>, stopping: bool) -> Vec<Action> {
        // A worker leaves once it has trained on all that it has read.
        let is_done = !batch && facts.is_some_and(|facts| facts.leaves);
        self.leaving = is_done && self.config.policy.regroups_after_loss();
        let vote = match facts {
            Some(facts) => {
                let vote = self.vote_rule(self.counts.steps + 1).vote(facts);
                StepVote { stop: stopping, regroup: vote.regroup || self.leaving, ..vote }
            }
            None => StepVote { stop: true, ..StepVote::default() },
        };
        self.go(LoopState::Training(StepPhase::Agreeing { batch }), Action::Agree { vote, batch })
    }

    fn vote_rule(&self, step: u64) -> VoteRule {
        let GroupMember { rank, generation } = self.member;
        VoteRule { leads: rank == 0, is_due_by_step: self.config.is_checkpoint_due(step, false), generation }
    }

    /// A worker without a batch steps with those that have one (RK-2).
    pub(super) fn on_agreed(&mut self, batch: bool, event: Event) -> Vec<Action> {
        let Event::Agreed(agreed) = event else { return self.given_up(&event) };
        let StepAgreement { samples, stop, checkpoint, regroup } = agreed;
        let in_turns = self.config.policy.is_in_turns();
        if regroup && !in_turns && !stop {
            return self.on_join();
        }
        self.leaving = false;
        // In turns, a batch that was looked up is trained on: lookups are counted.
        if stop && (!in_turns || samples == 0) {
            return self.close_round(RoundEnd::Interrupted);
        }
        if samples == 0 {
            return self.close_round(RoundEnd::Data);
        }
        // All agree when the next step comes where a checkpoint comes between.
        let may_vote_ahead = batch && !checkpoint && !stop;
        let rule_ahead = may_vote_ahead.then(|| self.vote_rule(self.counts.steps + 2));
        self.step(Action::Step { batch, ahead: rule_ahead, last: stop }, checkpoint, stop)
    }

    fn step_alone(&mut self, facts: StepFacts, last: bool) -> Vec<Action> {
        let is_due = self.config.is_checkpoint_due(self.counts.steps + 1, facts.checkpoint_by_time);
        let is_asynchronous = self.config.policy.is_asynchronous();
        let then = self.step(Action::Step { batch: true, ahead: None, last }, is_due && !is_asynchronous, last);
        if is_due { self.asking_for_barrier(then) } else { then }
    }

    /// Asynchronous workers are asked to come to a checkpoint.
    pub(super) fn asking_for_barrier(&self, then: Vec<Action>) -> Vec<Action> {
        match self.barriers_after() {
            Some(_) => prepend(Action::AskForBarrier(self.attended + 1), then),
            None => then,
        }
    }

    fn step(&mut self, action: Action, checkpoint: bool, last: bool) -> Vec<Action> {
        self.go(LoopState::Training(StepPhase::Stepping { checkpoint, last }), action)
    }

    pub(super) fn on_stepped(&mut self, checkpoint: bool, last: bool, event: Event) -> Vec<Action> {
        let Event::Stepped { ahead } = event else { return self.given_up(&event) };
        self.counts.steps += 1;
        if last {
            return self.close_round(RoundEnd::Interrupted);
        }
        if self.config.is_evaluation_due(self.counts.steps) {
            let point = EvaluationPoint::BetweenSteps { checkpoint, ahead };
            return self.go(LoopState::Draining(DrainPoint::BeforeEvaluation(point)), Action::Drain);
        }
        self.checkpoint_between(checkpoint, ahead)
    }

    pub(super) fn checkpoint_between(&mut self, checkpoint: bool, ahead: Option<StepAgreement>) -> Vec<Action> {
        if checkpoint && self.config.keeps_checkpoints {
            return self.go(LoopState::Checkpointing(CheckpointPoint::BetweenSteps { ahead }), Action::Checkpoint);
        }
        prepend(Action::ReleasePermit, self.next_batch(ahead))
    }

    pub(super) fn on_checkpoint_event(&mut self, point: CheckpointPoint, event: Event) -> Vec<Action> {
        if event != Event::CheckpointDone {
            return self.given_up(&event);
        }
        match point {
            CheckpointPoint::BetweenSteps { ahead } => prepend(Action::ReleasePermit, self.next_batch(ahead)),
            CheckpointPoint::AtBarrier(point) => self.after_checkpoint_barrier(point),
            CheckpointPoint::Last => prepend(Action::ReleasePermit, self.conclude(false)),
        }
    }

    pub(super) fn close_round(&mut self, end: RoundEnd) -> Vec<Action> {
        let checked = end == RoundEnd::Steps;
        self.go(LoopState::Draining(DrainPoint::Round(end)), Action::CloseRound { checked })
    }

    pub(super) fn vote(&mut self, point: BarrierPoint) -> Vec<Action> {
        let reason = match point {
            BarrierPoint::BetweenSteps | BarrierPoint::WhileWaiting => BarrierReason::Checkpoint,
            BarrierPoint::EpochEnd(_) => BarrierReason::EpochEnd,
            BarrierPoint::Stop => BarrierReason::Stop,
            BarrierPoint::Leaving => BarrierReason::Leave,
        };
        self.go(LoopState::AtBarrier(point), Action::Vote(reason))
    }
}
