//! The libraries with which this program computes networks.

use zagros_job::Job;
use zagros_model::Backend;
#[cfg(not(feature = "torch"))]
use zagros_model::ModelError;
#[cfg(not(feature = "torch"))]
use zagros_shell::Exit;
use zagros_shell::Failure;

#[cfg(feature = "torch")]
pub(crate) fn backend() -> Backend {
    zagros_torch::backend()
}

#[cfg(not(feature = "torch"))]
pub(crate) fn backend() -> Backend {
    Backend::default()
}

/// Refuses a job that needs libtorch, in a program without it.
#[cfg(feature = "torch")]
pub(crate) fn check(_: &Job) -> Result<(), Failure> {
    Ok(())
}

/// Refuses a job that needs libtorch, in a program without it.
#[cfg(not(feature = "torch"))]
pub(crate) fn check(job: &Job) -> Result<(), Failure> {
    let workers = job.cluster.has_groups().then_some("more than one dense worker (cluster.workers)");
    match workers.or_else(|| job.autograd_key()) {
        Some(key) => Err(Failure::from_error(Exit::Usage, ModelError::NoAutograd { key })),
        None => Ok(()),
    }
}
