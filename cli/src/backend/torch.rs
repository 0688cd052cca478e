//! A program with libtorch.

use std::net::TcpListener;
use std::sync::Arc;

use zagros_collective::Rendezvous;
use zagros_job::{CollectiveKind, Job};
use zagros_model::Backend;
use zagros_shell::{Exit, Failure, OrFailure};
use zagros_torch::StoreRendezvous;

pub(crate) fn backend() -> Backend {
    zagros_torch::fastest_backend()
}

/// Refuses a job whose workers are to sum by what this program lacks.
pub(crate) fn check(job: &Job) -> Result<(), Failure> {
    choose_sums(job).map(drop)
}

/// Where the other workers of a run find this one, which listens there.
pub(crate) fn rendezvous(job: &Job, listener: TcpListener, address: String) -> Result<Arc<dyn Rendezvous>, Failure> {
    Ok(Arc::new(StoreRendezvous::new(listener, address, choose_sums(job)?).or_exit(Exit::Usage)?))
}

/// What makes the sums of several workers, if this program contains it.
fn choose_sums(job: &Job) -> Result<CollectiveKind, Failure> {
    let kind = if job.cluster.has_groups() { job.cluster.collective } else { CollectiveKind::Gloo };
    zagros_torch::is_built(kind).or_exit(Exit::Usage)?;
    Ok(kind)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::Overrides;

    use super::*;

    fn job(sets: &[&str]) -> Job {
        let file = "[data]\nformat = 'criteo'\ntrain = 'a'\n[cluster]\ncollective = 'nccl'\n";
        Job::parse(file, Path::new("job.toml"), &Overrides::sets(sets.iter().copied())).unwrap()
    }

    #[test]
    fn one_worker_needs_no_sums_and_several_use_those_of_the_job() {
        assert_eq!(choose_sums(&job(&[])).unwrap(), CollectiveKind::Gloo);
        let gloo = choose_sums(&job(&["cluster.workers=2", "cluster.collective=gloo"]));
        assert_eq!(gloo.unwrap(), CollectiveKind::Gloo);
    }
}
