//! Everything a person wants to see.

use std::time::Duration;

use zagros_protocol::ServerIndex;
use zagros_protocol::control::{MemberStatus, StatusResponse};

use crate::MemberSlot;
use crate::core::Core;
use crate::members::Member;
use crate::warnings::warnings;
use crate::watch::{buckets_of, millis, together};

impl Core {
    /// The run at a glance.
    #[must_use]
    pub fn status(&mut self, now: Duration) -> StatusResponse {
        let now = self.advance(now);
        let (epoch, splits_done) = self.epochs.as_ref().map_or((0, 0), |epochs| epochs.current());
        let together = together(now, &self.config, &self.members);
        let members: Vec<_> = self.members.iter().map(|(slot, member)| self.member_status(now, slot, member)).collect();
        let mut status = StatusResponse {
            job: self.config.job.clone(),
            state: self.run.word().to_owned(),
            reason: self.why(),
            generation: self.placement.generation().0,
            epochs: self.config.epochs,
            epoch,
            splits: self.epochs.as_ref().map_or(0, |epochs| epochs.splits()),
            splits_done,
            splits_held: members.iter().map(|member| member.splits_held).sum(),
            members,
            evaluations: self.evaluations.iter().copied().collect(),
            elapsed_ms: millis(now),
            history: self.watch.history.points().to_vec(),
            checkpoints: self.watch.checkpoints(now),
            warnings: Vec::new(),
            staleness_bound: self.config.staleness,
            samples_per_second: together.moment.samples_per_second,
            step: together.moment.step,
            samples: together.samples,
            checkpoint_every_ms: self.config.checkpoint_every.map_or(0, millis),
        };
        let training = self.watch.since.map(|since| now.saturating_sub(since));
        status.warnings = warnings(&status, training.unwrap_or_default());
        status.warnings.extend(self.uneven.clone().filter(|_| self.run.outcome().is_none()));
        status
    }

    /// Why the run is not training: what it waits for, or how it ended.
    fn why(&self) -> String {
        let outcome = self.run.outcome().map(|outcome| outcome.reason().to_owned());
        outcome.unwrap_or_else(|| self.waiting_for().unwrap_or_default())
    }

    fn member_status(&self, now: Duration, slot: MemberSlot, member: &Member) -> MemberStatus {
        MemberStatus {
            role: slot.role.to_wire(),
            index: slot.index,
            address: member.address.clone(),
            state: member.state.word().to_owned(),
            incarnation: member.incarnation,
            silent_ms: millis(now.saturating_sub(member.heard)),
            progress: member.progress,
            load: member.load,
            splits_held: self.epochs.as_ref().map_or(0, |epochs| epochs.held_by(slot) as u32),
            waits: member.waits.clone(),
            disk: member.disk,
            buckets: self.buckets(slot),
            still_ms: member.stepped.map(|stepped| millis(now.saturating_sub(stepped))),
        }
    }

    fn buckets(&self, slot: MemberSlot) -> u32 {
        let Some(map) = self.placement.map() else { return 0 };
        buckets_of(slot, (0..map.buckets()).filter_map(|bucket| map.owner(bucket)).map(|ServerIndex(owner)| owner))
    }
}
