//! `[cluster]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Who takes part, and where they listen.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Cluster {
    /// Embedding servers. In one process as many are embedded, without sockets.
    #[schemars(range(min = 1, max = 1024))]
    pub(crate) servers: u32,
    /// Dense workers. Each step is made on the mean loss over all workers' batches, so `train.batch_size` is that of
    /// one worker; several are started by `zagros up` or by hand, never by `zagros train`.
    #[schemars(range(min = 1, max = 1024))]
    pub(crate) workers: u32,
    /// As many dense workers must be left for training to go on without one that is lost and that nobody replaces
    /// within `timeout_seconds`; worker 0, which reports and saves, is always needed. One that comes back later joins
    /// the others again. In mode `hybrid` only. Default: all of them, so that the run ends.
    #[schemars(range(min = 1, max = 1024))]
    pub(crate) min_workers: Option<u32>,
    /// Buckets that rows are placed by, at least one per server; fixed for the life of a model.
    #[schemars(range(min = 1, max = 65536))]
    pub(crate) buckets: u32,
    /// `host:port` of the coordinator's gRPC; port 0 lets the system choose, which only `zagros up` can follow.
    pub(crate) coordinator: String,
    /// `host:port` of each embedding server's gRPC, in the order of their indices; a single one serves
    /// for all with port 0, or with host `0.0.0.0` or `[::]` when each has a host of its own.
    #[schemars(length(min = 1))]
    pub(crate) server_addresses: Vec<String>,
    /// `host:port` where each dense worker of a run of several listens for the others; port 0 lets the system choose.
    pub(crate) worker_address: String,
    /// What sums the gradients of several dense workers; of no use to one.
    pub(crate) collective: Collective,
    /// `host:port` of each role's HTTP port for health, metrics and status; port 0 lets the system choose.
    pub(crate) admin: String,
    /// How long any wait for another process may last, in seconds.
    #[schemars(range(max = 86400.0), extend("exclusiveMinimum" = 0.0))]
    pub(crate) timeout_seconds: f64,
    /// How long a member may be silent before it counts as gone, in seconds.
    #[schemars(range(max = 86400.0), extend("exclusiveMinimum" = 0.0))]
    pub(crate) lease_seconds: f64,
    /// Form of rows and gradients on the wire between processes.
    pub(crate) wire: Wire,
    /// Threads of one embedding server's process that serve requests; 0 plans them: all cores of its machine, or its
    /// part of them under `zagros up`.
    #[schemars(range(max = 1024))]
    pub(crate) server_threads: usize,
    /// Memory that one embedding server may take for rows, a number with a unit such as `"2GiB"` or `"500 MB"`; at least
    /// 64 KiB. Rows beyond it leave as `embedding.evict` and `embedding.victims` say. It holds rows, their index, memory
    /// that is kept between requests, and of the buffers of the store that rows leave for (an eighth of it, 4 MiB at
    /// least and 512 MiB at most) all but the first 4 MiB. The program itself and requests under way, some 64 MiB, come on
    /// top, and during a save copies of rows that change meanwhile. Default: no limit.
    #[schemars(length(min = 1))]
    pub(crate) memory: Option<String>,
    /// Folder for the rows that a server's memory does not hold. Default: one below `output.folder`.
    #[schemars(length(min = 1))]
    pub(crate) cold_folder: Option<String>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            servers: 1,
            workers: 1,
            min_workers: None,
            buckets: 1024,
            coordinator: "127.0.0.1:7700".to_owned(),
            server_addresses: vec!["127.0.0.1:0".to_owned()],
            worker_address: "127.0.0.1:0".to_owned(),
            collective: Collective::Gloo,
            admin: "127.0.0.1:0".to_owned(),
            timeout_seconds: 30.0,
            lease_seconds: 10.0,
            wire: Wire::F32,
            server_threads: 0,
            memory: None,
            cold_folder: None,
        }
    }
}

/// What sums the gradients of several workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Collective {
    /// Over TCP between the processors.
    Gloo,
    /// Between CUDA devices, one for each worker of a machine; in programs built with the feature `nccl`
    /// (docs/nccl.md). Not in mode `sync`: it promises no order of the additions.
    Nccl,
}

/// Form of rows and gradients on the wire.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Wire {
    /// Exact.
    F32,
    /// Half the bytes: 11 significant bits, largest value 65504.
    F16,
    /// Half the bytes: 8 significant bits, the range of f32.
    Bf16,
}
