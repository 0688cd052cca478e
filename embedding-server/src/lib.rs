//! The embedding server: holds the rows of a model's embedding tables, and looks them up and updates them over the
//! network.
//!
//! ```text
//! datapath/  lookup and push: check everything, then touch the tables
//! storage/   describe, save, load: rows as files
//! tier/      rows beyond memory: the cold store, its health, the maintenance thread
//! control/   the server as a member of a run: join, placement, load, stop
//! resharding/ buckets that move between servers while the run trains
//! ```
//!
//! [`EmbeddingService`] is the server without a socket. [`LocalShard`] calls it inside a process. [`run`] serves the
//! same [`LocalShard`] over gRPC.

mod control;
mod datapath;
mod durability;
mod errors;
mod grpc;
mod local_shard;
mod metrics;
mod resharding;
mod server;
mod service;
mod storage;
mod tables;
#[cfg(test)]
mod testing;
mod tier;

pub use errors::ServerError;
pub use local_shard::LocalShard;
pub use resharding::LocalMove;
pub use server::{ServerConfig, ServerEnd, run};
pub use service::EmbeddingService;
