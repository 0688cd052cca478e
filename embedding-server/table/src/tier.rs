//! More rows than memory: who leaves, where to, and how it comes back.

pub(crate) mod capacity;
pub(crate) mod clear;
pub(crate) mod clock;
pub(crate) mod cold;
pub(crate) mod cold_sweep;
pub(crate) mod copies;
pub(crate) mod debts;
pub(crate) mod evict;
pub(crate) mod managed;
pub(crate) mod retention;
pub(crate) mod shared;
pub(crate) mod tend;
pub(crate) mod visit;
