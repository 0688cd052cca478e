//! The traffic of samples: lookup and push, and hints of later lookups.
//!
//! Performance-critical: no I/O, no info log, no lock across a request, no allocation per row. Everything in a request
//! is checked before anything changes, so a refused request has changed nothing (invariant DP-2).

mod bags;
mod hint;
mod hint_turns;
mod lookup;
mod placement;
mod push;
mod request;
mod sequence_window;
mod step_pushes;
mod window_groups;
mod writers;

pub(crate) use hint::hint;
pub(crate) use hint_turns::HintTurns;
pub(crate) use lookup::lookup;
pub(crate) use placement::OwnedBuckets;
pub(crate) use push::push;
pub(crate) use request::RequestTimes;
pub(crate) use sequence_window::SequenceWindows;
pub(crate) use writers::KnownWriters;
