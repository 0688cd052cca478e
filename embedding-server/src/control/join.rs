//! Joining the run.

use std::sync::Arc;

use zagros_coordinator_client::{ControlPlane, MemberError, Membership};
use zagros_job::Job;
use zagros_plumbing::Shutdown;
use zagros_protocol::PROTOCOL_VERSION;
use zagros_protocol::control::{JoinRequest, Role};

use crate::EmbeddingService;

/// A process with a log reports the rows that it has recovered. The coordinator refuses a process with another job or another
/// protocol version, and says which of them differs.
pub(crate) async fn join_run(
    job: &Job,
    service: &EmbeddingService,
    advertised: &str,
    instance: u64,
    control: Arc<dyn ControlPlane>,
    shutdown: &Shutdown,
) -> Result<Membership, MemberError> {
    let request = JoinRequest {
        role: Role::EmbeddingServer.into(),
        index: service.server_index().0,
        address: advertised.to_owned(),
        instance,
        job_fingerprint: job.fingerprint(),
        protocol_version: PROTOCOL_VERSION,
        release: env!("CARGO_PKG_VERSION").to_owned(),
        lineage: service.lineage().map_or(0, |lineage| lineage.0),
        recovered: service.has_recovered(),
        ..JoinRequest::default()
    };
    Membership::join(control, request, job.cluster.timeout, shutdown).await
}
