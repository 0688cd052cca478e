//! What the dense thread does together with those of the other workers: agree on a step, sum its gradients.
//!
//! All workers make the same calls in the same order. A step's gradient is that of the mean loss over the samples of all
//! workers: each weighs its own by its share of the samples, so that n workers with b samples each make the step of
//! one worker with n × b (invariant RK-1).

use std::time::Instant;

use zagros_collective::Collective;
use zagros_embedding_client::Rows;

use super::dense::{Dense, Stepped};
use super::prepared::Prepared;
use crate::error::WorkerError;
use crate::metrics::Stage;
use crate::model::{ModelError, StepOutput};

/// Numbers in a [`Turn`].
const TURN: usize = 4;

/// The group, and the buffer that gradients are summed in.
pub(crate) struct Together {
    group: Box<dyn Collective>,
    buffer: Vec<f32>,
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
}

/// What all workers bring, by rank: the same on all of them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Agreed(Vec<Turn>);

impl Agreed {
    /// Whether any worker was asked to stop: then all do.
    pub(crate) fn stops(&self) -> bool {
        self.0.iter().any(|turn| turn.stops)
    }

    /// Whether a checkpoint is cut after the step.
    pub(crate) fn cuts(&self) -> bool {
        self.0.iter().any(|turn| turn.cuts)
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
    /// Joins the group, once all are sure that they start from the same: `like` stands for whatever else must be equal.
    ///
    /// # Errors
    /// [`WorkerError::Unequal`] names the workers whose weights or `like` are not rank 0's.
    pub(crate) fn join(&mut self, group: Box<dyn Collective>, seed: u64, like: &[u8]) -> Result<(), WorkerError> {
        let mut together = Together { group, buffer: Vec::new() };
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&self.model.to_safetensors()?), like);
        let all = together.group.all_gather(&checksum.to_le_bytes())?;
        let workers: Vec<usize> = (0..all.len()).filter(|rank| all[*rank] != all[0]).collect();
        if !workers.is_empty() {
            return Err(WorkerError::Unequal { workers });
        }
        self.model.drop_by(seed_of_rank(seed, together.group.rank() as u64));
        self.together = Some(together);
        Ok(())
    }

    /// Tells the others what this worker brings, and answers what all bring.
    ///
    /// # Errors
    /// When a worker does not take part.
    pub(crate) fn agree(&mut self, mine: Turn) -> Result<Agreed, WorkerError> {
        let started = Instant::now();
        let Some(together) = &mut self.together else { return Ok(Agreed(vec![mine])) };
        let (rank, world) = (together.group.rank(), together.group.world());
        let mut all = vec![0.0; world * TURN];
        // f32 counts samples exactly up to 2²⁴, more than any batch has.
        let words = [mine.samples as f32, mine.bytes, f32::from(mine.stops), f32::from(mine.cuts)];
        all[rank * TURN..][..TURN].copy_from_slice(&words);
        together.group.all_reduce_sum(&mut all)?;
        self.metrics.spent(Stage::Reduce, started.elapsed());
        let turn = |&[samples, bytes, stops, cuts]: &[f32; TURN]| Turn {
            samples: samples as u32,
            bytes,
            stops: stops > 0.0,
            cuts: cuts > 0.0,
        };
        Ok(Agreed(all.as_chunks::<TURN>().0.iter().map(turn).collect()))
    }

    /// One training step of all workers. This one brings `batch`, as for [`Self::step`], or nothing; `share` is its
    /// share of the samples. The loss is that of all workers' samples; logits and row gradients are this one's.
    ///
    /// # Errors
    /// When loss or gradients of any worker are not finite: all workers learn whose, and apply nothing. When a worker
    /// does not take part, or libtorch fails.
    pub(crate) fn step_together(
        &mut self,
        batch: Option<(&Prepared, Rows)>,
        share: f32,
        step: u64,
    ) -> Result<Stepped, WorkerError> {
        let timer = self.metrics.step_seconds.start_timer();
        let failed = |source| WorkerError::Step { step, source };
        let (prepared, rows) = batch.unzip();
        let local = self.local(prepared, rows.as_ref());
        let local = match local {
            Ok(output) => Ok(output),
            Err(error @ ModelError::NotFinite { .. }) => Err(error),
            Err(error) => return Err(failed(error)),
        };
        let started = Instant::now();
        let reduced = self.reduce(local.as_ref().ok().and_then(Option::as_ref), share, local.is_err())?;
        self.metrics.spent(Stage::Reduce, started.elapsed());
        let output = local.map_err(failed)?;
        if !reduced.diverged.is_empty() {
            return Err(WorkerError::PeerDiverged { step, workers: reduced.diverged });
        }
        let started = Instant::now();
        let weights = self.model.weights();
        let gradients = self.together.as_ref().map(|together| &together.buffer[..weights]);
        gradients.map_or(Ok(()), |gradients| self.model.apply(gradients)).map_err(failed)?;
        self.metrics.spent(Stage::Dense, started.elapsed());
        let mut stepped = Stepped { loss: reduced.loss, logits: Vec::new(), gradients: rows.unwrap_or_default() };
        if let (Some(prepared), Some(mut output)) = (prepared, output) {
            output.gradients.iter_mut().for_each(|gradient| *gradient *= share);
            self.scatter(prepared, &output.gradients, &mut stepped.gradients);
            stepped.logits = output.logits;
        }
        timer.observe_duration();
        Ok(stepped)
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

    /// Takes weights and optimiser that rank 0 has now. What rank 0 says besides is the answer on all of them.
    ///
    /// # Errors
    /// When a worker does not take part, or libtorch fails.
    pub(crate) fn follow_lead(&mut self, said: Vec<u8>) -> Result<Vec<u8>, WorkerError> {
        let Some(together) = &mut self.together else { return Ok(said) };
        let leads = together.group.rank() == 0;
        let mine = if leads {
            [said, self.model.to_safetensors()?, self.model.optimizer_state()?]
        } else {
            Default::default()
        };
        let [said, weights, optimizer] = mine;
        let mut of_lead = |bytes: &[u8]| together.group.all_gather(bytes).map(|mut all| std::mem::take(&mut all[0]));
        let (said, weights, optimizer) = (of_lead(&said)?, of_lead(&weights)?, of_lead(&optimizer)?);
        if !leads {
            self.model.load_safetensors(&weights)?;
            self.model.restore_optimizer(&optimizer)?;
        }
        Ok(said)
    }

    /// Forward and backward over this worker's batch, if it has one.
    fn local(&mut self, prepared: Option<&Prepared>, rows: Option<&Rows>) -> Result<Option<StepOutput>, ModelError> {
        let (Some(prepared), Some(rows)) = (prepared, rows) else {
            self.model.clear_gradients()?;
            return Ok(None);
        };
        let started = Instant::now();
        self.gather(prepared, rows);
        self.metrics.spent(Stage::Gather, started.elapsed());
        let started = Instant::now();
        let output = self.model.backward(&prepared.batch.numeric, &self.input, &prepared.batch.labels)?;
        self.metrics.spent(Stage::Dense, started.elapsed());
        self.model.check_finite(&output)?;
        Ok(Some(output))
    }

    /// Sums what all workers have: dense gradients, loss, and who has what is no number, in one buffer.
    fn reduce(&mut self, output: Option<&StepOutput>, share: f32, diverged: bool) -> Result<Reduced, WorkerError> {
        let weights = self.model.weights();
        let Some(Together { group, buffer }) = &mut self.together else {
            return Err(WorkerError::Thread { thread: "dense", reason: "has no group".to_owned() });
        };
        buffer.clear();
        buffer.resize(weights + 1 + group.world(), 0.0);
        if let Some(output) = output {
            self.model.copy_gradients(&mut buffer[..weights])?;
            buffer[weights] = output.loss;
            buffer[..=weights].iter_mut().for_each(|value| *value *= share);
        }
        buffer[weights + 1 + group.rank()] = f32::from(diverged);
        group.all_reduce_sum(buffer)?;
        let flags = buffer[weights + 1..].iter().enumerate();
        Ok(Reduced {
            loss: buffer[weights],
            diverged: flags.filter(|(_, flag)| **flag > 0.0).map(|(rank, _)| rank).collect(),
        })
    }
}

/// The part of a sum that is no gradient.
struct Reduced {
    loss: f32,
    diverged: Vec<usize>,
}

#[cfg(test)]
mod tests;
