//! Rows beyond memory: the table's cold tier, a log of rows on disk.
//!
//! The rows of each table are records in segment files, which are only appended to. An index in memory says where the row of
//! each key is, so a key without a row costs no read, and one with a row costs one. The rows of a request are read together,
//! many at a time. A thread in the background copies the rows of segments that are mostly overwritten, and deletes these.
//!
//! Most stores are scratch space, because snapshots and checkpoints make rows durable. Where a server has a log, the rows of
//! its cold tier stay with it: see [`StoreContent`].

mod log_store;

pub use log_store::{LogCounts, LogOptions, LogStore, ReadMethod, StoreContent};
