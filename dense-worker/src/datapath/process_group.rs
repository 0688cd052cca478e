//! The process group: its ranks agree on each step, and sum their gradients.
//!
//! All ranks make the same calls in the same order.

use std::sync::{Arc, OnceLock};

use zagros_collective::CollectiveGroup;
use zagros_ingest::Batch;
use zagros_worker_core::{StepAgreement, StepVote};
use zagros_zip::number_from;

use super::buckets::{BUCKET, GradientBuckets};
use crate::error::WorkerError;
use zagros_model::{DenseModel, ModelError, StepOutput};

/// Words of a [`RankTurn`]. The first says that the rank has sent a turn.
pub(super) const TURN: usize = 7;

/// Values in front of the flags of the ranks: the loss, and the squares of gradients.
const FIRST: usize = 3;

/// The workers that make steps together, and the gradients that are summed over them.
pub(crate) struct ProcessGroup {
    pub(super) group: Box<dyn CollectiveGroup>,
    pub(super) buckets: GradientBuckets,
}

impl std::fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {}", self.group.rank(), self.group.world_size())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RankTurn {
    /// Samples of its batch; 0 if it has none left.
    pub(crate) samples: u32,
    /// How much its samples count together.
    pub(crate) weight: f32,
    /// Bytes of the data files, for progress. Rounding does not matter.
    pub(crate) bytes: f32,
    pub(crate) vote: StepVote,
}

/// What a rank's batch is of a step, 0..1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RankShare {
    /// The weight of its samples, by which gradients count; 0 if those of all ranks have no weight.
    pub(crate) weight: f32,
    /// Its samples, by which the penalty on feature vectors counts.
    pub(crate) samples: f32,
}

/// A rank's turn for the step after this one, if it is known before the last sum of this step is sent. If all ranks know
/// theirs, they agree on that step with the sum of this one, and no rank waits for another twice per step.
pub(crate) type TurnAhead = Arc<OnceLock<RankTurn>>;

/// The turns of all ranks, by rank. They are the same on all ranks. By default no rank has a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AgreedTurns(pub(super) Vec<RankTurn>);

impl RankTurn {
    pub(crate) fn with_batch(self, batch: &Batch) -> Self {
        let samples = u32::try_from(batch.size).unwrap_or(u32::MAX);
        Self { samples, weight: batch.total_weight() as f32, bytes: batch.bytes as f32, ..self }
    }

    /// Writes the turn into the words of all ranks. Each rank writes only its own words, so the sum holds all turns.
    pub(super) fn write(self, all: &mut [f32], rank: usize) {
        let flag = f32::from;
        let StepVote { stop, checkpoint, regroup } = self.vote;
        // f32 counts samples exactly up to 2²⁴, more than any batch has.
        let words = [1.0, self.samples as f32, self.weight, self.bytes, flag(stop), flag(checkpoint), flag(regroup)];
        all[rank * TURN..][..TURN].copy_from_slice(&words);
    }

    fn read(&[_, samples, weight, bytes, stop, checkpoint, regroup]: &[f32; TURN]) -> Self {
        let vote = StepVote { stop: stop > 0.0, checkpoint: checkpoint > 0.0, regroup: regroup > 0.0 };
        Self { samples: samples as u32, weight, bytes, vote }
    }
}

impl AgreedTurns {
    pub(super) fn read(words: &[f32]) -> Self {
        Self(words.as_chunks::<TURN>().0.iter().map(RankTurn::read).collect())
    }

    /// Reads the turns; `None` unless every rank has written its words.
    fn if_all(words: &[f32]) -> Option<Self> {
        let turns = words.as_chunks::<TURN>().0;
        let all = turns.iter().all(|[is_there, ..]| *is_there > 0.0);
        (all && !turns.is_empty()).then(|| Self::read(words))
    }

    pub(crate) fn step_agreement(&self) -> StepAgreement {
        let none = StepAgreement::default();
        self.0.iter().fold(none, |all, turn| all.with_vote(turn.vote, u64::from(turn.samples)))
    }

    pub(crate) fn bytes_read(&self) -> u64 {
        self.0.iter().map(|turn| f64::from(turn.bytes)).sum::<f64>() as u64
    }

    pub(crate) fn busy_ranks(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().filter(|(_, turn)| turn.samples > 0).map(|(rank, _)| rank)
    }

    pub(crate) fn share_of_rank(&self, rank: usize) -> RankShare {
        let share = |part: fn(&RankTurn) -> f64| {
            let all: f64 = self.0.iter().map(part).sum();
            if all > 0.0 { (part(&self.0[rank]) / all) as f32 } else { 0.0 }
        };
        RankShare { weight: share(|turn| f64::from(turn.weight)), samples: share(|turn| f64::from(turn.samples)) }
    }
}

impl ProcessGroup {
    pub(super) fn new(group: Box<dyn CollectiveGroup>) -> Self {
        Self { group, buckets: GradientBuckets::new(BUCKET) }
    }

    /// Sends the gradients that are not sent yet. Also sends the loss, the squares of gradients that wait for a commit, which
    /// ranks have a value that is not finite, the turn ahead, and the changes of the network's buffers, in which each worker's
    /// batch counts its share.
    pub(super) fn send_rest(
        &mut self,
        model: &DenseModel,
        local: &Result<Option<StepOutput>, ModelError>,
        share: f32,
        ahead: Option<RankTurn>,
    ) -> Result<(), ModelError> {
        let (rank, world) = (self.group.rank(), self.group.world_size());
        let mut besides = vec![0.0; FIRST + world + world * TURN];
        besides[0] = local.as_ref().ok().and_then(Option::as_ref).map_or(0.0, |output| output.loss * share);
        // Two numbers, because the sum of one f32 per worker would round more than that of all gradients does.
        let squares = model.pushed_squares();
        (besides[1], besides[2]) = (squares as f32, (squares - f64::from(squares as f32)) as f32);
        besides[FIRST + rank] = f32::from(local.is_err());
        if let Some(turn) = ahead {
            turn.write(&mut besides[FIRST + world..], rank);
        }
        match local {
            Ok(_) => besides.extend(model.buffer_changes()?.iter().map(|change| change * share)),
            // All ranks skip the step.
            Err(_) => besides.resize(besides.len() + model.buffer_values(), 0.0),
        }
        self.buckets.send_remaining(self.group.as_mut(), model.gradients(), &besides);
        Ok(())
    }

    /// Waits for the sums. After that, the model's gradients and the changes of its buffers are those of all workers.
    pub(super) fn finish_step(&mut self, model: &mut DenseModel, step: u64) -> Result<ReducedSums, WorkerError> {
        let failed = |source| WorkerError::Step { step, source };
        let put = |first: usize, sums: &[f32]| model.replace_gradients(first, sums).map_err(failed);
        let besides = self.buckets.wait_for_sums(self.group.as_mut(), put)?;
        let world = self.group.world_size();
        let ([loss, squares, less], rest) = besides.split_first_chunk::<FIRST>().unwrap_or((&[0.0; FIRST], &[]));
        model.replace_squares(f64::from(*squares) + f64::from(*less));
        let (flags, rest) = rest.split_at(world.min(rest.len()));
        let (turns, changes) = rest.split_at((world * TURN).min(rest.len()));
        model.replace_buffer_changes(changes).map_err(failed)?;
        let diverged = number_from(0, flags).filter(|(_, flag)| **flag > 0.0).map(|(rank, _)| rank).collect();
        Ok(ReducedSums { loss: *loss, diverged, next: AgreedTurns::if_all(turns) })
    }
}

pub(super) struct ReducedSums {
    pub(super) loss: f32,
    pub(super) diverged: Vec<usize>,
    pub(super) next: Option<AgreedTurns>,
}
