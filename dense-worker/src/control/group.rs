//! The process group of a worker: how it forms and is left, its steps, its barriers, and the end of an epoch, which all
//! workers reach together.

mod asynchronous;
mod barriers;
mod epoch_end;
mod forming;
mod group_step;
mod session;

pub(super) use barriers::{BarrierCalls, GroupBallots};
pub(super) use session::{GroupRank, GroupSession};
