//! Errors of an embedding server that end its process.

use std::path::PathBuf;
use std::time::Duration;

use zagros_coordinator_client::MemberError;
use zagros_table::{ColdError, TableError};

/// What a server cannot do, for [`ServerError::Failed`].
pub(crate) const LOG: &str = "use its log";
pub(crate) const WRITE: &str = "write to its log";
pub(crate) const LOGGED_ROW: &str = "put a row of its log into its table";
pub(crate) const MAINTENANCE: &str = "start the maintenance thread of its tables";

/// Why an embedding server could not start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("table `{name}` cannot be made")]
    Table { name: String, source: TableError },
    #[error("embedding server {index} cannot open the cold tier for rows beyond `cluster.memory`")]
    Cold { index: u32, source: ColdError },
    #[error("embedding server {index} cannot {what}")]
    Failed { index: u32, what: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error(
        "embedding server {index} cannot write a base of its log: after {waited:?} a request had not ended; it is tried again"
    )]
    LogBusy { index: u32, waited: Duration },
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
    #[error("embedding server {index} could not join the run")]
    Join { index: u32, source: MemberError },
    /// Another process took this server's member slot, or the server's lease ended.
    #[error("embedding server {index} is no longer part of the run: {reason}")]
    Fenced { index: u32, reason: String },
    /// Coordinator and workers are silent. The run has ended, and this server has not been informed.
    #[error(
        "embedding server {index} stops: {silence}, and no worker has sent a request in the last {idle:.1?} \
         (a longer `cluster.timeout_seconds` waits longer)"
    )]
    Abandoned { index: u32, silence: String, idle: Duration },
}

impl ServerError {
    /// Turns the cause of a failure into that of a server that cannot do `what`.
    pub(crate) fn failed<E: std::error::Error + Send + Sync + 'static>(
        index: u32,
        what: &'static str,
    ) -> impl Fn(E) -> Self + Copy {
        move |source| Self::Failed { index, what, source: Box::new(source) }
    }
}
