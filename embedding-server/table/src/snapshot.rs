//! Snapshots: all rows of one instant, read while requests change them.

pub(crate) mod capture_budget;
pub(crate) mod kind;
pub(crate) mod request_guard;
pub(crate) mod stripe_capture;
pub(crate) mod stripe_reader;
pub(crate) mod table_snapshot;
