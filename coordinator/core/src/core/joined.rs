//! The answer to a join.

use zagros_protocol::control::JoinResponse;

use super::Core;
use crate::MemberSlot;

impl Core {
    pub(super) fn join_response(&self, slot: MemberSlot, incarnation: u32) -> JoinResponse {
        JoinResponse {
            member: slot.member_id(),
            incarnation,
            lease_ms: u32::try_from(self.config.lease.as_millis()).unwrap_or(u32::MAX),
            generation: self.placement.generation().0,
            over: false,
            run: self.config.run.0,
            discard: false,
        }
    }
}
