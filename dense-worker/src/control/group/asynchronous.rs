//! What only asynchronous workers do: vote at barriers, leave the run while it goes on (invariant RK-4), and pull the dense weights.

use std::collections::BTreeMap;

use zagros_embedding_client::UniqueIds;
use zagros_protocol::control::{self, BarrierVote, CountedVote};
use zagros_protocol::datapath::Access;
use zagros_worker_core::{BarrierDecision, BarrierReason, Event};
use zagros_zip::ZipEq;

use crate::control::step::WorkerCounts;
use crate::control::trainer::Trainer;
use crate::datapath::prepared::inconsistent_batch;
use crate::error::WorkerError;

impl Trainer {
    pub(crate) async fn vote_at_barrier(&mut self, reason: BarrierReason) -> Result<Event, WorkerError> {
        let reason = match reason {
            BarrierReason::Checkpoint => control::BarrierReason::Checkpoint,
            BarrierReason::EpochEnd => control::BarrierReason::EpochEnd,
            BarrierReason::Stop => control::BarrierReason::Stop,
            BarrierReason::Leave => control::BarrierReason::Leave,
        };
        let mine = WorkerCounts { untrained_rows: self.stream.untrained_rows, ..self.tracker.own_counts() };
        // Numbers can always be written.
        let counts = serde_json::to_string(&mine).unwrap_or_default();
        let vote = BarrierVote { reason: reason.into(), called: self.barrier_calls.newest_heard(), counts };
        let result = self.ballots.vote(vote).await?;
        let decision = match result.decision() {
            control::BarrierDecision::Checkpoint => BarrierDecision::Checkpoint,
            control::BarrierDecision::EpochOver => BarrierDecision::EpochOver,
            control::BarrierDecision::Stop => BarrierDecision::Stop,
            control::BarrierDecision::Regroup => BarrierDecision::Regroup,
            other => return Err(inconsistent_batch(0, format!("a vote for {reason:?} is decided as {other:?}"))),
        };
        self.group.counted.note_votes(counts_of(&result.votes)?);
        let others = self.group.counted.counts_of_others(self.group.worker_index());
        self.tracker.others = others;
        if decision == BarrierDecision::Regroup {
            self.take_over_measures(&result.votes).await;
        }
        let called = result.votes.iter().flat_map(|counted| &counted.vote).map(|vote| vote.called).max().unwrap_or(0);
        Ok(Event::BarrierDecided { decision, called, others_steps: others.steps })
    }

    /// Some asynchronous workers leave, as these votes say, and all are still in their group. The first worker that stays takes over
    /// what those that leave have measured of the epoch. Where the group fails meanwhile, the measures of the epoch on training
    /// rows are without those, and nothing else is.
    async fn take_over_measures(&mut self, votes: &[CountedVote]) {
        let mine = self.tracker.done.overall.clone();
        let gathered = self.run.dense.call(move |dense| dense.all_gather_values(&mine)).await;
        let all = match gathered {
            Ok(Ok(all)) => all,
            Ok(Err(error)) | Err(error) => {
                return tracing::warn!(%error, "the measures of this epoch lack those of a worker that leaves");
            }
        };
        let indices = &self.group.indices;
        let heir = indices.iter().find(|index| !leaves(votes, **index));
        if heir == Some(&self.group.worker_index()) {
            let left = indices.iter().zip_eq(all).filter(|(index, _)| leaves(votes, **index));
            self.tracker.take_over(&left.map(|(_, measures)| measures).collect::<Vec<_>>());
        }
    }

    /// In mode `async`, gives the network the weights as the embedding servers hold them now.
    pub(crate) async fn pull_weights(&self) -> Result<(), WorkerError> {
        let Some(weights) = self.stream.weights.clone() else { return Ok(()) };
        let rows = self.run.client.lookup(&UniqueIds { tables: vec![weights] }.into(), Access::Read).await;
        let rows = rows.map_err(|source| WorkerError::Embedding { batch: self.stream.next_seq, source })?;
        Ok(self.run.dense.call(move |dense| dense.take_weights(&rows)).await??)
    }
}

fn counts_of(votes: &[CountedVote]) -> Result<BTreeMap<u32, WorkerCounts>, WorkerError> {
    let all = votes.iter().filter_map(|counted| Some((counted.worker, counted.vote.as_ref()?)));
    all.map(|(worker, vote)| {
        let odd = |error| inconsistent_batch(0, format!("the counts of dense worker {worker} ({error})"));
        Ok((worker, serde_json::from_str(&vote.counts).map_err(odd)?))
    })
    .collect()
}

fn leaves(votes: &[CountedVote], worker: u32) -> bool {
    let voted = votes.iter().find(|counted| counted.worker == worker).and_then(|counted| counted.vote.as_ref());
    voted.map(BarrierVote::reason) == Some(control::BarrierReason::Leave)
}
