//! Memory of each role, from the job alone.

use zagros_job::{Categorical, DenseOptimizer, Job, Table};

use crate::layers::DenseWork;
use crate::work::F32;

/// Index bytes per row: twelve per entry, with 64 to 80 % of its places used, and free space in the last block.
const INDEX_BYTES: usize = 24;
/// Samples that a thread of a step takes at once.
const CHUNK: f64 = 1024.0;

/// Bytes of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RoleMemory {
    /// A worker's weights and gradients, one copy of the gradients for each thread.
    pub weights: f64,
    /// A worker's optimiser state of the dense network.
    pub optimizer: f64,
    /// A worker's values between layers.
    pub activations: f64,
    /// A worker's rows and gradients between lookup and acknowledgement.
    pub batches: f64,
    /// A worker's weights and gradients if the weights are streamed: two layers of each, and the values of the whole batch.
    pub streamed: f64,
    /// A server's part of the dense weights and their optimiser state if they are streamed.
    pub streamed_server: f64,
}

impl RoleMemory {
    /// The memory of a worker with `threads` of the dense step, and of each of `servers` servers.
    #[must_use]
    pub fn of(job: &Job, dense: &DenseWork, threads: f64, servers: f64) -> Self {
        let state = optimizer_values(&job.dense_optimizer);
        let parameters = dense.parameters;
        let layers = dense.products.iter().map(crate::Product::weights).fold(0.0, f64::max);
        let samples = CHUNK.min(job.train.batch_size as f64);
        Self {
            weights: F32 * parameters * (1.0 + threads.max(1.0)),
            optimizer: F32 * parameters * state,
            activations: threads.max(1.0) * samples * dense.values() * F32,
            batches: in_flight_bytes(job) as f64,
            streamed: 4.0 * layers * F32 + job.train.batch_size as f64 * dense.values() / 2.0 * F32,
            streamed_server: F32 * parameters * (1.0 + state) / servers.max(1.0),
        }
    }

    /// A worker with its whole network.
    #[must_use]
    pub fn resident(&self) -> f64 {
        self.weights + self.optimizer + self.activations + self.batches
    }
}

/// Values of optimiser state for each weight.
fn optimizer_values(optimizer: &DenseOptimizer) -> f64 {
    optimizer.rule().0.vectors().len() as f64
}

/// Rows and gradients of one worker's batches between lookup and acknowledgement.
#[must_use]
pub fn in_flight_bytes(job: &Job) -> u64 {
    let values = |feature: &Categorical| {
        let dim = job.tables[feature.table].dim;
        feature.values.sequence().map_or(dim, |sequence| sequence.width(dim))
    };
    let values: usize = job.features.categorical.iter().map(values).sum();
    let batches = (job.train.batch_size as u64).saturating_mul(job.train.staleness as u64 + 1);
    batches.saturating_mul(2 * 4 * values as u64)
}

/// Bytes of one row in a server's memory: weights, optimiser state, index.
#[must_use]
pub fn row_bytes(table: &Table) -> usize {
    4 * table.config().stride() + INDEX_BYTES
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::Overrides;

    use super::*;

    fn memory(sets: &[&str]) -> RoleMemory {
        let text = "[data]\nformat = 'criteo'\ntrain = 'a'\n[model]\nkind = 'ffnn'\nhidden = [64, 8]\n[train]\nbatch_size = 2048\n";
        let job = Job::parse(text, Path::new("job.toml"), &Overrides::sets(sets.iter().copied())).unwrap();
        RoleMemory::of(&job, &DenseWork::of(&job).unwrap(), 1.0, 2.0)
    }

    #[test]
    fn adam_keeps_two_values_for_each_weight_and_plain_sgd_none() {
        let adam = memory(&["optimizer={kind='adam'}"]);
        assert_eq!(adam.weights, adam.optimizer);
        assert_eq!(memory(&["optimizer={kind='sgd'}"]).optimizer, 0.0);
        assert!(adam.resident() > adam.weights + adam.optimizer + adam.batches);
        // Half of weights and both moments on each server.
        assert_eq!(adam.streamed_server, adam.weights / 2.0 * 3.0 / 2.0);
    }
}
