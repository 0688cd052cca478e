//! Epochs: their streams, waits and barriers, and how one ends.

use super::{TrainingLoop, prepend};
use crate::action::{Action, FailureCause, LoopEnd};
use crate::agreement::BarrierDecision;
use crate::event::Event;
use crate::state::{BarrierPoint, CheckpointPoint, DrainPoint, FinishPhase, LoopState, RoundEnd, StepPhase};

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
        self.attended = decision.newest_attended(self.attended, called);
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
            // This worker came for a checkpoint, so its own vote was not counted.
            (BarrierDecision::EpochOver, _) => self.end(LoopEnd::Failed(FailureCause::Unexpected)),
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
