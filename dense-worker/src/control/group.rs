//! The process group of a worker: its rank in it and what its last step left. How a group forms and is left, its steps, its barriers, and
//! the end of an epoch, which all workers reach together, are in the files below.

mod barriers;
mod forming;
mod group_step;
mod shared_work;

use std::sync::Arc;

use tokio_util::task::AbortOnDropHandle;
use zagros_collective::Rendezvous;
use zagros_embedding_client::WindowPermit;
use zagros_job::{Job, Mode};
use zagros_protocol::control::GroupResponse;

use crate::control::step::VotedCounts;
use crate::datapath::dense::StepResult;
use crate::datapath::prepared::PreparedBatch;
use crate::datapath::process_group::AgreedTurns;

pub(super) use barriers::{BarrierCalls, GroupBallots};

#[derive(Default)]
pub(crate) struct GroupSession {
    pub(crate) rendezvous: Option<Arc<dyn Rendezvous>>,
    /// Its place in the group; `None` before the first one and in a run of one worker.
    pub(crate) rank: Option<GroupRank>,
    pub(crate) indices: Vec<u32>,
    pub(crate) newcomers: Vec<u32>,
    pub(crate) most_steps: u64,
    /// What asynchronous workers had done when they voted last.
    pub(crate) counted: VotedCounts,
    /// Ends the group's calls when one of them is lost.
    pub(crate) watch: Option<AbortOnDropHandle<()>>,
    pub(crate) agreed: Option<AgreedTurns>,
    pub(crate) in_flight: Option<InFlightBatch>,
}

#[derive(Debug)]
pub(crate) struct InFlightBatch {
    pub(crate) seq: u64,
    pub(crate) prepared: PreparedBatch,
    pub(crate) permit: WindowPermit,
    /// What the step gave here, where other ranks may have made it.
    pub(crate) stepped: Option<StepResult>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupRank {
    pub(crate) rank: u32,
    /// Counts up with each group of the run.
    pub(crate) generation: u64,
    pub(crate) world: u32,
    /// Ranks push one after another, and no rank looks up before all have pushed: the same bits in every run.
    pub(crate) in_turns: bool,
    /// Each worker makes its own steps.
    pub(crate) asynchronous: bool,
}

impl GroupRank {
    pub(crate) fn new(job: &Job, group: &GroupResponse) -> Self {
        let GroupResponse { rank, generation, world, .. } = *group;
        let (in_turns, asynchronous) = (job.train.mode == Mode::Sync, job.train.mode == Mode::Async);
        Self { rank, generation, world, in_turns, asynchronous }
    }
}

impl GroupSession {
    /// Whether this is the worker that reports and saves.
    pub(crate) fn leads(&self) -> bool {
        self.rank.is_none_or(|rank| rank.rank == 0)
    }

    pub(crate) fn is_asynchronous(&self) -> bool {
        self.rank.is_some_and(|rank| rank.asynchronous)
    }

    /// This worker's place, where all ranks make each step together.
    pub(crate) fn in_step(&self) -> Option<GroupRank> {
        self.rank.filter(|rank| !rank.asynchronous)
    }

    pub(crate) fn bytes_of_all(&self, mine: u64) -> u64 {
        let workers = self.rank.filter(|rank| rank.asynchronous).map_or(1, |rank| u64::from(rank.world));
        mine * workers
    }

    /// Whose order of rows a new stream of this worker has.
    pub(crate) fn row_order(&self) -> u32 {
        self.rank.map_or(0, |rank| rank.rank)
    }

    pub(crate) fn worker_index(&self) -> u32 {
        self.indices.get(self.row_order() as usize).copied().unwrap_or_default()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.rank.map_or(0, |rank| rank.generation)
    }
}
