//! A cluster inside this process: a coordinator and the embedding servers of a job, reached by calls instead of sockets.
//!
//! `zagros train` and `zagros-bench` work with it.

use std::sync::Arc;

use crate::{Failure, OrFailure};
use zagros_coordinator::LocalCoordinator;
use zagros_coordinator_client::{ControlPlane, Membership, wait_for_placement};
use zagros_embedding_client::{Connect, Shard};
use zagros_embedding_server::{EmbeddingService, LocalShard};
use zagros_job::Job;
use zagros_plumbing::Shutdown;
use zagros_plumbing::metrics::Registry;
use zagros_protocol::control::{JoinRequest, Role};
use zagros_protocol::{BucketMap, Generation, Refusal, ServerIndex};

/// A coordinator and its embedding servers, which have joined.
pub struct EmbeddedCluster {
    pub control: Arc<dyn ControlPlane>,
    /// Reaches a server. The memberships of the servers live as long as this does.
    pub connect: Connect,
    pub registry: Registry,
}

impl EmbeddedCluster {
    /// Starts a coordinator and as many embedding servers as the job has, and waits for their placement.
    pub async fn start(job: &Job) -> Result<Self, Failure> {
        let registry = Registry::new();
        let control: Arc<dyn ControlPlane> = LocalCoordinator::new(job, &registry);
        let mut services = Vec::new();
        let mut members = Vec::new();
        for index in 0..job.cluster.servers {
            services.push(EmbeddingService::new(job, ServerIndex(index), &registry).or_internal()?);
            members.push(join(job, index, Arc::clone(&control)).await?);
        }
        let placement = wait_for_placement(control.as_ref(), job.cluster.timeout, &Shutdown::new()).await;
        let placement = placement.or_internal()?;
        let map = BucketMap::unpack_owners(Generation(placement.generation), &placement.owners).or_internal()?;
        let map = Arc::new(map);
        for service in &services {
            service.set_placement(Arc::clone(&map));
        }
        let shards: Vec<_> = services.into_iter().map(|service| Arc::new(LocalShard::new(service))).collect();
        let connect: Connect = Arc::new(move |entry| {
            let _kept_alive = &members;
            let shard = shards.get(entry.index as usize).map(|shard| Arc::clone(shard) as Arc<dyn Shard>);
            shard.ok_or_else(|| Refusal::invalid(format!("no embedded server {}", entry.index)))
        });
        Ok(Self { control, connect, registry })
    }
}

async fn join(job: &Job, index: u32, control: Arc<dyn ControlPlane>) -> Result<Membership, Failure> {
    let request = JoinRequest {
        role: Role::EmbeddingServer.into(),
        index,
        address: format!("embedded:{index}"),
        instance: u64::from(std::process::id()),
        job_fingerprint: job.fingerprint(),
        ..JoinRequest::default()
    };
    let joined = Membership::join(control, request, job.cluster.timeout, &Shutdown::new()).await;
    joined.or_internal()
}
