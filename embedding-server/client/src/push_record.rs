//! A record of a worker's pushes, on a local socket, for the test program that breaks runs and checks every row (`tests/chaos`).

mod frame;
pub mod grid;
mod recorder;

pub use frame::{Frame, StartedPush, TableRows};
pub use recorder::PushRecorder;
