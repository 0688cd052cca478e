//! The coordinator's journal: its inputs on disk, in order, each before it takes effect.
//!
//! The coordinator's state is a function of its inputs alone ([`zagros_coordinator_core::Core`] has no clock and no chance). So
//! a process that replays the inputs of the process before has its state:
//!
//! ```text
//!   snapshot of the state ── input n ── input n + 1 ── … ── input m      state now = snapshot, then n ..= m
//!   replaced by a newer one once the inputs after it are long
//! ```
//!
//! Inputs and snapshots are in one RocksDB: each is there whole or not at all, and one process at a time holds the folder. A
//! file beside it says how far the inputs go (`record`), so that one that was lost or damaged is noticed. Inputs are handed to the system before they take effect, so they survive the end of the process (`kill -9`), not a
//! loss of power. The journal therefore names the start of the machine that it was written under: after another start it says
//! that its end may be missing ([`MachineStart`]).

mod record;
mod store;

pub use record::JournalTime;
pub use store::{InputJournal, JournalError, MachineStart, RecoveredCore};
