//! Rows that survive the end of the process: the server's log, its bases, and what a new process makes of them.
//!
//! ```text
//! start      log folder ─► lineage known, and of these tables? ─► recovery: base, then the tail, into the tables ─► the log goes on
//! push       room in the log ─► rows changed and appended ─► commit ─► flush ─► acknowledged
//! meanwhile  keeper: tries again if the disk failed · takes a base when the tail is long · deletes older segments
//! run over   the log's files are deleted
//! ```
//!
//! An acknowledged push is in the log whole. A push whose commit is missing died half-way: the rows that it changed are
//! known, and its retry changes the others ([`partial_pushes`]). So each push is applied once (invariant DP-3).

mod base_writer;
mod keeper;
mod load_state;
mod open;
pub(crate) mod partial_pushes;
mod recovery;
mod server_log;
#[cfg(test)]
mod tests;

pub(crate) use keeper::LogKeeper;
pub(crate) use load_state::LoadState;
pub(crate) use open::open;
pub(crate) use partial_pushes::RemainingRows;
pub(crate) use server_log::{LogHost, PushedRows, ServerLog};

#[cfg(test)]
pub(crate) use server_log::LogSizes;
