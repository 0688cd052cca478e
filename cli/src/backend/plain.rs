//! A program without libtorch.

use std::net::TcpListener;
use std::sync::Arc;

use zagros_collective::{Rendezvous, TcpRendezvous};
use zagros_job::{CollectiveKind, Job};
use zagros_model::{Backend, ModelError};
use zagros_shell::{Exit, Failure, OrFailure};

/// Computes networks that have a step of their own.
pub(crate) fn backend() -> Backend {
    Backend::default()
}

/// Refuses a job that needs libtorch, by the first key that does.
pub(crate) fn check(job: &Job) -> Result<(), Failure> {
    let sums_on_devices = job.cluster.has_groups() && job.cluster.collective == CollectiveKind::Nccl;
    let nccl = sums_on_devices.then_some("cluster.collective = \"nccl\"");
    let refusal = |key| Err(Failure::from_error(Exit::Usage, ModelError::NoAutograd { key }));
    nccl.or_else(|| job.autograd_key()).map_or(Ok(()), refusal)
}

/// Where the other workers of a run find this one, which listens there.
pub(crate) fn rendezvous(_: &Job, listener: TcpListener, address: String) -> Result<Arc<dyn Rendezvous>, Failure> {
    Ok(Arc::new(TcpRendezvous::new(listener, address).or_exit(Exit::Usage)?))
}
