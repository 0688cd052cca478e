//! Rows beyond memory: the table's cold tier, a log of rows on disk.
//!
//! The rows of each table are records in segment files, which are only appended to. An index in memory says where the row of
//! each key is, so a key without a row costs no read, and one with a row costs one. The rows of a request are read together,
//! many at a time. A thread in the background copies the rows of segments that are mostly overwritten, and deletes these.
//!
//! Most stores are scratch space, because snapshots and checkpoints make rows durable. Where a server has a log, the rows of
//! its cold tier stay with it: see [`StoreContent`].
//!
//! `store` has the store, `memory_budget` the memory that it and the rows have, `table_log` how rows are written and read, `compaction` how
//! space comes back, `assistance` how much of it a store takes at most.

mod assistance;
mod call_threads;
mod compaction;
mod counters;
mod folder;
mod key_index;
mod memory_budget;
mod pieces;
mod read_queue;
mod recovery;
mod ring;
mod segment;
mod segment_set;
mod shared;
mod store;
mod table_log;
#[cfg(test)]
mod tests;

pub use counters::LogCounts;
pub use memory_budget::MemoryBudget;
pub use read_queue::ReadMethod;
pub use store::{LogOptions, LogStore, StoreContent};
