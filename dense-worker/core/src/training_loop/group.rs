//! Groups: how one forms, what training starts from in it, and what a lost worker does.

use super::TrainingLoop;
use crate::action::{Action, FailureCause, InFlight, LoopEnd};
use crate::agreement::{RankProgress, most_advanced};
use crate::event::{Event, GroupFailure, GroupMember, LoopCounts};
use crate::state::{DrainPoint, EvaluationPoint, LoopState, RegroupPhase};

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
            return super::prepend(Action::WarnNoRegroup, self.end(LoopEnd::Failed(FailureCause::LastEvent)));
        }
        if let LoopState::Regrouping(RegroupPhase::Forming { attempts }) = self.state
            && attempts < FRUITLESS
        {
            return super::prepend(Action::ReportLost, self.form(attempts + 1));
        }
        super::prepend(Action::ReportLost, self.leave_group(FailureCause::LastEvent))
    }

    /// Another worker waits to join, or one leaves: all leave the group for one with it or without it.
    pub(super) fn on_join(&mut self) -> Vec<Action> {
        if self.config.from_memory {
            return self.end(LoopEnd::Failed(FailureCause::OnlyJoins));
        }
        super::prepend(Action::ReportJoin, self.leave_group(FailureCause::OnlyJoins))
    }

    /// An asynchronous worker leaves its group between two steps: once a newer one has formed, and when one of them leaves the run.
    pub(super) fn on_newer_group(&mut self) -> Vec<Action> {
        let then = self.go(LoopState::Regrouping(RegroupPhase::Leaving), Action::LeaveGroup);
        super::prepend(Action::ReportJoin, then)
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
