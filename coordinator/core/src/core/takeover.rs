//! A lost embedding server that nobody replaces: another server's process takes over its log, and joins in its place
//! (invariant MB-8, ADR 54).
//!
//! ```text
//! away ──► silent for half of the timeout, enough processes left ──► its log is offered to every server
//!      ──► the first that locks the log recovers its rows and joins with them ──► alive, in the process of another server
//!      ──► the last server by its index: the others get its buckets, and it ends
//! ```
//!
//! The lock decides who has the log: a lost process that was only cut off holds it still, and nobody takes it over.

use std::time::Duration;

use zagros_protocol::control::{LostLog, ScaleRequest};

use super::Core;
use crate::members::{MemberRecord, MemberState};
use crate::run::RunState;
use crate::{MemberSlot, Role, RunEvent};

impl Core {
    /// The logs that a member may take over. Nobody may while a process that comes back by itself is still expected.
    pub(super) fn lost_logs(&self, now: Duration, asker: MemberSlot) -> Vec<LostLog> {
        let is_over = matches!(self.run, RunState::Waiting | RunState::Saved | RunState::Ended(_));
        let are_enough = self.roster().server_processes() >= self.config.min_servers as usize;
        if asker.role != Role::EmbeddingServer || is_over || !are_enough {
            return Vec::new();
        }
        let is_due = |member: &MemberRecord| {
            member.state == MemberState::Away && now.saturating_sub(member.heard) > self.config.timeout / 2
        };
        let lost = |(slot, member): (MemberSlot, &MemberRecord)| {
            let lineage = member.lineage.filter(|_| is_due(member) && self.placement.owns(slot.index))?;
            Some(LostLog { index: slot.index, lineage: lineage.0 })
        };
        self.members.iter().filter(|(slot, _)| slot.role == Role::EmbeddingServer).filter_map(lost).collect()
    }

    /// A server has joined in the process of another one. If it is the last one by its index, its buckets go to the others.
    pub(super) fn note_takeover(&mut self, now: Duration, slot: MemberSlot, host: u64) {
        if host == 0 {
            return;
        }
        let of_host = self.members.iter().find(|(_, member)| member.instance == host).map(|(slot, _)| slot);
        self.events.push(RunEvent::ServerTakenOver { slot, host: of_host });
        let wanted = self.resharding.wanted().unwrap_or(self.config.servers);
        if slot.index > 0 && slot.index + 1 == wanted {
            // Where buckets cannot move, it stays as it is.
            let _ = self.scale(now, &ScaleRequest { servers: slot.index, workers: 0 });
        }
    }
}
