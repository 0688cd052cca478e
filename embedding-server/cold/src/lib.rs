//! Rows beyond memory: the table's cold tier on RocksDB.
//!
//! The tier is scratch. It holds what one server's memory has no room for, is emptied when it is opened, and writes no
//! log: what survives a server is its snapshots. So a write costs one pass through a buffer in memory, and the files
//! are written in large pieces by threads of RocksDB's own.

mod database;
mod keys;
mod options;
mod store;
mod view;

pub use options::{Compression, RocksOptions};
pub use store::{ReadCounts, RocksStore, StoreContent};
