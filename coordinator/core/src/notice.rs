//! What happened besides the answer to a call: for the log and the metrics of the process around the core.

use std::fmt;
use std::time::Duration;

use zagros_protocol::Generation;

use crate::{MemberSlot, RunOutcome};

/// Something that happened. `Display` is the log message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A process took a slot.
    Joined {
        /// Which slot.
        slot: MemberSlot,
        /// How many have taken it so far.
        incarnation: u32,
        /// Where it listens; empty for workers.
        address: String,
    },
    /// A member left.
    Left {
        /// Which slot is free.
        slot: MemberSlot,
        /// Its own word: `finished`, `interrupted: …`, `failed: …`.
        how: String,
    },
    /// A member was silent for longer than its lease.
    Lost {
        /// Which slot is free.
        slot: MemberSlot,
        /// Since its last heartbeat.
        silence: Duration,
        /// Splits it held, which others will read.
        splits: usize,
    },
    /// A worker was lost, and the run goes on without it.
    GivenUp {
        /// Which slot nobody is waited for in.
        slot: MemberSlot,
        /// How long one was.
        timeout: Duration,
        /// How many workers train on.
        left: u32,
    },
    /// A lost embedding server spoke again before anyone took its slot: its rows are still there.
    Back {
        /// Which slot.
        slot: MemberSlot,
    },
    /// The bucket map or an address in it changed.
    Placed {
        /// From now on.
        generation: Generation,
    },
    /// Placement and worker are there.
    Started,
    /// Some workers have little or no data to read.
    Uneven {
        /// Which, why, and what to do about it.
        why: String,
    },
    /// Every split of an epoch is complete.
    EpochDone {
        /// 0, 1, ….
        epoch: u32,
    },
    /// The coordinator itself had not run for so long that silence is nobody's fault: leases are extended.
    Stalled {
        /// For how long.
        gap: Duration,
    },
    /// A process was asked to end: workers save and leave first.
    Draining {
        /// Which process.
        reason: String,
        /// The workers, in words; empty when there is none.
        waiting_for: String,
    },
    /// The run is over.
    Ended(RunOutcome),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined { slot, incarnation, address } if address.is_empty() => {
                write!(f, "{slot} joined (incarnation {incarnation})")
            }
            Self::Joined { slot, incarnation, address } => {
                write!(f, "{slot} joined at {address} (incarnation {incarnation})")
            }
            Self::Left { slot, how } => write!(f, "{slot} left: {how}"),
            Self::Lost { slot, silence, splits: 0 } => write!(f, "{slot} is lost: silent for {silence:.1?}"),
            Self::Lost { slot, silence, splits } => {
                write!(f, "{slot} is lost: silent for {silence:.1?}; its {splits} splits will be read again")
            }
            Self::GivenUp { slot, timeout, left } => write!(
                f,
                "no other process has taken the place of {slot} within {timeout:.1?}: the run goes on with {left} of its \
                 workers"
            ),
            Self::Back { slot } => write!(f, "{slot} is back"),
            Self::Placed { generation } => write!(f, "placement of generation {generation}"),
            Self::Started => write!(f, "training starts"),
            Self::Uneven { why } => f.write_str(why),
            Self::EpochDone { epoch } => write!(f, "epoch {epoch} is complete"),
            Self::Stalled { gap } => write!(f, "coordinator did not run for {gap:.1?}; leases are extended"),
            Self::Draining { reason, waiting_for } if waiting_for.is_empty() => write!(f, "{reason}; no worker trains"),
            Self::Draining { reason, waiting_for } => {
                write!(f, "{reason}; waiting until {waiting_for} saved and left")
            }
            Self::Ended(outcome) => outcome.fmt(f),
        }
    }
}
