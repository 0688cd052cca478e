//! Joining the run.

use std::sync::Arc;

use zagros_coordinator_client::{ControlPlane, MemberError, Membership};
use zagros_job::Job;
use zagros_plumbing::Shutdown;
use zagros_protocol::control::{JoinRequest, Role};
use zagros_protocol::{PROTOCOL_VERSION, ServerIndex};

/// Joins the run as the process `instance`, within the job's timeout. The coordinator refuses a process with another
/// job or another protocol version, and says which of them differs.
pub(crate) async fn join(
    job: &Job,
    index: ServerIndex,
    advertised: &str,
    instance: u64,
    control: Arc<dyn ControlPlane>,
    shutdown: &Shutdown,
) -> Result<Membership, MemberError> {
    let request = JoinRequest {
        role: Role::EmbeddingServer.into(),
        index: index.0,
        address: advertised.to_owned(),
        instance,
        job_fingerprint: job.fingerprint(),
        protocol_version: PROTOCOL_VERSION,
        release: env!("CARGO_PKG_VERSION").to_owned(),
        ..JoinRequest::default()
    };
    Membership::join(control, request, job.cluster.timeout, shutdown).await
}
