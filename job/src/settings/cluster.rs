//! `[cluster]`: who takes part, and how they talk.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Job;
use super::numbers::{seconds, size};

section! {
    /// Who takes part, and where they listen.
    #[schemars(rename = "Cluster")]
    pub struct ClusterSettings {
        /// Embedding servers. `zagros train` runs all of them in its own process, without sockets.
        #[schemars(range(min = 1, max = 1024))]
        pub servers: u32 = 1,
        /// Dense workers. Each step is made on the mean loss over all workers' batches, so `train.batch_size` is that of one worker.
        /// `zagros up` starts several workers, `zagros train` one.
        #[schemars(range(min = 1, max = 1024))]
        pub workers: u32 = 1,
        /// Dense workers that must be left for training to continue without a lost worker that is not replaced within
        /// `timeout_seconds`. Worker 0, which reports and saves, is always needed. A worker that comes back later joins the others
        /// again. In modes `hybrid` and `async` only. Default: all of them, so that the run ends.
        #[schemars(range(min = 1, max = 1024))]
        pub min_workers: Option<u32> = None,
        /// Dense workers that the run takes at most. Up to so many may join while it trains: `zagros scale workers=N` asks for them,
        /// or you start one more `zagros dense-worker`. In mode `hybrid` each step then has the samples of all, so the global batch
        /// grows. In modes `hybrid` and `async` only. Default: `workers`, so that none joins.
        #[schemars(range(min = 1, max = 1024))]
        pub max_workers: Option<u32> = None,
        /// Buckets that rows are placed by, at least one per server. The number is fixed for the life of a model.
        #[schemars(range(min = 1, max = 65536))]
        pub buckets: u32 = 1024,
        /// `host:port` of the coordinator's gRPC. Port 0 lets the system choose, which only `zagros up` can follow.
        pub coordinator: String = "127.0.0.1:7700".to_owned(),
        /// `host:port` of each embedding server's gRPC, in the order of their indices. A single address serves for all with port 0, or
        /// with host `0.0.0.0` or `[::]` if each server has its own host.
        #[schemars(length(min = 1))]
        pub server_addresses: Vec<String> = vec!["127.0.0.1:0".to_owned()],
        /// `host:port` where each dense worker of a run of several listens for the others. Port 0 lets the system choose.
        pub worker_address: String = "127.0.0.1:0".to_owned(),
        /// What sums the gradients of several dense workers. A single worker does not use it.
        pub collective: CollectiveKind = CollectiveKind::Gloo,
        /// `host:port` of each role's HTTP port for health, metrics and status. Port 0 lets the system choose.
        pub admin: String = "127.0.0.1:0".to_owned(),
        /// Timeout of every wait for another process, in seconds.
        #[serde(rename = "timeout_seconds", with = "seconds")]
        #[schemars(with = "f64", range(max = 86400.0), extend("exclusiveMinimum" = 0.0))]
        pub timeout: Duration = Duration::from_secs(30),
        /// Time for which a member may be silent before it counts as lost, in seconds.
        #[serde(rename = "lease_seconds", with = "seconds")]
        #[schemars(with = "f64", range(max = 86400.0), extend("exclusiveMinimum" = 0.0))]
        pub lease: Duration = Duration::from_secs(10),
        /// Form of rows and gradients on the wire between processes.
        #[schemars(extend("x-change" = "learning"))]
        pub wire: WireFormat = WireFormat::F32,
        /// Threads of one embedding server's process that serve requests; 0 plans them: all cores of its machine, or its part of them
        /// under `zagros up`.
        #[schemars(range(max = 1024))]
        pub server_threads: usize = 0,
        /// Memory that one embedding server may take for rows: a number with a unit, such as `"2GiB"` or `"500 MB"`; at least 64 KiB.
        /// Rows beyond it leave as `embedding.eviction` says. It holds rows, their index, memory that is kept
        /// between requests, and the index of the rows on disk, some 12 bytes for each, which may take three quarters of it. The program
        /// itself, requests in flight, the buffers of the cold tier and the first 4 MiB of its index, some 64 MiB, come on top; so do
        /// copies of rows that change during a save, and the sketches of `embedding.admission`. Default: no limit.
        #[serde(with = "size")]
        #[schemars(with = "Option<String>", extend("x-form" = "size"))]
        pub memory: Option<u64> = None,
        /// Folder for the rows that do not fit into a server's memory. Default: under `zagros up` a folder in the run folder,
        /// else one below `output.folder`.
        #[schemars(length(min = 1))]
        pub cold_folder: Option<PathBuf> = None,
        /// What survives the end of an embedding server's process besides checkpoints. In one process (`zagros train`) it is always
        /// `"checkpoint"`: if that process ends, no worker is left to train.
        pub durability: DurabilityLevel = DurabilityLevel::Process,
        /// Folder for the servers' logs, where `durability` asks for them. Default: under `zagros up` a folder in the run folder, else
        /// one below `output.folder`.
        #[schemars(length(min = 1))]
        pub log_folder: Option<PathBuf> = None,
        /// Lets roles listen on addresses that other machines reach without proof of membership: a process that reaches
        /// such a port reads, changes and deletes rows. Without it, a role that has no secret of the run (docs/security.md) listens on
        /// loopback addresses only.
        pub insecure: bool = false,
    }
}

impl ClusterSettings {
    /// Dense workers that the run may have at the same time.
    pub fn most_workers(&self) -> u32 {
        self.max_workers.unwrap_or(self.workers).max(self.workers)
    }

    /// Dense workers that must be left for training to continue.
    pub fn least_workers(&self) -> u32 {
        self.min_workers.unwrap_or(self.workers)
    }

    /// Whether there are several dense workers, or may be: they then form process groups.
    pub fn has_groups(&self) -> bool {
        self.most_workers() > 1
    }
}

impl Job {
    /// The folder for the rows of this embedding server that its memory has no room for. It is removed when the server ends.
    pub fn cold_folder(&self, server: u32) -> PathBuf {
        match &self.cluster.cold_folder {
            Some(below) => below.join(format!("server-{server}")),
            None => self.output.folder.join(format!("cold-server-{server}")),
        }
    }
}

/// What an embedding server has done before it acknowledges a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Durability")]
pub enum DurabilityLevel {
    /// It has handed the changed rows to the system, in its log: an acknowledged push survives the end of the process. After a
    /// reset of the machine the run goes back to its newest checkpoint.
    Process,
    /// It has written the changed rows to the disk, in its log: an acknowledged push survives a loss of power as well. Pushes that
    /// arrive together share a write.
    Machine,
    /// It has changed the rows in memory, and has no log. What was pushed since the newest checkpoint is lost with the process.
    Checkpoint,
}

impl DurabilityLevel {
    pub fn has_log(self) -> bool {
        self != Self::Checkpoint
    }
}

/// What sums the gradients of several dense workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Collective")]
pub enum CollectiveKind {
    /// Over TCP between the processors.
    Gloo,
    /// Between CUDA devices, one for each worker of a machine, in programs built with the feature `nccl` (docs/nccl.md). Not in
    /// mode `sync`: NCCL adds in no fixed order.
    Nccl,
}

/// Form of rows and gradients on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Wire")]
pub enum WireFormat {
    /// Exact.
    F32,
    /// Half the bytes: 11 significant bits, largest value 65504.
    F16,
    /// Half the bytes: 8 significant bits, the range of f32.
    Bf16,
}
