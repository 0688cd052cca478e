//! Who takes part, and how they talk.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

/// Who takes part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cluster {
    /// Embedding servers.
    pub servers: u32,
    /// Dense workers.
    pub workers: u32,
    /// As many of them must be left for the run to go on without one that is lost; `None`: all.
    pub min_workers: Option<u32>,
    /// Buckets that rows are placed by; fixed for the life of a model.
    pub buckets: u32,
    /// `host:port` of the coordinator's gRPC; port 0 lets the system choose.
    pub coordinator: String,
    /// Where embedding servers listen, one per server, or one for all with port 0 or a wildcard host.
    pub server_addresses: Vec<String>,
    /// `host:port` where each dense worker of several listens for the others; port 0 lets the system choose.
    pub worker_address: String,
    /// What sums the gradients of several dense workers.
    pub collective: Collective,
    /// `host:port` of each role's HTTP admin port; port 0 lets the system choose.
    pub admin: String,
    /// How long any wait for another process may last.
    pub timeout: Duration,
    /// How long a member may be silent.
    pub lease: Duration,
    /// Values of rows and gradients on the wire.
    pub wire: Wire,
    /// Threads of one server that serve requests.
    pub server_threads: usize,
    /// Bytes that the rows of one server may take; `None` for no limit.
    pub memory: Option<u64>,
    /// Where a server keeps rows that its memory does not hold; `None` for a folder below the output folder.
    pub cold_folder: Option<PathBuf>,
}

/// What sums the gradients of several dense workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Collective {
    /// Over TCP between the processors.
    Gloo,
    /// Between CUDA devices.
    Nccl,
}

/// Values of rows and gradients on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Wire {
    /// Exact.
    F32,
    /// Half the bytes, 11 significant bits, small range.
    F16,
    /// Half the bytes, 8 significant bits, full range.
    Bf16,
}
