//! The cold tier as a log of rows. [`store`] has the store, [`table_log`] how rows are written and read, [`compaction`] how
//! space comes back, [`assistance`] how much of it a store takes at most.

mod assistance;
mod call_threads;
mod compaction;
mod compaction_cursor;
mod counters;
mod file_piece;
mod flushed;
mod folder;
mod key_index;
mod pieces;
mod read_queue;
mod record;
mod recovery;
mod ring;
mod row_reads;
mod segment;
mod segment_set;
mod shared;
mod store;
mod table_log;
#[cfg(test)]
mod tests;
mod view;

pub use counters::LogCounts;
pub use read_queue::ReadMethod;
pub use store::{LogOptions, LogStore, StoreContent};
