//! The memory that a job needs, compared with the machine's before anything is allocated.

mod refusal;

use std::path::Path;

use zagros_job::threads::Machine;
use zagros_job::{Categorical, Job, Overrides, WeightStore};
use zagros_plumbing::memory::MemoryLimit;
use zagros_shell::Failure;

/// A process with libtorch, before it has read a row.
const PROCESS: u64 = 178 << 20;
/// An embedding server or a coordinator as a process of its own.
const SERVER_PROCESS: u64 = 24 << 20;
/// Distinct ids of a batch, on average: one in so many. Each batch in flight has rows for these.
const REPEATS: u64 = 4;
/// Parsed batches that wait for their turn.
const PARSED_BATCHES: u64 = 3;

/// Refuses a job that cannot fit into the memory of this process or this machine, and names the key to change. Warns of
/// one that may not fit.
pub(crate) fn check(job: &Job, machine: &Machine) -> Result<(), Failure> {
    let (need, limit) = (MemoryNeed::new(job, machine), MemoryLimit::of_this_process());
    need.check(limit)?;
    if let Some(warning) = need.warning(limit) {
        tracing::warn!("{warning}");
    }
    Ok(())
}

/// As [`check`], for a dense worker whose servers are other processes.
pub(crate) fn check_worker(job: &Job) -> Result<(), Failure> {
    MemoryNeed::of_worker(job).check(MemoryLimit::of_this_process())
}

/// The same job with streamed weights; `None` where they cannot be.
pub(crate) fn with_streamed_weights(job: &Job) -> Option<Job> {
    let sets = Overrides::sets(["train.weights=\"streamed\""]);
    Job::parse(&job.to_toml(), Path::new("job.toml"), &sets).ok()
}

/// Bytes that the processes of one machine need for a job, as far as they are known before the data is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryNeed {
    /// The programs themselves, with the rows that they shuffle.
    pub(crate) programs: u64,
    /// Dense networks of all workers, or the layers that they hold if the weights are streamed.
    pub(crate) dense: u64,
    /// Copies of the dense network while it is saved.
    pub(crate) saving: u64,
    /// The dense network at the servers, in mode `async` and with streamed weights.
    pub(crate) dense_rows: u64,
    /// Rows and gradients of all workers' batches between lookup and acknowledgement.
    pub(crate) batches: u64,
    /// The same, as far as ids repeat as they usually do.
    usual_batches: u64,
    /// Sketches of the admission filters of all servers.
    pub(crate) sketches: u64,
    /// Bytes that embedding servers may use for rows of features; `None` without `cluster.memory`.
    pub(crate) rows: Option<u64>,
    /// Mean bytes of a row over the tables.
    row: u64,
    weights: u64,
    holding: WeightHolding,
}

/// What a job's need of memory for its weights depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WeightHolding {
    /// Every worker has all. With streamed weights, the job would need so many bytes; `None` if they cannot be streamed.
    Resident { streamed: Option<u64> },
    /// A worker has two layers.
    Streamed {
        layers: u64,
        /// The most that they may take: `train.memory`.
        most: Option<u64>,
        /// Bytes of the values between layers, in all workers.
        activations: u64,
    },
}

impl MemoryNeed {
    pub(crate) fn new(job: &Job, machine: &Machine) -> Self {
        let mut need = Self::as_it_is(job, machine);
        if let WeightHolding::Resident { streamed } = &mut need.holding {
            *streamed = with_streamed_weights(job).map(|job| Self::as_it_is(&job, machine).at_least());
        }
        need
    }

    /// The need of a dense worker alone. What servers hold is in other processes.
    pub(crate) fn of_worker(job: &Job) -> Self {
        Self { dense_rows: 0, sketches: 0, ..Self::new(job, &Machine::this()) }
    }

    fn as_it_is(job: &Job, machine: &Machine) -> Self {
        let workers = machine.workers.max(1) as u64;
        let servers = u64::from(job.cluster.servers);
        let tables = job.tables.len().max(1) as u64;
        let others = if machine.servers > 0 { servers.saturating_mul(SERVER_PROCESS) } else { 0 };
        let rows = job.cluster.memory.map(|memory| memory.saturating_mul(servers));
        let need = Self {
            programs: workers.saturating_mul(PROCESS + shuffled_bytes(job)).saturating_add(others),
            dense: 0,
            saving: 0,
            dense_rows: 0,
            batches: job.in_flight_bytes().saturating_mul(workers),
            usual_batches: usual_batch_bytes(job).saturating_mul(workers),
            sketches: sketch_bytes(job).saturating_mul(servers),
            rows,
            row: (job.tables.iter().map(|table| table.row_bytes() as u64).sum::<u64>() / tables).max(1),
            weights: job.dense_parameters().unwrap_or(0),
            holding: WeightHolding::Resident { streamed: None },
        };
        match job.train.weights {
            WeightStore::Streamed => need.with_streamed(job, workers, machine.servers as u64),
            WeightStore::Auto | WeightStore::Resident => need.with_resident(job, workers),
        }
    }

    fn with_resident(self, job: &Job, workers: u64) -> Self {
        let footprint = job.dense_footprint().unwrap_or_default();
        let at_servers = |table: zagros_job::Table| self.weights * table.row_bytes() as u64 / table.dim as u64;
        Self {
            dense: footprint.peak_bytes().saturating_mul(workers),
            saving: footprint.saving,
            dense_rows: job.dense_table().map_or(0, at_servers),
            ..self
        }
    }

    /// `servers` are those with a process of their own.
    fn with_streamed(self, job: &Job, workers: u64, servers: u64) -> Self {
        let footprint = job.streamed_footprint().unwrap_or_default();
        // What is beyond cluster.memory goes to disk, whether it is of the dense network or not.
        let store = footprint.store.min(self.rows.unwrap_or(u64::MAX));
        Self {
            dense: footprint.worker_bytes().saturating_mul(workers),
            dense_rows: store.saturating_add(footprint.server_messages.saturating_mul(servers)),
            rows: self.rows.map(|rows| rows - store),
            holding: WeightHolding::Streamed {
                layers: footprint.layers,
                most: job.train.memory,
                activations: footprint.activations.saturating_mul(workers),
            },
            ..self
        }
    }

    /// Bytes needed without any row.
    pub(crate) fn at_least(&self) -> u64 {
        let parts = [self.programs, self.dense, self.saving, self.dense_rows, self.batches, self.sketches];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// The peak without any row, with as many distinct ids in a batch as there usually are.
    pub(crate) fn usual_peak(&self) -> u64 {
        (self.at_least() - self.batches).saturating_add(self.usual_batches)
    }
}

/// Rows of the shuffle window of one worker: numbers as f32, ids as u64, and the label.
fn shuffled_bytes(job: &Job) -> u64 {
    (job.data.shuffle_rows as u64).saturating_mul(parsed_bytes(job))
}

fn parsed_bytes(job: &Job) -> u64 {
    let ids = |feature: &Categorical| feature.values.sequence().map_or(1, |sequence| sequence.length as u64);
    4 * (job.features.numeric_inputs() as u64 + 1) + 8 * job.features.categorical.iter().map(ids).sum::<u64>()
}

/// What the network reads of one worker's batch and the slopes of it, batches that are parsed, and rows in flight of distinct ids.
fn usual_batch_bytes(job: &Job) -> u64 {
    let sample = 2 * 4 * job.looked_up_values() + PARSED_BATCHES * parsed_bytes(job);
    (job.train.batch_size as u64).saturating_mul(sample).saturating_add(job.in_flight_bytes() / REPEATS)
}

/// The sketches of the admission filters of one server.
pub(crate) fn sketch_bytes(job: &Job) -> u64 {
    let configs = job.tables.iter().map(|table| table.table_config());
    configs.map(|config| config.admission.sketch_bytes(config.stripes)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const GIB: u64 = 1 << 30;

    pub(super) fn job(sets: &[&str]) -> Job {
        let text = "[data]\nformat = 'criteo'\ntrain = 'a'\n[embedding]\ndim = 16\n[cluster]\ncold_folder = 'cold'\n";
        Job::parse(text, Path::new("job.toml"), &Overrides::sets(sets.iter().copied())).unwrap()
    }

    fn need(sets: &[&str], workers: usize) -> MemoryNeed {
        MemoryNeed::new(&job(sets), &Machine { cores: 4, workers, servers: 1 })
    }

    #[test]
    fn every_worker_of_the_machine_counts() {
        let (one, three) = (need(&[], 1), need(&[], 3));
        assert_eq!((three.dense, three.batches), (3 * one.dense, 3 * one.batches));
    }

    /// Eight layers of 4,096: 119 million weights.
    pub(super) const LARGE: &str = "model={kind='ffnn', hidden=[4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096]}";

    #[test]
    fn streamed_weights_count_as_two_layers_here_and_a_row_of_state_at_the_servers() {
        let sets = [LARGE, "train.weights=streamed", "train.batch_size=256", "train.threads=1"];
        let footprint = job(&sets).streamed_footprint().unwrap();
        let processes = need(&sets, 1);
        assert_eq!((processes.dense, processes.saving), (footprint.worker_bytes(), 0));
        assert_eq!(processes.dense_rows, footprint.store + footprint.server_messages);
        let resident = need(&[LARGE, "train.batch_size=256", "train.threads=1"], 1);
        assert!(processes.dense < resident.dense / 3, "{} {}", processes.dense, resident.dense);
        // In one process the rows are in it, and no messages of a server.
        let one = MemoryNeed::new(&job(&sets), &Machine { cores: 4, workers: 1, servers: 0 });
        assert_eq!(one.dense_rows, footprint.store);
        assert_eq!(MemoryNeed::of_worker(&job(&sets)).dense_rows, 0);
        let WeightHolding::Resident { streamed } = resident.holding else { panic!("{resident:?}") };
        assert_eq!(streamed, Some(processes.at_least()));
    }

    #[test]
    fn streamed_weights_beyond_the_memory_of_servers_are_on_disk() {
        let sets = [LARGE, "train.weights=streamed", "cluster.memory=1GiB", "cluster.cold_folder=cold"];
        let (need, footprint) = (need(&sets, 1), job(&sets).streamed_footprint().unwrap());
        assert!(footprint.store > GIB);
        assert_eq!((need.dense_rows, need.rows), (GIB + footprint.server_messages, Some(0)));
    }

    #[test]
    fn what_cannot_be_streamed_has_no_streamed_form() {
        assert!(with_streamed_weights(&job(&["train.ema=0.9"])).is_none());
        let streamed = with_streamed_weights(&job(&[LARGE])).unwrap();
        assert_eq!(streamed.train.weights, WeightStore::Streamed);
        assert_eq!(with_streamed_weights(&streamed), Some(streamed));
    }
}
