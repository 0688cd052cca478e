//! Rows beyond memory: the cold store, a record of its health, and the thread that keeps the tables within their memory
//! budget.

mod health;
mod maintenance;
#[cfg(test)]
mod tests;

pub(crate) use health::{StoreCalls, WatchedStore};
pub(crate) use maintenance::{ColdTier, TableMaintenance, limit_heap, open};
