//! The parameter server process: rows of a model's embedding tables, looked up and updated over the network.
//!
//! ```text
//! datapath/  lookup and push: check everything, then touch the tables
//! storage/   describe, save, load: rows as files
//! tier/      rows beyond memory: the store behind the tables, its health, the thread that tends them
//! control/   the server as a member of a run: join, placement, load, stop
//! ```
//!
//! [`EmbeddingService`] is all of it without a socket; [`LocalShard`] is its face inside a process, and the same face
//! stands behind gRPC when [`run`] serves it.

mod control;
mod datapath;
mod errors;
mod grpc;
mod local;
mod metrics;
mod server;
mod service;
mod storage;
mod tables;
#[cfg(test)]
mod testing;
mod tier;

pub use errors::ServerError;
pub use local::LocalShard;
pub use server::{ServerConfig, run};
pub use service::EmbeddingService;
