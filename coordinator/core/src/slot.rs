//! Member slots: a role and an index within the role.

use std::fmt;

use serde::{Deserialize, Serialize};
use zagros_protocol::control;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    EmbeddingServer,
    DenseWorker,
}

/// The slot of one process at a time. A process that restarts takes the same slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MemberSlot {
    pub role: Role,
    /// Position within the role: 0 … count − 1.
    pub index: u32,
}

impl Role {
    pub fn from_wire(role: i32) -> Option<Self> {
        match control::Role::try_from(role) {
            Ok(control::Role::EmbeddingServer) => Some(Self::EmbeddingServer),
            Ok(control::Role::DenseWorker) => Some(Self::DenseWorker),
            Ok(control::Role::Unspecified) | Err(_) => None,
        }
    }

    pub fn to_wire(self) -> i32 {
        match self {
            Self::EmbeddingServer => control::Role::EmbeddingServer as i32,
            Self::DenseWorker => control::Role::DenseWorker as i32,
        }
    }
}

impl MemberSlot {
    pub const fn server(index: u32) -> Self {
        Self { role: Role::EmbeddingServer, index }
    }

    pub const fn worker(index: u32) -> Self {
        Self { role: Role::DenseWorker, index }
    }

    /// The member id. It is the same for every process that takes the slot; the incarnation differs.
    pub fn member_id(self) -> u64 {
        (self.role.to_wire() as u64) << 32 | u64::from(self.index)
    }

    pub fn from_member(member: u64) -> Option<Self> {
        let role = Role::from_wire(i32::try_from(member >> 32).ok()?)?;
        Some(Self { role, index: member as u32 })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EmbeddingServer => "embedding server",
            Self::DenseWorker => "dense worker",
        })
    }
}

impl fmt::Display for MemberSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_id_leads_back_to_its_slot_and_to_no_other() {
        for slot in [MemberSlot::server(0), MemberSlot::server(u32::MAX), MemberSlot::worker(0), MemberSlot::worker(7)]
        {
            assert_eq!(MemberSlot::from_member(slot.member_id()), Some(slot));
        }
        assert_ne!(MemberSlot::server(1).member_id(), MemberSlot::worker(1).member_id());
        for number in [0, 1, 9 << 32, u64::MAX] {
            assert_eq!(MemberSlot::from_member(number), None);
        }
    }
}
