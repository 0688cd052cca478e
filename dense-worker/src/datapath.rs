//! The path of one batch: read → lookahead → prefetch → step → push.
//!
//! Performance-critical: no I/O besides the calls of these stages, no info log, no allocation per row.

pub(crate) mod buckets;
pub(crate) mod dense;
pub(crate) mod group_step;
pub(crate) mod lookahead;
pub(crate) mod prefetch;
pub(crate) mod prepared;
pub(crate) mod process_group;
pub(crate) mod push;
pub(crate) mod read;
pub(crate) mod tiles;
