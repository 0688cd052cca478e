//! What the dense thread does together with those of the other workers: agree on a step, sum its gradients.
//!
//! All workers make the same calls in the same order. A step's gradient is that of the mean loss over the samples of all
//! workers: each weighs its own by its share of the samples, so that n workers with b samples each make the step of
//! one worker with n × b (invariant RK-1).

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;
use zagros_collective::Collective;
use zagros_embedding_client::Rows;
use zagros_ingest::Batch;

use super::buckets::{BUCKET, Buckets};
use super::dense::{Dense, Stepped};
use super::prepared::{Prepared, inconsistent};
use crate::error::WorkerError;
use crate::metrics::Stage;
use crate::model::{DenseModel, ModelError, StepOutput};

/// Numbers in a [`Turn`]: the first says that there is one.
const TURN: usize = 6;

/// The group, and the gradients that are summed in it.
pub(crate) struct Together {
    pub(super) group: Box<dyn Collective>,
    buckets: Buckets,
}

impl std::fmt::Debug for Together {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {}", self.group.rank(), self.group.world())
    }
}

/// What a worker brings to the next step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Turn {
    /// Of its batch; 0 when it has none left.
    pub(crate) samples: u32,
    /// Of the data files; for progress, so rounding does no harm.
    pub(crate) bytes: f32,
    /// It was asked to stop.
    pub(crate) stops: bool,
    /// A checkpoint is due after the step; the first worker says so.
    pub(crate) cuts: bool,
    /// Another worker waits to join; the first worker says so.
    pub(crate) parts: bool,
}

/// What a worker will bring to the step after this one, should it know before this one's last sum leaves: then all
/// agree on that step with this one's sum, and no worker waits for another twice a step.
pub(crate) type TurnAhead = Arc<OnceLock<Turn>>;

/// What all workers bring, by rank: the same on all of them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Agreed(Vec<Turn>);

impl Turn {
    /// With this batch.
    pub(crate) fn with(self, batch: &Batch) -> Self {
        Self { samples: u32::try_from(batch.size).unwrap_or(u32::MAX), bytes: batch.bytes as f32, ..self }
    }

    /// Writes it among those of all ranks, each of which adds nothing to the others' words.
    fn write(self, all: &mut [f32], rank: usize) {
        let flag = f32::from;
        // f32 counts samples exactly up to 2²⁴, more than any batch has.
        let words = [1.0, self.samples as f32, self.bytes, flag(self.stops), flag(self.cuts), flag(self.parts)];
        all[rank * TURN..][..TURN].copy_from_slice(&words);
    }

    fn read(&[_, samples, bytes, stops, cuts, parts]: &[f32; TURN]) -> Self {
        let (stops, cuts, parts) = (stops > 0.0, cuts > 0.0, parts > 0.0);
        Self { samples: samples as u32, bytes, stops, cuts, parts }
    }
}

impl Agreed {
    /// Of words that all ranks have written, or not; nothing unless all have.
    fn if_all(words: &[f32]) -> Option<Self> {
        let turns = words.as_chunks::<TURN>().0;
        let all = turns.iter().all(|[is_there, ..]| *is_there > 0.0);
        (all && !turns.is_empty()).then(|| Self(turns.iter().map(Turn::read).collect()))
    }

    /// Whether any worker was asked to stop: then all do.
    pub(crate) fn stops(&self) -> bool {
        self.0.iter().any(|turn| turn.stops)
    }

    /// Whether a checkpoint is cut after the step.
    pub(crate) fn cuts(&self) -> bool {
        self.0.iter().any(|turn| turn.cuts)
    }

    /// Whether all leave the group, for another with more workers, instead of making the step.
    pub(crate) fn parts(&self) -> bool {
        self.0.iter().any(|turn| turn.parts)
    }

    /// Of all workers; 0 when no worker has a batch left.
    pub(crate) fn samples(&self) -> u64 {
        self.0.iter().map(|turn| u64::from(turn.samples)).sum()
    }

    /// Of all workers.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|turn| f64::from(turn.bytes)).sum::<f64>() as u64
    }

    /// Ranks that have a batch, ascending.
    pub(crate) fn busy(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().filter(|(_, turn)| turn.samples > 0).map(|(rank, _)| rank)
    }

    /// What the samples of a rank count in the step, 0..1.
    pub(crate) fn share(&self, rank: usize) -> f32 {
        (f64::from(self.0[rank].samples) / self.samples().max(1) as f64) as f32
    }
}

/// A seed of a worker's own; rank 0's is the job's, and a lone worker's.
pub(crate) fn seed_of_rank(seed: u64, rank: u64) -> u64 {
    // An odd constant, so that neighbouring ranks of neighbouring seeds differ in many bits.
    seed ^ rank.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Dense {
    /// Tells the others what this worker brings, and answers what all bring.
    ///
    /// # Errors
    /// When a worker does not take part.
    pub(crate) fn agree(&mut self, mine: Turn) -> Result<Agreed, WorkerError> {
        let started = Instant::now();
        let Some(together) = &mut self.together else { return Ok(Agreed(vec![mine])) };
        let mut all = vec![0.0; together.group.world() * TURN];
        mine.write(&mut all, together.group.rank());
        together.group.all_reduce_sum(&mut all)?;
        self.metrics.spent(Stage::Reduce, started.elapsed());
        Ok(Agreed(all.as_chunks::<TURN>().0.iter().map(Turn::read).collect()))
    }

    /// One training step of all workers. This one brings `batch`, as for [`Self::step`], or nothing; `share` is its
    /// share of the samples. The loss is that of all workers' samples; logits and row gradients are this one's. Where all
    /// workers know their turns `ahead` in time, they have agreed on the next step too.
    ///
    /// # Errors
    /// When loss or gradients of any worker are not finite: all workers learn whose, and apply nothing
    /// ([`WorkerError::Skipped`] where training goes on). When a worker does not take part, or libtorch fails.
    pub(crate) fn step_together(
        &mut self,
        batch: Option<(&Prepared, Rows)>,
        share: f32,
        step: u64,
        ahead: &TurnAhead,
    ) -> Result<(Stepped, Option<Agreed>), WorkerError> {
        let Some(mut together) = self.together.take() else { return Err(no_group()) };
        let stepped = self.step_in(&mut together, batch, share, step, ahead);
        self.together = Some(together);
        stepped
    }

    fn step_in(
        &mut self,
        together: &mut Together,
        batch: Option<(&Prepared, Rows)>,
        share: f32,
        step: u64,
        ahead: &TurnAhead,
    ) -> Result<(Stepped, Option<Agreed>), WorkerError> {
        let timer = self.metrics.step_seconds.start_timer();
        let failed = |source| WorkerError::Step { step, source };
        let (prepared, rows) = batch.unzip();
        together.buckets.begin(self.model.weights(), share);
        let mut local = match self.local(together, prepared, rows.as_ref()) {
            Err(error) if !matches!(error, ModelError::NotFinite { .. }) => return Err(failed(error)),
            local => local,
        };
        let started = Instant::now();
        together.send_rest(&self.model, &local, share, ahead.get().copied()).map_err(failed)?;
        self.metrics.spent(Stage::Reduce, started.elapsed());
        // The rows' gradients are gathered while the others' are summed.
        let mut stepped = Stepped { loss: 0.0, logits: Vec::new(), gradients: rows.unwrap_or_default(), share };
        if let (Some(prepared), Ok(Some(output))) = (prepared, &mut local) {
            output.gradients.iter_mut().for_each(|gradient| *gradient *= share);
            self.scatter(prepared, &output.gradients, &mut stepped.gradients);
            stepped.logits = std::mem::take(&mut output.logits);
        }
        let started = Instant::now();
        let reduced = match together.finish(&mut self.model, step) {
            Ok(reduced) => reduced,
            Err(error) => {
                // Another worker may have all sums, and so have made the step.
                self.unapplied = local.is_ok().then_some(stepped);
                return Err(error);
            }
        };
        self.metrics.spent(Stage::Reduce, started.elapsed());
        if !reduced.diverged.is_empty() {
            let workers = reduced.diverged;
            // The same answer on all workers.
            if self.model.leave_out() {
                return Err(WorkerError::Skipped { step, workers });
            }
            local.map_err(failed)?;
            return Err(WorkerError::PeerDiverged { step, workers });
        }
        let started = Instant::now();
        self.model.apply().map_err(|error| match error {
            ModelError::Skipped { .. } => WorkerError::Skipped { step, workers: (0..together.group.world()).collect() },
            error => failed(error),
        })?;
        self.metrics.spent(Stage::Dense, started.elapsed());
        stepped.loss = reduced.loss;
        timer.observe_duration();
        Ok((stepped, reduced.next))
    }

    /// Waits for all workers.
    ///
    /// # Errors
    /// When one does not take part.
    pub(crate) fn barrier(&mut self) -> Result<(), WorkerError> {
        Ok(self.together.as_mut().map_or(Ok(()), |together| together.group.barrier())?)
    }

    /// Every worker's bytes, by rank.
    ///
    /// # Errors
    /// When one does not take part.
    pub(crate) fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, WorkerError> {
        let Some(together) = &mut self.together else { return Ok(vec![mine.to_vec()]) };
        Ok(together.group.all_gather(mine)?)
    }

    /// What every worker says, by rank.
    ///
    /// # Errors
    /// When one does not take part, or says something else.
    pub(crate) fn all_say<T: Serialize + DeserializeOwned>(&mut self, mine: &T) -> Result<Vec<T>, WorkerError> {
        all_say(mine, |mine| self.all_gather(mine))
    }

    /// Takes weights and optimiser that rank `source` has now. What it says besides is the answer on all of them.
    ///
    /// # Errors
    /// When a worker does not take part, or libtorch fails.
    pub(crate) fn follow(&mut self, source: usize, said: Vec<u8>) -> Result<Vec<u8>, WorkerError> {
        let Some(together) = &mut self.together else { return Ok(said) };
        let leads = together.group.rank() == source;
        let mine = if leads {
            [said, self.model.to_safetensors()?, self.model.optimizer_state()?]
        } else {
            Default::default()
        };
        let [said, weights, optimizer] = mine;
        let mut of_lead =
            |bytes: &[u8]| together.group.all_gather(bytes).map(|mut all| std::mem::take(&mut all[source]));
        let (said, weights, optimizer) = (of_lead(&said)?, of_lead(&weights)?, of_lead(&optimizer)?);
        if !leads {
            self.model.load_safetensors(&weights)?;
            self.model.restore_optimizer(&optimizer)?;
        }
        Ok(said)
    }

    /// Forward and backward over this worker's batch, if it has one. Gradients that are final meanwhile leave.
    fn local(
        &mut self,
        together: &mut Together,
        prepared: Option<&Prepared>,
        rows: Option<&Rows>,
    ) -> Result<Option<StepOutput>, ModelError> {
        let (Some(prepared), Some(rows)) = (prepared, rows) else {
            self.model.clear_gradients()?;
            return Ok(None);
        };
        let started = Instant::now();
        self.gather(prepared, rows);
        self.metrics.spent(Stage::Gather, started.elapsed());
        let started = Instant::now();
        let samples = (&prepared.batch.numeric[..], &self.input[..], &prepared.batch.labels[..]);
        let Together { group, buckets } = together;
        let ready = &mut |from: usize, gradients: &[f32]| buckets.ready(group.as_mut(), from, gradients);
        let output = self.model.backward_in_parts(samples, ready)?;
        self.metrics.spent(Stage::Dense, started.elapsed());
        self.model.check_finite(&output)?;
        Ok(Some(output))
    }
}

impl Together {
    pub(super) fn of(group: Box<dyn Collective>) -> Self {
        Self { group, buckets: Buckets::new(BUCKET) }
    }

    /// Sends the gradients that have not left, and besides the loss, who has what is no number, the turn ahead, and what
    /// buffers of the network change by: each worker's batch counts its share in them, too.
    fn send_rest(
        &mut self,
        model: &DenseModel,
        local: &Result<Option<StepOutput>, ModelError>,
        share: f32,
        ahead: Option<Turn>,
    ) -> Result<(), ModelError> {
        let (rank, world) = (self.group.rank(), self.group.world());
        let mut besides = vec![0.0; 1 + world + world * TURN];
        besides[0] = local.as_ref().ok().and_then(Option::as_ref).map_or(0.0, |output| output.loss * share);
        besides[1 + rank] = f32::from(local.is_err());
        if let Some(turn) = ahead {
            turn.write(&mut besides[1 + world..], rank);
        }
        match local {
            Ok(_) => besides.extend(model.buffer_changes()?.iter().map(|change| change * share)),
            // All leave the step out.
            Err(_) => besides.resize(besides.len() + model.buffer_values(), 0.0),
        }
        self.buckets.close(self.group.as_mut(), model.gradients(), &besides);
        Ok(())
    }

    /// Waits for the sums; the model's gradients, and what its buffers change by, are then those of all workers.
    fn finish(&mut self, model: &mut DenseModel, step: u64) -> Result<Reduced, WorkerError> {
        let failed = |source| WorkerError::Step { step, source };
        let put = |first: usize, sums: &[f32]| model.replace_gradients(first, sums).map_err(failed);
        let besides = self.buckets.finish(self.group.as_mut(), put)?;
        let world = self.group.world();
        let (loss, rest) = besides.split_first().unwrap_or((&0.0, &[]));
        let (flags, rest) = rest.split_at(world.min(rest.len()));
        let (turns, changes) = rest.split_at((world * TURN).min(rest.len()));
        model.replace_buffer_changes(changes).map_err(failed)?;
        Ok(Reduced {
            loss: *loss,
            diverged: (0..).zip(flags).filter(|(_, flag)| **flag > 0.0).map(|(rank, _)| rank).collect(),
            next: Agreed::if_all(turns),
        })
    }
}

/// As [`Dense::all_say`], over any group's `all_gather`.
pub(super) fn all_say<T: Serialize + DeserializeOwned>(
    mine: &T,
    all_gather: impl FnOnce(&[u8]) -> Result<Vec<Vec<u8>>, WorkerError>,
) -> Result<Vec<T>, WorkerError> {
    let odd = |rank: usize| move |error| inconsistent(0, format!("what dense worker {rank} says ({error})"));
    // What cannot be written is read by nobody.
    let mine = serde_json::to_vec(mine).unwrap_or_default();
    let all = all_gather(&mine)?;
    (0..).zip(&all).map(|(rank, said)| serde_json::from_slice(said).map_err(odd(rank))).collect()
}

fn no_group() -> WorkerError {
    WorkerError::Thread { thread: "dense", reason: "has no group".to_owned() }
}

/// The part of a sum that is no gradient.
struct Reduced {
    loss: f32,
    diverged: Vec<usize>,
    next: Option<Agreed>,
}

#[cfg(test)]
mod tests;
