//! Errors of an embedding server that end its process.

use std::path::PathBuf;
use std::time::Duration;

use zagros_coordinator_client::MemberError;
use zagros_rows::log::{LogError, LogStopped};
use zagros_store::StoreError;
use zagros_table::{ClearError, ColdError, TableError};

/// Why an embedding server could not start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("table `{name}` cannot be made")]
    Table { name: String, source: TableError },
    #[error("embedding server {index} cannot open the cold tier for rows beyond `cluster.memory`")]
    Cold { index: u32, source: ColdError },
    #[error("embedding server {index} cannot use a folder for saved rows")]
    StorageFolder { index: u32, source: StoreError },
    #[error("embedding server {index} cannot use its log")]
    Log { index: u32, source: LogError },
    /// The log takes nothing in, so that nothing new can be made durable.
    #[error("embedding server {index} cannot write to its log")]
    LogStopped { index: u32, source: LogStopped },
    #[error(
        "embedding server {index} cannot write a base of its log: after {waited:?} a request had not ended; it is tried again"
    )]
    LogBusy { index: u32, waited: Duration },
    #[error("embedding server {index} cannot put a row of its log into its table")]
    LoggedRow { index: u32, source: TableError },
    #[error(
        "embedding server {index} cannot take over the rows of the log in {}: {difference}; start it with the job of those rows, or \
         move the folder away (delete it, if the rows are not needed) and resume the run from its newest checkpoint",
        folder.display()
    )]
    OtherTables { index: u32, folder: PathBuf, difference: String },
    #[error(
        "embedding server {index} has no cold tier in {} that belongs to its log in {}: rows that had left memory are missing; restore \
         what was exchanged, or delete the folder of the log and resume the run from its newest checkpoint",
        folder.display(), log.display()
    )]
    OtherColdTier { index: u32, folder: PathBuf, log: PathBuf },
    #[error("embedding server {index} cannot empty its tables")]
    Clear { index: u32, source: ClearError },
    #[error("embedding server {index} cannot start the maintenance thread of its tables")]
    Maintenance { index: u32, source: std::io::Error },
    #[error("embedding server {index} could not join the run")]
    Join { index: u32, source: MemberError },
    /// Another process took this server's member slot, or the server's lease ended.
    #[error("embedding server {index} is no longer part of the run: {reason}")]
    Fenced { index: u32, reason: String },
    #[error("embedding server {index} cannot serve its {port} port")]
    Serve {
        index: u32,
        /// `data` or `admin`.
        port: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Coordinator and workers are silent. The run has ended, and this server has not been informed.
    #[error(
        "embedding server {index} stops: {silence}, and no worker has sent a request in the last {idle:.1?} \
         (a longer `cluster.timeout_seconds` waits longer)"
    )]
    Abandoned { index: u32, silence: String, idle: Duration },
}
