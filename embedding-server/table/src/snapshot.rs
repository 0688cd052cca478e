//! All rows of one instant, while they change.

pub(crate) mod request_guard;
pub(crate) mod stripe_capture;
pub(crate) mod stripe_reader;
pub(crate) mod table_snapshot;
