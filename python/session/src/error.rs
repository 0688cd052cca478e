//! Errors of a session.

use std::time::Duration;

use zagros_coordinator_client::MemberError;
use zagros_embedding_client::ClientError;
use zagros_job::JobErrors;

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("{}", .0.plain_text())]
    Job(#[from] JobErrors),
    #[error("the settings are no job: {0}; keys and values are those of docs/job-file.md")]
    JobText(String),
    /// The coordinator did not admit this process.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// A lookup failed, or the servers have no placement.
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("cannot reach {what}: {reason}; give the coordinator's host:port")]
    Address { what: String, reason: String },
    #[error(
        "an earlier push failed, and rows may miss its gradients: {0}; make the layer again and load the newest save"
    )]
    Failed(String),
    /// A server refused a push: rows miss its gradients.
    #[error(
        "an earlier push was refused, and rows miss its gradients: {0}; load() the newest save and go on from there; \
         `embedding.non_finite = \"skip\"` (in Python a key of `settings`) leaves out rows whose gradients are not finite"
    )]
    RefusedPush(String),
    /// The coordinator has ended the run, or another process is in the place of this one.
    #[error("this process is no longer a worker of the run: {0}; start the embedding layer again")]
    Left(String),
    /// The run is drained: nothing more is trained.
    #[error(
        "the run is ending, and nothing more is trained in it: {0}; save() if you can, close() the embedding layer, and start again"
    )]
    Draining(String),
    #[error("the embedding layer is closed; make another one")]
    Closed,
    /// A child of `fork` has no threads, and its parent's sockets.
    #[error(
        "this process was forked from the one that made the embedding layer, and cannot use it; look rows up in the \
         main process, or start the other one with the method \"spawn\""
    )]
    Forked,
    /// No place becomes free: nothing is on its way to the servers.
    #[error(
        "the staleness window is full: {inside} batches were looked up for training, and none of them is being pushed; \
         call backward() on each, or look up under torch.no_grad() or in eval mode; a layer with push_at=\"step\" looks up \
         several batches in one step; release() gives up those that were looked up"
    )]
    WindowFull { inside: usize },
    /// A wait came to its deadline.
    #[error("gave up after {waited:.1?} of waiting {what}; look at the servers' logs, or give a longer timeout")]
    Timeout { what: &'static str, waited: Duration },
    /// The caller did not want to wait any longer.
    #[error("the wait was interrupted: {0}")]
    Interrupted(Box<dyn std::error::Error + Send + Sync>),
    /// The rows of a batch were taken before, or its gradients were pushed before.
    #[error("{0}")]
    Repeated(&'static str),
    #[error("the gradients of a batch have {found:?} values by table, and its rows have {expected:?}")]
    Shape { expected: Vec<usize>, found: Vec<usize> },
    #[error("there is no table {0}; the job has {1}")]
    NoTable(usize, usize),
    /// A server could not save or load.
    #[error(
        "{server} could not {what}: {reason}; check the folder and that all servers reach it under this name (in Python, \
         `stores` names the buckets of local servers)"
    )]
    Storage {
        server: String,
        /// `save its rows` or `load rows`.
        what: &'static str,
        reason: String,
    },
    #[error("a background task of the embedding layer ended early: {0}; this is a bug, report it")]
    Task(String),
}
