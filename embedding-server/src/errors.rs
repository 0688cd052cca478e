//! Errors of an embedding server that end its process.

use std::path::PathBuf;
use std::time::Duration;

use zagros_coordinator_client::MemberError;
use zagros_log::{LogError, LogStopped};
use zagros_store::StoreError;
use zagros_table::{ClearError, ColdError, TableError};

/// Why an embedding server could not start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A table of the job has a setting out of range.
    #[error("table `{name}` cannot be made")]
    Table {
        /// Name of the table in the job file.
        name: String,
        /// The setting that is out of range.
        #[source]
        source: TableError,
    },
    /// The folder of the cold tier cannot be used.
    #[error("embedding server {index} cannot open the cold tier for rows beyond `cluster.memory`")]
    Cold {
        /// Index of the server.
        index: u32,
        /// The folder and the failure.
        #[source]
        source: ColdError,
    },
    /// A folder for saved rows is not a folder.
    #[error("embedding server {index} cannot use a folder for saved rows")]
    StorageFolder {
        /// Index of the server.
        index: u32,
        /// The text and what is wrong with it.
        #[source]
        source: StoreError,
    },
    /// The log of its rows cannot be used.
    #[error("embedding server {index} cannot use its log")]
    Log {
        /// Index of the server.
        index: u32,
        /// Which file, and why.
        #[source]
        source: LogError,
    },
    /// The log takes nothing in, so that nothing new can be made durable.
    #[error("embedding server {index} cannot write to its log")]
    LogStopped {
        /// Index of the server.
        index: u32,
        #[source]
        source: LogStopped,
    },
    /// Requests did not end, so that no base of the log was begun.
    #[error(
        "embedding server {index} cannot write a base of its log: after {waited:?} a request had not ended; it is tried again"
    )]
    LogBusy {
        /// Index of the server.
        index: u32,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A row of the log does not fit into its table.
    #[error("embedding server {index} cannot put a row of its log into its table")]
    LoggedRow {
        /// Index of the server.
        index: u32,
        /// Which table, and why.
        #[source]
        source: TableError,
    },
    /// The log has rows that do not fit into the tables of the job.
    #[error(
        "embedding server {index} cannot take over the rows of the log in {}: {difference}; start it with the job of those rows, or \
         move the folder away (delete it, if the rows are not needed) and resume the run from its newest checkpoint",
        folder.display()
    )]
    OtherTables {
        /// Index of the server.
        index: u32,
        /// The folder of the log.
        folder: PathBuf,
        /// What does not fit.
        difference: String,
    },
    #[error(
        "embedding server {index} has no cold tier in {} that belongs to its log: rows that had left memory are missing; restore \
         the folder, or delete the folder of the log and resume the run from its newest checkpoint", folder.display()
    )]
    OtherColdTier {
        /// Index of the server.
        index: u32,
        /// Where the cold tier should be.
        folder: PathBuf,
    },
    /// The tables cannot be emptied.
    #[error("embedding server {index} cannot empty its tables")]
    Clear {
        /// Index of the server.
        index: u32,
        /// What they wait for.
        #[source]
        source: ClearError,
    },
    /// The operating system cannot start a thread.
    #[error("embedding server {index} cannot start the maintenance thread of its tables")]
    Maintenance {
        /// Index of the server.
        index: u32,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The coordinator did not admit this server.
    #[error("embedding server {index} could not join the run")]
    Join {
        /// Index of the server.
        index: u32,
        /// The coordinator's name and its answer.
        #[source]
        source: MemberError,
    },
    /// Another process took this server's member slot, or the server's lease ended.
    #[error("embedding server {index} is no longer part of the run: {reason}")]
    Fenced {
        /// Index of the server.
        index: u32,
        /// The coordinator's reason.
        reason: String,
    },
    /// A listener failed.
    #[error("embedding server {index} cannot serve its {port} port")]
    Serve {
        /// Index of the server.
        index: u32,
        /// `data` or `admin`.
        port: &'static str,
        /// The error of the transport.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Coordinator and workers are silent. The run has ended, and this server has not been informed.
    #[error(
        "embedding server {index} stops: {silence}, and no worker has sent a request in the last {idle:.1?} \
         (a longer `cluster.timeout_seconds` waits longer)"
    )]
    Abandoned {
        /// Index of the server.
        index: u32,
        /// Who has not answered, and for how long.
        silence: String,
        /// How long ago the last request came.
        idle: Duration,
    },
}
