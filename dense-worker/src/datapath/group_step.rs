//! The dense thread's calls to the process group: it joins one in which all is equal on all ranks, agrees on a step and sums its
//! gradients.
//!
//! All workers make the same calls in the same order. The gradient of a step is that of the mean loss over the samples of
//! all workers. Each worker weighs its gradients by its share of the samples, or of their weights, and a penalty on feature
//! vectors by its share of the samples, so n workers with b samples each make the step of one worker with n × b samples
//! (invariant RK-1).

use std::time::Instant;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zagros_collective::CollectiveGroup;
use zagros_coordinator_client::Waiting;
use zagros_embedding_client::BatchRows;
use zagros_protocol::control::WaitKind;
use zagros_worker_core::RankProgress;
use zagros_zip::number_from;

use super::dense::{DenseStage, StepResult};
use super::prepared::{PreparedBatch, inconsistent_batch};
use super::process_group::{AgreedTurns, ProcessGroup, RankShare, RankTurn, TURN, TurnAhead};
use crate::error::WorkerError;
use crate::metrics::PipelineStage;
use zagros_model::{ModelError, StepOutput, seed_of_rank};

impl DenseStage {
    /// Sends this rank's turn, and returns the turns of all ranks.
    pub(crate) fn agree_on_step(&mut self, mine: RankTurn) -> Result<AgreedTurns, WorkerError> {
        let started = Instant::now();
        let Some(process_group) = &mut self.process_group else { return Ok(AgreedTurns(vec![mine])) };
        let mut all = vec![0.0; process_group.group.world_size() * TURN];
        mine.write(&mut all, process_group.group.rank());
        let _waiting = self.metrics.waits.begin_wait(of_all("the agreement on a step"));
        process_group.group.all_reduce_sum(&mut all)?;
        self.metrics.add_stage_time(PipelineStage::Reduce, started.elapsed());
        Ok(AgreedTurns::read(&all))
    }

    /// One training step of all workers. `batch` is this worker's part, as for [`Self::step`], or `None`. `share` is what that is
    /// of the step. The loss is that of all samples. Logits and row gradients are those of this worker's. If all
    /// workers know the turn after this step in time, they also agree on the next step.
    ///
    /// # Errors
    /// When loss or gradients of any worker are not finite: all workers learn whose, and apply nothing
    /// ([`WorkerError::Skipped`] if training goes on). When a worker does not take part, or libtorch fails.
    pub(crate) fn group_step(
        &mut self,
        batch: Option<(&PreparedBatch, BatchRows)>,
        share: RankShare,
        step: u64,
        ahead: &TurnAhead,
    ) -> Result<(StepResult, Option<AgreedTurns>), WorkerError> {
        let no_group = || WorkerError::Thread { thread: "dense", reason: "has no group".to_owned() };
        let mut process_group = self.process_group.take().ok_or_else(no_group)?;
        let stepped = self.step_in(&mut process_group, batch, share, step, ahead);
        self.process_group = Some(process_group);
        stepped
    }

    fn step_in(
        &mut self,
        process_group: &mut ProcessGroup,
        batch: Option<(&PreparedBatch, BatchRows)>,
        share: RankShare,
        step: u64,
        ahead: &TurnAhead,
    ) -> Result<(StepResult, Option<AgreedTurns>), WorkerError> {
        let timer = self.metrics.step_seconds.start_timer();
        let failed = |source| WorkerError::Step { step, source };
        let (prepared, rows) = batch.unzip();
        process_group.buckets.begin_step(self.model.weight_count(), share.weight);
        self.model.set_share(share.weight);
        let mut local = match self.local(process_group, prepared, rows.as_ref()) {
            // All workers learn of it.
            Err(error @ (ModelError::NotFinite { .. } | ModelError::LayerNotFinite { .. })) => Err(error),
            Err(ModelError::Workers(error)) => return Err(error.into()),
            local => Ok(local.map_err(failed)?),
        };
        let started = Instant::now();
        process_group.send_rest(&self.model, &local, share.weight, ahead.get().copied()).map_err(failed)?;
        self.metrics.add_stage_time(PipelineStage::Reduce, started.elapsed());
        // The gradients of rows are gathered while those of the network are summed.
        let mut stepped =
            StepResult { loss: 0.0, logits: Vec::new(), gradients: rows.unwrap_or_default(), share: share.samples };
        if let (Some(prepared), Ok(Some(output))) = (prepared, &mut local) {
            output.gradients.iter_mut().for_each(|gradient| *gradient *= share.weight);
            self.model.add_penalty(prepared.labelled_samples(&self.input), share.samples, &mut output.gradients);
            self.scatter(prepared, &output.gradients, &mut stepped.gradients);
            stepped.logits = std::mem::take(&mut output.logits);
        }
        let started = Instant::now();
        let waiting = self.metrics.waits.begin_wait(of_all("the all-reduce of step").with_number(step));
        let reduced = match process_group.finish_step(&mut self.model, step) {
            Ok(reduced) => reduced,
            Err(error) => {
                // Another worker may have received all sums and made the step.
                self.in_flight = local.is_ok().then_some(stepped);
                return Err(error);
            }
        };
        drop(waiting);
        self.metrics.add_stage_time(PipelineStage::Reduce, started.elapsed());
        if !reduced.diverged.is_empty() {
            let workers = reduced.diverged;
            // The decision is the same on all workers.
            if self.model.leave_out() {
                return Err(WorkerError::Skipped { step, workers });
            }
            local.map_err(failed)?;
            return Err(WorkerError::PeerDiverged { step, workers });
        }
        let started = Instant::now();
        self.model.apply_gradients().map_err(|error| match error {
            ModelError::Skipped { .. } => {
                WorkerError::Skipped { step, workers: (0..process_group.group.world_size()).collect() }
            }
            error => failed(error),
        })?;
        self.metrics.add_stage_time(PipelineStage::Dense, started.elapsed());
        stepped.loss = reduced.loss;
        timer.observe_duration();
        Ok((stepped, reduced.next))
    }

    pub(crate) fn wait_for_all(&mut self) -> Result<(), WorkerError> {
        let _waiting = self.metrics.waits.begin_wait(of_all("a barrier"));
        Ok(self.process_group.as_mut().map_or(Ok(()), |process_group| process_group.group.barrier())?)
    }

    /// By rank.
    pub(crate) fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, WorkerError> {
        let Some(process_group) = &mut self.process_group else { return Ok(vec![mine.to_vec()]) };
        let _waiting = self.metrics.waits.begin_wait(of_all("an exchange of all workers"));
        Ok(process_group.group.all_gather(mine)?)
    }

    /// By rank.
    pub(crate) fn all_gather_values<T: Serialize + DeserializeOwned>(
        &mut self,
        mine: &T,
    ) -> Result<Vec<T>, WorkerError> {
        all_gather_values(mine, |mine| self.all_gather(mine))
    }

    /// Returns the `shared` bytes of rank `source` on every rank, after taking its weights and optimiser state.
    pub(crate) fn follow_rank(&mut self, source: usize, shared: Vec<u8>) -> Result<Vec<u8>, WorkerError> {
        let Some(process_group) = &mut self.process_group else { return Ok(shared) };
        let leads = process_group.group.rank() == source;
        let mine = if leads {
            [shared, self.model.to_safetensors()?, self.model.optimizer_state()?]
        } else {
            Default::default()
        };
        let [shared, weights, optimizer] = mine;
        let waiting = self.metrics.waits.begin_wait(of_all("the state of the most advanced rank"));
        let mut of_lead =
            |bytes: &[u8]| process_group.group.all_gather(bytes).map(|mut all| std::mem::take(&mut all[source]));
        let (shared, weights, optimizer) = (of_lead(&shared)?, of_lead(&weights)?, of_lead(&optimizer)?);
        drop(waiting);
        if !leads {
            self.model.load_safetensors(&weights)?;
            self.model.restore_optimizer(&optimizer)?;
        }
        Ok(shared)
    }

    /// Forward and backward over this worker's batch, if it has one. Final gradients are sent meanwhile.
    fn local(
        &mut self,
        process_group: &mut ProcessGroup,
        prepared: Option<&PreparedBatch>,
        rows: Option<&BatchRows>,
    ) -> Result<Option<StepOutput>, ModelError> {
        let (Some(prepared), Some(rows)) = (prepared, rows) else {
            self.model.clear_gradients()?;
            return Ok(None);
        };
        let started = Instant::now();
        self.gather(prepared, rows);
        self.metrics.add_stage_time(PipelineStage::Gather, started.elapsed());
        let started = Instant::now();
        let samples = prepared.labelled_samples(&self.input);
        let ProcessGroup { group, buckets } = process_group;
        let ready = &mut |from: usize, gradients: &[f32]| buckets.send_ready(group.as_mut(), from, gradients);
        let output = self.model.backward_in_parts(samples, ready)?;
        self.metrics.add_stage_time(PipelineStage::Dense, started.elapsed());
        self.model.check_finite(&output)?;
        Ok(Some(output))
    }

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

/// As [`DenseStage::all_gather_values`], with the `all_gather` of any group.
pub(super) fn all_gather_values<T: Serialize + DeserializeOwned>(
    mine: &T,
    all_gather: impl FnOnce(&[u8]) -> Result<Vec<Vec<u8>>, WorkerError>,
) -> Result<Vec<T>, WorkerError> {
    // An empty value cannot be parsed, so the others name this rank.
    let mine = postcard::to_allocvec(mine).unwrap_or_default();
    let all = all_gather(&mine)?;
    let parse = |(rank, bytes): (usize, &Vec<u8>)| match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(inconsistent_batch(0, format!("what dense worker {rank} sent is another kind of value"))),
    };
    number_from(0, &all).map(parse).collect()
}

/// A call that all ranks make. It has the same words on each of them, so that the doctor knows who is in it.
const fn of_all(what: &'static str) -> Waiting {
    Waiting::new("dense thread", WaitKind::Workers, what)
}

#[derive(Serialize, Deserialize)]
struct JoinPayload {
    progress: RankProgress,
    /// Checksum of the dense network's weights.
    weights: u32,
    /// Checksum of the other values that must be equal.
    like: u32,
}

#[cfg(test)]
mod tests;
