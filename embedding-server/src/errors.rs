//! Why an embedding server could not start, or had to stop.

use std::time::Duration;

use zagros_coordinator_client::MemberError;
use zagros_store::StoreError;
use zagros_table::{ColdError, TableError};

/// Why an embedding server could not start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The job describes a table that cannot be made.
    #[error("table `{name}` cannot be made")]
    Table {
        /// Name in the job file.
        name: String,
        /// What is out of range.
        #[source]
        source: TableError,
    },
    /// The folder for rows beyond memory cannot be used.
    #[error("embedding server {index} has no place for rows beyond `cluster.memory`")]
    Cold {
        /// Position among the servers.
        index: u32,
        /// Which folder, and why.
        #[source]
        source: ColdError,
    },
    /// What rows may be saved to is no folder.
    #[error("embedding server {index} cannot tell where rows may be saved")]
    StorageFolder {
        /// Position among the servers.
        index: u32,
        /// Which text, and what is wrong with it.
        #[source]
        source: StoreError,
    },
    /// The system gives no thread.
    #[error("embedding server {index} cannot start the thread that maintains its tables")]
    Maintenance {
        /// Position among the servers.
        index: u32,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// The run did not take this server in.
    #[error("embedding server {index} could not join the run")]
    Join {
        /// Position among the servers.
        index: u32,
        /// Who was asked, and what it said.
        #[source]
        source: MemberError,
    },
    /// Another process took this server's place, or its lease ended.
    #[error("embedding server {index} is no longer part of the run: {reason}")]
    Fenced {
        /// Position among the servers.
        index: u32,
        /// In the coordinator's words.
        reason: String,
    },
    /// A listener failed.
    #[error("embedding server {index} cannot serve its {port} port")]
    Serve {
        /// Position among the servers.
        index: u32,
        /// `data` or `admin`.
        port: &'static str,
        /// What the transport says.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The coordinator is gone and nobody asks for rows: the run ended and this server did not hear of it.
    #[error(
        "embedding server {index} stops: {silence}, and no worker has asked it for anything in the last {idle:.1?} \
         (a longer `cluster.timeout_seconds` waits longer)"
    )]
    Abandoned {
        /// Position among the servers.
        index: u32,
        /// Who has not answered, and for how long.
        silence: String,
        /// How long there was no request.
        idle: Duration,
    },
}
