//! Memory of each role, from the job alone. The sums are those of `zagros-job`, which a run is refused by as well.

use zagros_job::{Job, WeightStore};

/// Bytes of one process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoleMemory {
    /// Where the job has its dense weights.
    pub store: WeightStore,
    /// A worker's weights and gradients, one copy of the gradients for each thread.
    pub weights: f64,
    /// A worker's optimiser state of the dense network, and copies of weights.
    pub optimizer: f64,
    /// A worker's values between layers.
    pub activations: f64,
    /// A worker's rows and gradients between lookup and acknowledgement.
    pub batches: f64,
    /// With streamed weights, a worker's weights and gradients of two layers, and its messages.
    pub streamed_layers: f64,
    /// With streamed weights, a worker's values between layers, for the whole batch.
    pub streamed_activations: f64,
    /// With streamed weights, a server's part of them with their optimiser state, and its messages.
    pub streamed_server: f64,
}

impl RoleMemory {
    /// The memory of a worker with `threads` of the dense step, and of each of `servers` servers.
    #[must_use]
    pub fn new(job: &Job, threads: usize, servers: f64) -> Self {
        let resident = job.dense_footprint_with(threads).unwrap_or_default();
        let streamed = job.streamed_footprint_with(threads).unwrap_or_default();
        Self {
            store: job.train.weights,
            weights: (resident.weights + resident.gradients) as f64,
            optimizer: (resident.optimizer + resident.copies) as f64,
            activations: resident.activations as f64,
            batches: job.in_flight_bytes() as f64,
            streamed_layers: (streamed.layers + streamed.messages) as f64,
            streamed_activations: streamed.activations as f64,
            streamed_server: streamed.store as f64 / servers.max(1.0) + streamed.server_messages as f64,
        }
    }

    #[must_use]
    pub fn resident_worker(&self) -> f64 {
        self.weights + self.optimizer + self.activations + self.batches
    }

    /// A worker whose weights are streamed.
    #[must_use]
    pub fn streamed_worker(&self) -> f64 {
        self.streamed_layers + self.streamed_activations + self.batches
    }

    #[must_use]
    pub fn is_streamed(&self) -> bool {
        self.store == WeightStore::Streamed
    }

    #[must_use]
    pub fn worker_bytes(&self) -> f64 {
        if self.is_streamed() { self.streamed_worker() } else { self.resident_worker() }
    }

    /// A server's part of the job's dense network.
    #[must_use]
    pub fn server_bytes(&self) -> f64 {
        if self.is_streamed() { self.streamed_server } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::Overrides;

    use super::*;

    fn job(sets: &[&str]) -> Job {
        let text = "[data]\nformat = 'criteo'\ntrain = 'a'\n[model]\nkind = 'ffnn'\nhidden = [64, 8]\n[train]\nbatch_size = 2048\n";
        Job::parse(text, Path::new("job.toml"), &Overrides::sets(sets.iter().copied())).unwrap()
    }

    #[test]
    fn a_resident_job_needs_what_a_run_is_refused_by() {
        let job = job(&["optimizer={kind='adam'}"]);
        let (memory, footprint) = (RoleMemory::new(&job, 3, 2.0), job.dense_footprint_with(3).unwrap());
        assert_eq!(memory.weights, (4 * footprint.weights) as f64);
        assert_eq!((memory.worker_bytes(), memory.server_bytes()), (memory.resident_worker(), 0.0));
        let whole = footprint.weights + footprint.gradients + footprint.optimizer + footprint.activations;
        assert_eq!(memory.worker_bytes(), (whole + job.in_flight_bytes()) as f64);
    }

    #[test]
    fn a_streamed_job_needs_two_layers_here_and_all_of_them_at_the_servers() {
        let job = job(&["train.weights='streamed'"]);
        let (memory, footprint) = (RoleMemory::new(&job, 1, 2.0), job.streamed_footprint_with(1).unwrap());
        assert_eq!(memory.worker_bytes(), (footprint.worker_bytes() + job.in_flight_bytes()) as f64);
        assert_eq!(memory.server_bytes(), (footprint.store / 2 + footprint.server_messages) as f64);
    }
}
