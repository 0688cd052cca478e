//! Epochs: their streams, waits and barriers, and how one ends. Groups: how one forms, what training starts from in it, and what a lost
//! worker does.

use zagros_protocol::control::BarrierDecision;

use super::{TrainingLoop, prepend};
use crate::action::{Action, Event, FailureCause, GroupFailure, GroupMember, InFlight, LoopCounts, LoopEnd};
use crate::agreement::{RankProgress, most_advanced, newest_attended};
use crate::state::{
    BarrierPoint, CheckpointPoint, DrainPoint, EvaluationPoint, FinishPhase, LoopState, RegroupPhase, RoundEnd,
    StepPhase,
};

impl TrainingLoop {
    pub(super) fn begin_epoch(&mut self, epoch: u32, anew: bool) -> Vec<Action> {
        if epoch >= self.config.epochs {
            self.counts.epoch = self.config.epochs;
            return self.conclude(true);
        }
        self.counts.epoch = epoch;
        let then = if self.config.from_memory { self.start_round(true) } else { self.find_stream() };
        if anew { prepend(Action::StartEpoch(epoch), then) } else { then }
    }

    fn find_stream(&mut self) -> Vec<Action> {
        self.go(LoopState::Training(StepPhase::AwaitingStream), Action::FindStream(self.counts.epoch))
    }

    pub(super) fn on_stream_event(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::StreamFound => self.start_round(true),
            // The others step, and so must this worker, until no rank has a batch left: then the epoch is over.
            Event::NoSplits | Event::SplitsHeld { .. } | Event::LetGo | Event::Interrupted
                if self.config.policy.is_group() =>
            {
                self.start_round(false)
            }
            // All come, and count what it has done. Its next vote is its last.
            Event::LetGo if self.config.policy.is_asynchronous() => {
                let then = self.vote(BarrierPoint::Leaving);
                self.asking_for_barrier(then)
            }
            Event::NoSplits => self.epoch_over(RoundEnd::Data),
            Event::SplitsHeld { pause, checkpoint_by_time } => {
                let barriers_after = self.barriers_after();
                let then = self.go(LoopState::Waiting, Action::WaitForSplits { pause, barriers_after });
                // While this worker waits for data, time passes too.
                if checkpoint_by_time { self.asking_for_barrier(then) } else { then }
            }
            Event::Interrupted => self.epoch_over(RoundEnd::Interrupted),
            event => self.given_up(&event),
        }
    }

    pub(super) fn on_wait_event(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::WaitOver => self.find_stream(),
            Event::BarrierDue => self.vote(BarrierPoint::WhileWaiting),
            Event::GroupDue => self.on_newer_group(),
            event => self.given_up(&event),
        }
    }

    /// Nothing of the round is in flight.
    pub(super) fn round_over(&mut self, end: RoundEnd) -> Vec<Action> {
        if self.config.from_memory {
            return match end {
                RoundEnd::Data => self.begin_epoch(self.counts.epoch + 1, true),
                RoundEnd::Steps => self.conclude(true),
                RoundEnd::Interrupted | RoundEnd::AllStop => self.conclude(false),
            };
        }
        // The epoch of a group is over with a round in which no rank had a batch.
        let made_none = self.counts.steps == self.steps_before_round;
        let is_over = end != RoundEnd::Data || (self.config.policy.is_group() && made_none);
        let round_end = is_over.then_some(end);
        // Splits without a row are complete too.
        if self.has_stream && end == RoundEnd::Data {
            return self.go(LoopState::Draining(DrainPoint::Stream(round_end)), Action::CompleteStream);
        }
        self.stream_over(round_end)
    }

    pub(super) fn stream_over(&mut self, over: Option<RoundEnd>) -> Vec<Action> {
        match over {
            Some(end) => self.epoch_over(end),
            None => self.find_stream(),
        }
    }

    /// The epoch is over for this worker. It ends once it is over for all.
    fn epoch_over(&mut self, end: RoundEnd) -> Vec<Action> {
        if matches!(end, RoundEnd::Interrupted | RoundEnd::AllStop) {
            return self.stop_all(end);
        }
        if self.config.policy.is_asynchronous() {
            return self.vote(BarrierPoint::EpochEnd(end));
        }
        if self.config.policy.is_group() {
            // What a worker that is lost after this held is trained on.
            return self.go(LoopState::Finishing(FinishPhase::EpochBarrier(end)), Action::WaitForAll);
        }
        self.close_epoch(end)
    }

    /// Before the last checkpoint, asynchronous workers have the others stop too, where these do not know yet.
    pub(super) fn stop_all(&mut self, end: RoundEnd) -> Vec<Action> {
        if end == RoundEnd::Interrupted && self.config.policy.is_asynchronous() {
            let then = self.vote(BarrierPoint::Stop);
            return self.asking_for_barrier(then);
        }
        self.last_checkpoint()
    }

    fn last_checkpoint(&mut self) -> Vec<Action> {
        self.go(LoopState::Checkpointing(CheckpointPoint::Last), Action::FinalCheckpoint)
    }

    pub(super) fn on_barrier_event(&mut self, point: BarrierPoint, event: Event) -> Vec<Action> {
        let Event::BarrierDecided { decision, called, others_steps } = event else { return self.given_up(&event) };
        self.counts.others_steps = others_steps;
        self.attended = newest_attended(decision, self.attended, called);
        match (decision, point) {
            (_, BarrierPoint::Stop) => self.last_checkpoint(),
            (BarrierDecision::Regroup, point) => {
                self.leaving = point == BarrierPoint::Leaving;
                self.on_newer_group()
            }
            // This worker came to leave, so its own vote was not counted.
            (BarrierDecision::Checkpoint, BarrierPoint::Leaving) => self.end(LoopEnd::Failed(FailureCause::Unexpected)),
            (BarrierDecision::Checkpoint, point) if self.config.keeps_checkpoints => {
                self.go(LoopState::Checkpointing(CheckpointPoint::AtBarrier(point)), Action::Checkpoint)
            }
            (BarrierDecision::Checkpoint, point) => self.after_checkpoint_barrier(point),
            (BarrierDecision::EpochOver, BarrierPoint::EpochEnd(end)) => self.close_epoch(end),
            (BarrierDecision::Stop, BarrierPoint::BetweenSteps) => self.close_round(RoundEnd::AllStop),
            (BarrierDecision::Stop, _) => self.stop_all(RoundEnd::AllStop),
            // Its own vote was not counted, or the decision is of another kind of barrier.
            _ => self.end(LoopEnd::Failed(FailureCause::Unexpected)),
        }
    }

    pub(super) fn after_checkpoint_barrier(&mut self, point: BarrierPoint) -> Vec<Action> {
        match point {
            BarrierPoint::BetweenSteps => self.next_batch(None),
            BarrierPoint::WhileWaiting => self.find_stream(),
            BarrierPoint::EpochEnd(_) | BarrierPoint::Leaving => self.vote(point),
            BarrierPoint::Stop => self.last_checkpoint(),
        }
    }

    pub(super) fn close_epoch(&mut self, end: RoundEnd) -> Vec<Action> {
        let (epoch, check_books) = (self.counts.epoch, end == RoundEnd::Data);
        self.go(LoopState::Finishing(FinishPhase::ClosingEpoch(end)), Action::CloseEpoch { epoch, check_books })
    }

    pub(super) fn next_epoch(&mut self, end: RoundEnd) -> Vec<Action> {
        let is_last = end == RoundEnd::Steps || self.is_settled();
        let next = if is_last { self.config.epochs } else { self.counts.epoch + 1 };
        if self.config.resets_rows && next < self.config.epochs {
            // Where this is given up, because a worker is lost, the epoch ends once more, and rows are removed again.
            return self.go(LoopState::Finishing(FinishPhase::ResettingRows), Action::ResetRows);
        }
        self.begin_epoch(next, true)
    }
}

/// Groups in a row that may fail: with one more, something else is wrong than a lost worker.
const FRUITLESS: u32 = 3;

impl TrainingLoop {
    pub(super) fn on_group_event(&mut self, event: Event) -> Vec<Action> {
        match (self.state, event) {
            (LoopState::Regrouping(RegroupPhase::Forming { .. }), Event::Formed { group, progress }) => {
                self.on_formed(group, &progress)
            }
            (LoopState::Regrouping(RegroupPhase::Leaving), Event::Left) if self.leaving => {
                self.go(LoopState::Draining(DrainPoint::Leaving), Action::CompleteStream)
            }
            (LoopState::Regrouping(RegroupPhase::Leaving), Event::Left) => self.form(0),
            (LoopState::Resuming, Event::Ready(counts)) => self.on_ready(counts),
            (_, event) => self.given_up(&event),
        }
    }

    fn on_formed(&mut self, group: Option<GroupMember>, progress: &[RankProgress]) -> Vec<Action> {
        self.member = group.unwrap_or(self.member);
        if self.config.from_memory {
            return self.begin_epoch(0, true);
        }
        // It goes to the barriers after the newest one that any worker of the group was at.
        self.attended = progress.iter().map(|rank| rank.barriers).fold(self.attended, u64::max);
        let (rank, epoch) = (self.member.rank as usize, self.counts.epoch);
        let action = match most_advanced(progress) {
            None if self.member.generation > 1 => return self.end(LoopEnd::Failed(FailureCause::NobodyLeft)),
            None => Action::Resume,
            Some(source) => {
                let (mine, most) = (progress[rank], progress[source]);
                let same_epoch = epoch == most.epoch;
                // The steps of an asynchronous worker are its own, so no worker is further by steps.
                let is_alone = self.config.policy.is_asynchronous();
                let made = !is_alone && mine.was_step_made_by(most);
                let in_flight = if made { InFlight::Push } else { InFlight::ReadAgain };
                let adopt = if is_alone { !mine.has_trained || !same_epoch } else { mine != most };
                Action::Follow { source, in_flight, adopt, same_epoch }
            }
        };
        self.go(LoopState::Resuming, action)
    }

    /// Training starts, after the evaluation that an earlier process was to make.
    fn on_ready(&mut self, counts: LoopCounts) -> Vec<Action> {
        (self.counts, self.has_trained) = (counts, true);
        if counts.steps > 0 && self.config.is_evaluation_due(counts.steps) {
            return self.evaluate(EvaluationPoint::Owed);
        }
        self.begin_epoch(counts.epoch, counts.untouched)
    }

    /// A call of the group has failed: those that are left form the next one, unless the mode is `sync`.
    pub(super) fn on_loss(&mut self, loss: GroupFailure) -> Vec<Action> {
        self.member.generation = loss.generation;
        // Its state may be the most advanced, so it goes to the next group first. What an asynchronous worker that leaves has
        // done is counted, and the others have the same weights.
        self.leaving &= self.config.policy.is_asynchronous();
        let is_known = self.has_trained || self.config.is_replacement;
        let regroups = self.config.policy.regroups_after_loss();
        if !(loss.about_others && is_known) || self.config.from_memory || (regroups && loss.stop_requested) {
            return self.end(LoopEnd::Failed(FailureCause::LastEvent));
        }
        if !regroups {
            return prepend(Action::WarnNoRegroup, self.end(LoopEnd::Failed(FailureCause::LastEvent)));
        }
        if let LoopState::Regrouping(RegroupPhase::Forming { attempts }) = self.state
            && attempts < FRUITLESS
        {
            return prepend(Action::ReportLost, self.form(attempts + 1));
        }
        prepend(Action::ReportLost, self.leave_group(FailureCause::LastEvent))
    }

    /// Another worker waits to join, or one leaves: all leave the group for one with it or without it.
    pub(super) fn on_join(&mut self) -> Vec<Action> {
        if self.config.from_memory {
            return self.end(LoopEnd::Failed(FailureCause::OnlyJoins));
        }
        prepend(Action::ReportJoin, self.leave_group(FailureCause::OnlyJoins))
    }

    /// An asynchronous worker leaves its group between two steps: once a newer one has formed, and when one of them leaves the run.
    pub(super) fn on_newer_group(&mut self) -> Vec<Action> {
        let then = self.go(LoopState::Regrouping(RegroupPhase::Leaving), Action::LeaveGroup);
        prepend(Action::ReportJoin, then)
    }

    fn leave_group(&mut self, cause: FailureCause) -> Vec<Action> {
        let bore_fruit = self.counts.steps > self.steps_before_group;
        self.fruitless_groups = if bore_fruit { 0 } else { self.fruitless_groups + 1 };
        self.steps_before_group = self.counts.steps;
        if self.fruitless_groups > FRUITLESS {
            return self.end(LoopEnd::Failed(cause));
        }
        self.go(LoopState::Regrouping(RegroupPhase::Leaving), Action::LeaveGroup)
    }
}
