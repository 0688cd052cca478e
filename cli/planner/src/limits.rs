//! What bounds a run: its samples a second, and the memory of each role, from the job alone. The sums of memory are those of `zagros-job`,
//! which a run is refused by as well.

use zagros_job::{Job, WeightStore};

use crate::machines::Machines;
use crate::stages::{PlanStage, StageTimes};
use crate::work::SampleWork;

/// Stages overlap, but they wait for one another where two of them take about as long: the time of a sample is the p-norm of the times
/// of all limits. With p = 6, two equal limits make a run 12 % slower than one of them alone.
const P: f64 = 6.0;
/// How much the steps of a worker differ: standard deviation over mean. Workers that step together wait for the slowest.
const STEP_VARIATION: f64 = 0.03;

/// What a run can be bounded by.
#[derive(Clone, Debug, PartialEq)]
pub enum RateLimit {
    /// The thread of each worker that makes the steps.
    DenseThread,
    Parsers,
    Cores {
        group: String,
    },
    Servers,
    Network {
        group: String,
    },
    /// The disks of the embedding servers, with the rows that are not in memory.
    Disks,
    /// The way to the servers and back, which at most τ + 1 batches make at once.
    RoundTrips,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RateLimits {
    /// Of the whole run, the tightest first.
    pub rates: Vec<(RateLimit, f64)>,
}

impl RateLimits {
    pub(crate) fn new(work: &SampleWork, stages: &StageTimes, machines: &Machines) -> Self {
        let (workers, servers) = (machines.worker_count(), machines.server_count());
        let mut rates = Vec::new();
        let mut bound = |limit, rate: f64| {
            if rate.is_finite() && rate > 0.0 {
                rates.push((limit, rate));
            }
        };
        let slowest = if workers > 1.0 { 1.0 + STEP_VARIATION * (2.0 * workers.ln()).sqrt() } else { 1.0 };
        bound(RateLimit::DenseThread, workers / (stages.dense_thread * slowest));
        let parsers = machines.groups.iter().filter(|group| group.workers > 0.0);
        let parsers: f64 = parsers.map(|group| group.count * group.workers * group.threads.parse as f64).sum();
        bound(RateLimit::Parsers, parsers / stages.of_stage(PlanStage::Parse));
        for group in &machines.groups {
            let of_workers = group.workers * group.count / workers;
            let of_servers = if servers > 0.0 { group.servers * group.count / servers } else { 0.0 };
            let cpu = of_workers * stages.worker_cpu() + of_servers * stages.server_cpu();
            bound(RateLimit::Cores { group: group.name.clone() }, group.cores * group.count / cpu);
            let reduced = work.reduce_bytes(workers);
            // Streamed weights leave the servers once for all workers, which pass them on.
            let once =
                if work.traffic.is_streamed { work.traffic.pulled / work.batch * (1.0 - 1.0 / workers) } else { 0.0 };
            let moved = work.bytes_up.max(work.bytes_down);
            let bytes = of_workers * (moved + reduced) + of_servers * (moved - once);
            if servers > 0.0 {
                let name = group.name.clone();
                bound(RateLimit::Network { group: name }, group.bytes_per_second() * group.count / bytes);
            }
        }
        if servers > 0.0 {
            let with_servers = machines.groups.iter().filter(|group| group.servers > 0.0);
            let threads = with_servers
                .map(|group| group.count * (group.servers * group.threads.server as f64).min(group.cores))
                .sum::<f64>();
            bound(RateLimit::Servers, threads / stages.server_cpu());
        }
        bound(RateLimit::Disks, machines.disk_count() / stages.disk);
        let cycle = stages.round_trips + stages.dense_thread;
        bound(RateLimit::RoundTrips, workers * (work.staleness + 1.0) / cycle);
        rates.sort_by(|a, b| a.1.total_cmp(&b.1));
        Self { rates }
    }

    pub fn samples_per_second(&self) -> f64 {
        let Some((_, tightest)) = self.rates.first() else { return 0.0 };
        // The same network or thread twice is no second limit.
        let sum: f64 = self.rates.iter().map(|(_, rate)| (tightest / rate).powf(P)).sum();
        tightest / sum.powf(1.0 / P)
    }

    pub fn bottleneck(&self) -> Option<&RateLimit> {
        self.rates.first().map(|(limit, _)| limit)
    }
}

impl RateLimit {
    pub fn name(&self) -> String {
        match self {
            Self::DenseThread => "dense thread of each worker".to_owned(),
            Self::Parsers => "parser threads".to_owned(),
            Self::Cores { group } => format!("cores of {group}"),
            Self::Servers => "threads of the embedding servers".to_owned(),
            Self::Network { group } => format!("network of {group}"),
            Self::Disks => "disks of the embedding servers".to_owned(),
            Self::RoundTrips => "round trips to the servers".to_owned(),
        }
    }

    /// What to change first.
    pub fn advice(&self, stages: &StageTimes, machines: &Machines) -> &'static str {
        let has_device = machines.groups.iter().any(|group| group.workers > 0.0 && group.gpu.is_some());
        match self {
            Self::DenseThread if stages.exposed_reduce > 0.3 * stages.dense_thread => {
                "a larger train.batch_size or fewer workers with more threads each: the sum over the workers does not hide behind the \
                 backward pass; or a faster network between them"
            }
            Self::DenseThread if stages.exposed_stream > 0.3 * stages.dense_thread => {
                "a larger train.batch_size, so that streamed weights arrive while the arithmetic runs; or cluster.wire = \"bf16\", or a \
                 faster network to the servers"
            }
            Self::DenseThread if has_device => {
                "a faster device for each worker, or more workers; train.precision = \"bf16\""
            }
            Self::DenseThread => {
                "more train.threads for each worker, or more workers; train.precision = \"bf16\" where the processor has units for it"
            }
            Self::Parsers => "more data.threads, or a format that parses faster",
            Self::Cores { .. } => "more or faster cores; nothing else helps while all of them are busy",
            Self::Servers => "more embedding servers, or more cluster.server_threads",
            Self::Network { .. } => "a faster network, cluster.wire = \"f16\", or more machines for this role",
            Self::Disks => {
                "a larger cluster.memory, so that fewer rows are on disk; faster disks, or more machines with servers"
            }
            Self::RoundTrips => "a larger train.staleness or train.batch_size, or a network with shorter round trips",
        }
    }
}

/// Bytes of a dense worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerMemory {
    /// Weights and gradients, one copy of the gradients for each thread. With streamed weights, those of two layers, and messages.
    pub weights: f64,
    /// Optimiser state of the dense network, and copies of weights.
    pub optimizer: f64,
    /// Values between layers.
    pub activations: f64,
    /// Rows and gradients between lookup and acknowledgement.
    pub batches: f64,
}

/// Bytes of each process, with the whole network in each worker and with streamed weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoleMemory {
    /// Whether the weights of the job are streamed.
    pub is_streamed: bool,
    pub resident: WorkerMemory,
    pub streamed: WorkerMemory,
    /// With streamed weights, a server's part of them with their optimiser state, and its messages.
    pub streamed_server: f64,
}

impl WorkerMemory {
    pub fn all_bytes(&self) -> f64 {
        self.weights + self.optimizer + self.activations + self.batches
    }
}

impl RoleMemory {
    /// The memory of a worker with `threads` of the dense step, and of each of `servers` servers.
    pub fn new(job: &Job, threads: usize, servers: f64) -> Self {
        let mut job = job.clone();
        job.train.threads = threads;
        let resident = job.dense_footprint().unwrap_or_default();
        let streamed = job.streamed_footprint().unwrap_or_default();
        let worker = |weights: u64, optimizer: u64, activations: u64| WorkerMemory {
            weights: weights as f64,
            optimizer: optimizer as f64,
            activations: activations as f64,
            batches: job.in_flight_bytes() as f64,
        };
        let (weights, optimizer) = (resident.weights + resident.gradients, resident.optimizer + resident.copies);
        Self {
            is_streamed: job.train.weights == WeightStore::Streamed,
            resident: worker(weights, optimizer, resident.activations),
            streamed: worker(streamed.layers + streamed.messages, 0, streamed.activations),
            streamed_server: streamed.store as f64 / servers.max(1.0) + streamed.server_messages as f64,
        }
    }

    /// With the weights where the job has them.
    pub fn job_worker(&self) -> &WorkerMemory {
        if self.is_streamed { &self.streamed } else { &self.resident }
    }

    /// A server's part of the job's dense network.
    pub fn server_bytes(&self) -> f64 {
        if self.is_streamed { self.streamed_server } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::Overrides;

    use super::*;

    #[test]
    fn two_equal_limits_make_a_run_slower_than_one() {
        let limits =
            |rates: &[f64]| RateLimits { rates: rates.iter().map(|rate| (RateLimit::Parsers, *rate)).collect() };
        assert_eq!(limits(&[100.0]).samples_per_second(), 100.0);
        let both = limits(&[100.0, 100.0]).samples_per_second();
        assert!((88.0..90.0).contains(&both), "{both}");
        assert!(limits(&[100.0, 300.0]).samples_per_second() > 99.9);
        assert_eq!(limits(&[]).samples_per_second(), 0.0);
    }

    fn job(sets: &[&str]) -> Job {
        let text = "[data]\nformat = 'criteo'\ntrain = 'a'\n[model]\nkind = 'ffnn'\nhidden = [64, 8]\n[train]\nbatch_size = 2048\n";
        Job::parse(text, Path::new("job.toml"), &Overrides::sets(sets.iter().copied())).unwrap()
    }

    #[test]
    fn a_resident_job_needs_what_a_run_is_refused_by() {
        let job = job(&["optimizer={kind='adam'}", "train.threads=3"]);
        let (memory, footprint) = (RoleMemory::new(&job, 3, 2.0), job.dense_footprint().unwrap());
        assert_eq!(memory.job_worker().weights, (4 * footprint.weights) as f64);
        assert_eq!((memory.job_worker(), memory.server_bytes()), (&memory.resident, 0.0));
        let whole = footprint.weights + footprint.gradients + footprint.optimizer + footprint.activations;
        assert_eq!(memory.job_worker().all_bytes(), (whole + job.in_flight_bytes()) as f64);
    }

    #[test]
    fn a_streamed_job_needs_two_layers_here_and_all_of_them_at_the_servers() {
        let job = job(&["train.weights='streamed'", "train.threads=1"]);
        let (memory, footprint) = (RoleMemory::new(&job, 1, 2.0), job.streamed_footprint().unwrap());
        assert_eq!(memory.job_worker().all_bytes(), (footprint.worker_bytes() + job.in_flight_bytes()) as f64);
        assert_eq!(memory.server_bytes(), (footprint.store / 2 + footprint.server_messages) as f64);
    }
}
