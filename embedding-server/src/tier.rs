//! Rows beyond memory: the cold store, a record of its health, and the thread that keeps the tables within their memory
//! budget.

mod health;
mod maintenance;
mod open;
#[cfg(test)]
mod tests;

pub(crate) use health::{StoreCalls, WatchedStore};
pub(crate) use maintenance::TableMaintenance;
pub(crate) use open::{ColdTier, limit_heap, open};
