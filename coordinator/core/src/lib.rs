//! The coordinator as a pure state machine: event in, actions out, time is an argument.
//!
//! [`Core`] takes the coordinator's calls one for one, with the time of each, and answers them. What else
//! happened on the way (a member was lost, a placement was made, the run ended) waits in [`Core::take_events`] for the
//! process around it to log and count. No clock, no thread, no socket: a test plays hours in microseconds.

mod admission;
mod ballots;
mod config;
mod core;
mod data;
pub mod doctor;
mod event;
mod groups;
mod history;
mod input;
mod members;
mod placement;
mod resharding;
mod roster;
mod run;
mod slot;
mod split_assignment;
mod split_plan;
mod totals;
mod warnings;
mod watch;

pub use ballots::decide_barrier;
pub use config::CoreConfig;
pub use core::Core;
pub use event::RunEvent;
pub use input::CoreInput;
pub use run::RunOutcome;
pub use slot::{MemberSlot, Role};
pub use split_plan::{SplitOrder, SplitRange, plan_splits};
pub use warnings::time_in_words;
