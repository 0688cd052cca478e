//! The data of a worker: splits from the coordinator, the stream of batches that they make, the next batch with its rows, the
//! reports of complete splits, and what ends all of it early.

mod books;
mod completer;
mod interruption;
mod lease;
mod lookup;
mod round;
mod splits;
mod stop;
mod stream;
mod stream_position;

pub(super) use completer::SplitCompleter;
pub(super) use interruption::is_interruption;
pub(super) use splits::{LOOP, SplitClient, control_error};
pub(super) use stop::StopSignal;
pub(super) use stream::StreamState;
