//! The cold tier: which rows are evicted from memory, where they go, and how they are paged in.

pub(crate) mod clear;
pub(crate) mod clock;
pub(crate) mod cold_expiry;
pub(crate) mod cold_store;
pub(crate) mod cold_versions;
pub(crate) mod copy_budget;
pub(crate) mod eviction;
pub(crate) mod eviction_buffer;
pub(crate) mod eviction_policy;
pub(crate) mod hinted_rows;
pub(crate) mod look_ahead;
pub(crate) mod maintenance;
pub(crate) mod managed;
pub(crate) mod memory_store;
pub(crate) mod moving;
pub(crate) mod page_in;
pub(crate) mod page_in_rows;
pub(crate) mod pending;
pub(crate) mod shared_memory;
pub(crate) mod sweep;
pub(crate) mod table_resources;
