//! What only asynchronous workers do: vote at barriers, and pull the dense weights.

use serde::{Deserialize, Serialize};
use zagros_embedding_client::UniqueIds;
use zagros_protocol::datapath::Access;
use zagros_worker_core::{BarrierReason, BarrierVote, Event};

use super::trainer::Trainer;
use super::worker_counts::WorkerCounts;
use crate::error::WorkerError;

/// What a worker sends to the others at a barrier.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct VoteWithCounts {
    vote: BarrierVote,
    counts: WorkerCounts,
}

impl Trainer {
    /// Votes at a barrier, and takes down what the others have done.
    ///
    /// # Errors
    /// When another does not come, naming it.
    pub(super) async fn vote(&mut self, reason: BarrierReason) -> Result<Event, WorkerError> {
        let vote = BarrierVote { reason, called: self.barrier_calls.newest() };
        let mine = VoteWithCounts { vote, counts: self.tracker.counts() };
        let all = self.run.dense.call(move |dense| dense.all_gather_values(&mine)).await??;
        let rank = self.group.order() as usize;
        let others = all.iter().enumerate().filter(|(other, _)| *other != rank).map(|(_, vote)| vote.counts);
        let others = others.fold(WorkerCounts::default(), WorkerCounts::plus);
        self.tracker.set_others(others);
        Ok(Event::Votes { votes: all.iter().map(|vote| vote.vote).collect(), others_steps: others.steps })
    }

    /// In mode `async`, gives the network the weights as the embedding servers hold them now.
    ///
    /// # Errors
    /// When a server does not serve in time, or libtorch fails.
    pub(crate) async fn pull_weights(&self) -> Result<(), WorkerError> {
        let Some(weights) = self.stream.weights.clone() else { return Ok(()) };
        let rows = self.run.client.lookup(&UniqueIds { tables: vec![weights] }.into(), Access::Read).await;
        let rows = rows.map_err(|source| WorkerError::Embedding { batch: self.stream.next_seq, source })?;
        Ok(self.run.dense.call(move |dense| dense.take_weights(&rows)).await??)
    }
}
