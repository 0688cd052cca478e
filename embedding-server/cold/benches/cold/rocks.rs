//! RocksDB as a cold store, at its best: the other side of the comparison.

mod database;
mod keys;
mod options;
mod store;
mod view;

pub(crate) use options::{Compression, RocksOptions};
pub(crate) use store::RocksStore;
