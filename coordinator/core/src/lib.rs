//! The coordinator as a pure state machine: event in, actions out, time is an argument.
//!
//! [`Core`] takes the coordinator's calls one for one, with the time of each, and answers them. What else
//! happened on the way (a member was lost, a placement was made, the run ended) waits in [`Core::take_notices`] for the
//! process around it to log and count. No clock, no thread, no socket: a test plays hours in microseconds.

mod admission;
mod barrier;
mod core;
mod drain;
mod epochs;
mod group;
mod history;
mod lost;
mod members;
mod notice;
mod placement;
mod run;
mod slot;
mod splits;
mod status;
mod transforms;
mod warnings;
mod watch;

pub use core::{Core, CoreConfig};
pub use notice::Notice;
pub use run::RunOutcome;
pub use slot::{MemberSlot, Role};
pub use splits::{SplitOrder, SplitRange, plan_splits};
