//! Moves of buckets between embedding servers while the run trains (ADR 39): the parts of their source and their target.
//!
//! ```text
//! placement ─► announced move ─┬─► outgoing   source: notes which rows change, sends rows, freezes, thaws when the move is decided
//!                              └─► incoming   target: clears, copies, asks for the freeze, writes windows, reports
//! decided   ─► adopt           the map of the next generation, or the old one · the source removes the rows of its old buckets
//! ```
//!
//! A source that is frozen serves nothing until a placement says that the move is over. Both ends learn of a move from the
//! placement alone, so whatever calls are lost, they ask again.

mod adopt;
mod bucket_set;
mod incoming;
mod incoming_rows;
mod moves;
mod outgoing;
mod runner;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use adopt::{AdoptedPlacement, adopt_placement, purge_strays};
pub(crate) use bucket_set::PlannedMove;
pub(crate) use incoming::{CopyEnd, MoveReports, copy_buckets};
pub(crate) use moves::ServerMoves;
pub(crate) use outgoing::{begin_copy, freeze_source, next_rows};
pub use runner::LocalMove;
pub(crate) use runner::MoveRunner;
pub(crate) use wire::migration_service;
