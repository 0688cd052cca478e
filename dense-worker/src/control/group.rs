//! The process group of a worker: how it forms and is left, its steps, its barriers, and the end of an epoch, which all
//! workers reach together.

mod asynchronous;
mod ballots;
mod barrier_calls;
mod epoch_end;
mod forming;
mod group_step;
mod session;
mod watch;

pub(super) use ballots::GroupBallots;
pub(super) use barrier_calls::BarrierCalls;
pub(super) use session::{GroupRank, GroupSession};
