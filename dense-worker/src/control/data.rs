//! The data of a worker: splits from the coordinator, the stream of batches that they make, the next batch with its rows, the
//! reports of complete splits, and what ends all of it early.

mod completer;
mod lookup;
mod round;
mod splits;
mod stop;
mod stream;

pub(super) use completer::SplitCompleter;
pub(super) use splits::{LOOP, SplitClient, call_coordinator, control_error};
pub(super) use stop::{StopSignal, ask_to_leave_first, is_interruption};
pub(super) use stream::StreamState;
