//! Rows beyond memory: the table's cold tier on RocksDB.
//!
//! The cold tier is scratch space. It holds the rows that do not fit into one server's memory, and it is emptied when
//! it is opened. It writes no log, because snapshots and checkpoints make rows durable. A write therefore costs one
//! pass through a buffer in memory. Threads of RocksDB write the files in large pieces.

mod database;
mod keys;
mod options;
mod store;
mod view;

pub use options::{Compression, RocksOptions};
pub use store::{ReadCounts, RocksStore, StoreContent};
