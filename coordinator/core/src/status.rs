//! Everything a person wants to see.

use std::time::Duration;

use zagros_protocol::control::{MemberStatus, StatusResponse};

use crate::Seat;
use crate::core::Core;
use crate::members::Member;

impl Core {
    /// The run at a glance.
    #[must_use]
    pub fn status(&mut self, now: Duration) -> StatusResponse {
        let now = self.advance(now);
        let (pass, splits_done) = self.passes.as_ref().map_or((0, 0), |passes| passes.current());
        StatusResponse {
            job: self.config.job.clone(),
            state: self.run.word().to_owned(),
            reason: self.why(),
            generation: self.placement.generation().0,
            passes: self.config.passes,
            pass,
            splits: self.passes.as_ref().map_or(0, |passes| passes.splits()),
            splits_done,
            members: self.members.iter().map(|(seat, member)| self.member_status(now, seat, member)).collect(),
            evaluations: self.evaluations.iter().copied().collect(),
        }
    }

    /// Why the run is not training: what it waits for, or how it ended.
    fn why(&self) -> String {
        let outcome = self.run.outcome().map(|outcome| outcome.reason().to_owned());
        outcome.unwrap_or_else(|| self.waiting_for().unwrap_or_default())
    }

    fn member_status(&self, now: Duration, seat: Seat, member: &Member) -> MemberStatus {
        MemberStatus {
            role: seat.role.to_wire(),
            index: seat.index,
            address: member.address.clone(),
            state: member.state.word().to_owned(),
            epoch: member.epoch,
            silent_ms: u64::try_from(now.saturating_sub(member.heard).as_millis()).unwrap_or(u64::MAX),
            progress: member.progress,
            load: member.load,
            splits_held: self.passes.as_ref().map_or(0, |passes| passes.held_by(seat) as u32),
        }
    }
}
