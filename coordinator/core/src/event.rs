//! Events: what happened during a call, besides its answer. The process around the core logs and counts them.

use std::fmt;
use std::time::Duration;

use zagros_protocol::Generation;

use crate::{MemberSlot, RunOutcome};

/// An event of a run. `Display` is the log message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEvent {
    MemberJoined {
        slot: MemberSlot,
        /// Counts the processes that have taken the slot.
        incarnation: u32,
        /// Where it listens; empty for workers.
        address: String,
    },
    MemberLeft {
        slot: MemberSlot,
        /// The outcome that the member reported: `finished`, `interrupted: …`, `failed: …`.
        outcome: String,
    },
    /// A member was silent for longer than its lease.
    MemberLost {
        slot: MemberSlot,
        silence: Duration,
        /// Others will read them.
        splits: usize,
    },
    /// An embedding server was silent for longer than its lease, and its rows are in a log: the run waits for it.
    ServerAway {
        slot: MemberSlot,
        silence: Duration,
        timeout: Duration,
    },
    /// An embedding server came back as another process, with the rows that it held.
    ServerRecovered {
        slot: MemberSlot,
        incarnation: u32,
        silence: Duration,
    },
    /// A worker was lost, and the run continues without it.
    WorkerGivenUp {
        slot: MemberSlot,
        /// How long the run waited for another process.
        timeout: Duration,
        left: u32,
    },
    /// A lost member was heard again before another process took its slot.
    MemberReturned {
        slot: MemberSlot,
    },
    /// The bucket map or an address in it changed.
    PlacementChanged {
        generation: Generation,
    },
    ScaleRequested {
        servers: u32,
        buckets: u32,
    },
    WorkersRequested {
        workers: u32,
    },
    MoveStarted {
        /// Counts the moves of the run.
        id: u64,
        source: MemberSlot,
        target: MemberSlot,
        buckets: u32,
    },
    MoveCommitted {
        id: u64,
        buckets: u32,
        /// Rows that were copied, changed rows once for each time.
        rows: u64,
        bytes: u64,
        /// Of the source.
        frozen: Duration,
    },
    /// A move was given up. Its source keeps the buckets.
    MoveAbandoned {
        what: String,
        reason: String,
    },
    /// An embedding server owns nothing any more, and ends.
    ServerReleased {
        slot: MemberSlot,
    },
    TrainingStarted,
    UnevenShares {
        /// Which workers, why, and what to do.
        why: String,
    },
    EpochCompleted {
        epoch: u32,
    },
    /// The coordinator itself did not run for `gap`. No member could be heard, so all leases are extended.
    CoordinatorStalled {
        gap: Duration,
    },
    /// There was no coordinator for `gap`; it came back with the state of the process before. Leases start anew.
    CoordinatorRecovered {
        gap: Duration,
    },
    DrainStarted {
        reason: String,
        /// The workers, in words; empty when there is none.
        waiting_for: String,
    },
    RunEnded(RunOutcome),
}

impl fmt::Display for RunEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MemberJoined { slot, incarnation, address } if address.is_empty() => {
                write!(f, "{slot} joined (incarnation {incarnation})")
            }
            Self::MemberJoined { slot, incarnation, address } => {
                write!(f, "{slot} joined at {address} (incarnation {incarnation})")
            }
            Self::MemberLeft { slot, outcome } => write!(f, "{slot} left: {outcome}"),
            Self::MemberLost { slot, silence, splits: 0 } => write!(f, "{slot} is lost: silent for {silence:.1?}"),
            Self::MemberLost { slot, silence, splits } => {
                write!(f, "{slot} is lost: silent for {silence:.1?}; its {splits} splits will be read again")
            }
            Self::ServerAway { slot, silence, timeout } => write!(
                f,
                "{slot} is away: silent for {silence:.1?}; its rows are in its log, and workers wait for it for {timeout:.1?}"
            ),
            Self::ServerRecovered { slot, incarnation, silence } => write!(
                f,
                "{slot} is back with its rows (incarnation {incarnation}), {silence:.1?} after the last heartbeat of the \
                 process before; the run continues"
            ),
            Self::WorkerGivenUp { slot, timeout, left } => write!(
                f,
                "no other process has taken the slot of {slot} within {timeout:.1?}: the run continues with {left} of its \
                 workers"
            ),
            Self::MemberReturned { slot } => write!(f, "{slot} is back"),
            Self::PlacementChanged { generation } => write!(f, "placement of generation {generation}"),
            Self::ScaleRequested { servers, buckets } => {
                write!(f, "the run will have {servers} embedding servers; {buckets} buckets have to move")
            }
            Self::WorkersRequested { workers } => write!(f, "the run will have {workers} dense workers"),
            Self::MoveStarted { id, source, target, buckets } => {
                write!(f, "move {id}: {buckets} buckets from {source} to {target}")
            }
            Self::MoveCommitted { id, buckets, rows, bytes, frozen } => write!(
                f,
                "move {id}: {buckets} buckets have moved with {rows} rows ({bytes} bytes); their source was frozen for {frozen:.1?}"
            ),
            Self::MoveAbandoned { what, reason } => {
                write!(f, "{what} is abandoned: {reason}; its source keeps the buckets, and the move is tried again")
            }
            Self::ServerReleased { slot } => write!(f, "{slot} has handed its buckets over, and ends"),
            Self::TrainingStarted => write!(f, "training starts"),
            Self::UnevenShares { why } => f.write_str(why),
            Self::EpochCompleted { epoch } => write!(f, "epoch {epoch} is complete"),
            Self::CoordinatorStalled { gap } => write!(f, "coordinator did not run for {gap:.1?}; leases are extended"),
            Self::CoordinatorRecovered { gap } => {
                write!(f, "coordinator is back after {gap:.1?} with the state of the process before; leases start anew")
            }
            Self::DrainStarted { reason, waiting_for } if waiting_for.is_empty() => {
                write!(f, "{reason}; no worker trains")
            }
            Self::DrainStarted { reason, waiting_for } => {
                write!(f, "{reason}; waiting until {waiting_for} saved and left")
            }
            Self::RunEnded(outcome) => outcome.fmt(f),
        }
    }
}
