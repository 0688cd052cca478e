//! A program without libtorch.

use std::net::TcpListener;
use std::sync::Arc;

use zagros_collective::Rendezvous;
use zagros_job::Job;
use zagros_model::{Backend, ModelError};
use zagros_shell::{Exit, Failure};

/// Computes networks that have a step of their own.
pub(crate) fn backend() -> Backend {
    Backend::default()
}

/// Refuses a job that needs libtorch, by the first key that does.
pub(crate) fn check(job: &Job) -> Result<(), Failure> {
    let workers = job.cluster.has_groups().then_some("more than one dense worker (cluster.workers)");
    match workers.or_else(|| job.autograd_key()) {
        Some(key) => Err(Failure::from_error(Exit::Usage, ModelError::NoAutograd { key })),
        None => Ok(()),
    }
}

/// There is none: workers meet by libtorch.
pub(crate) fn rendezvous(job: &Job, _: TcpListener, _: String) -> Result<Arc<dyn Rendezvous>, Failure> {
    check(job)?;
    let key = "more than one dense worker";
    Err(Failure::from_error(Exit::Usage, ModelError::NoAutograd { key }))
}
