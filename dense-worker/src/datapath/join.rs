//! Joining a process group: what a worker sends, and what must be equal on all ranks.

use serde::{Deserialize, Serialize};
use zagros_collective::CollectiveGroup;
use zagros_worker_core::RankProgress;

use super::dense::{DenseStage, StepResult};
use super::group_step::all_gather_values;
use super::process_group::{ProcessGroup, seed_of_rank};
use crate::error::WorkerError;

#[derive(Serialize, Deserialize)]
struct JoinPayload {
    progress: RankProgress,
    /// Checksum of the dense network's weights.
    weights: u32,
    /// Checksum of the other values that must be equal.
    like: u32,
}

impl DenseStage {
    /// Joins the group once every rank knows that all ranks fit together. `layers` is a second group of the same ranks, for
    /// streamed weights. `like` stands for values that must be equal on
    /// all ranks. Weights must be equal too if no rank has trained. Returns the progress of each rank.
    ///
    /// # Errors
    /// [`WorkerError::Unequal`] names the workers whose weights or `like` differ from those of rank 0. When a worker does
    /// not take part.
    pub(crate) fn join_group(
        &mut self,
        (group, layers): (Box<dyn CollectiveGroup>, Option<Box<dyn CollectiveGroup>>),
        seed: u64,
        like: &[u8],
        progress: RankProgress,
    ) -> Result<Vec<RankProgress>, WorkerError> {
        let mut process_group = ProcessGroup::new(group);
        let weights = crc32c::crc32c(&self.model.to_safetensors()?);
        let mine = JoinPayload { progress, weights, like: crc32c::crc32c(like) };
        let payloads = all_gather_values(&mine, |mine| Ok(process_group.group.all_gather(mine)?))?;
        let has_trained = payloads.iter().any(|payload| payload.progress.has_trained);
        let differs = |payload: &JoinPayload| {
            payload.like != payloads[0].like || (!has_trained && payload.weights != payloads[0].weights)
        };
        let workers: Vec<usize> = (0..payloads.len()).filter(|rank| differs(&payloads[*rank])).collect();
        if !workers.is_empty() {
            return Err(WorkerError::Unequal { workers });
        }
        if !progress.has_trained {
            self.model.drop_by(seed_of_rank(seed, process_group.group.rank() as u64));
        }
        if let (Some(tiles), Some(layers)) = (&self.tiles, layers) {
            tiles.join_group(layers)?;
        }
        self.process_group = Some(process_group);
        Ok(payloads.iter().map(|payload| payload.progress).collect())
    }

    /// Leaves a group in which a call has failed. Returns the step that other workers may have made.
    pub(crate) fn leave_group(&mut self) -> Option<StepResult> {
        self.process_group = None;
        if let Some(tiles) = &self.tiles {
            tiles.leave_group();
        }
        self.in_flight.take()
    }
}
