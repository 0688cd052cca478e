//! RocksDB as a cold store, at its best: the other side of the comparison.

mod options;
mod store;

pub(crate) use options::MEMORY;
pub(crate) use store::RocksStore;
