//! Per-sample traffic: lookup and push.
//!
//! Performance-critical: no I/O, no info log, no lock held across a request, no allocation per row. Everything a
//! request says is checked before anything is touched, so a refused request has changed nothing (invariant DP-2).

mod bags;
mod deadline;
mod lookup;
mod placement;
mod push;
mod request;
mod sequence_window;
mod writers;

pub(crate) use deadline::RequestTimes;
pub(crate) use lookup::lookup;
pub(crate) use placement::OwnedBuckets;
pub(crate) use push::push;
pub(crate) use sequence_window::SequenceWindows;
pub(crate) use writers::KnownWriters;
