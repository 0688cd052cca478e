//! A program without libtorch.

use std::net::TcpListener;
use std::sync::Arc;

use zagros_collective::Rendezvous;
use zagros_job::Job;
use zagros_model::{Backend, ModelError};
use zagros_shell::{Exit, Failure};

const WORKERS: &str = "more than one dense worker (cluster.workers)";

/// Computes networks that have a step of their own.
pub(crate) fn backend() -> Backend {
    Backend::default()
}

/// Refuses a job that needs libtorch, by the first key that does.
pub(crate) fn check(job: &Job) -> Result<(), Failure> {
    let workers = job.cluster.has_groups().then_some(WORKERS);
    workers.or_else(|| job.autograd_key()).map_or(Ok(()), |key| Err(refusal(key)))
}

/// There is none: workers meet by libtorch.
pub(crate) fn rendezvous(_: &Job, _: TcpListener, _: String) -> Result<Arc<dyn Rendezvous>, Failure> {
    Err(refusal(WORKERS))
}

fn refusal(key: &'static str) -> Failure {
    Failure::from_error(Exit::Usage, ModelError::NoAutograd { key })
}
