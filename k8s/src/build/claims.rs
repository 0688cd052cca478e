//! The disk of a coordinator or an embedding server: whether there is one, and how large.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Resource;
use kube::api::ObjectMeta;

use super::BuildPlan;
use crate::crd::ClaimTemplate;
use crate::names::{PodRole, RETAIN_LABEL};

/// Name of the volume for what the next process in the pod needs: log, rows beyond memory, journal.
pub(super) const STATE: &str = "state";
const GIB: u64 = 1 << 30;
/// Size of the coordinator's disk: a snapshot of its state, and some MiB of inputs.
const JOURNAL: u64 = GIB;
/// The tail of a log is at least so long before a new base is written.
const SHORTEST_TAIL: u64 = 256 << 20;

pub(super) fn template(plan: &BuildPlan<'_>, role: PodRole) -> Option<PersistentVolumeClaim> {
    let given = given(plan, role);
    let is_needed = given.is_some() || (plan.job.is_durable() && role != PodRole::Worker);
    let storage = is_needed.then(|| given.cloned().unwrap_or_default())?;
    // The owner takes the claim along. Kubernetes' own policy does not (`sets::kept`).
    let owner = plan.owner.owner_ref(&()).filter(|_| !storage.retain);
    let mut labels = plan.attempt.role_labels(role);
    labels.extend(storage.retain.then(|| (RETAIN_LABEL.to_owned(), true.to_string())));
    Some(PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(STATE.to_owned()),
            labels: Some(labels),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(disk(
            &storage.size.or_else(|| made(plan, role)).unwrap_or_else(|| size(plan, role)),
            storage.storage_class_name.as_ref(),
        )),
        ..PersistentVolumeClaim::default()
    })
}

fn given<'a>(plan: &BuildPlan<'a>, role: PodRole) -> Option<&'a ClaimTemplate> {
    match role {
        PodRole::Coordinator => plan.job.spec.coordinator.storage.as_ref(),
        PodRole::Server => plan.job.spec.embedding_servers.storage.as_ref(),
        PodRole::Worker => None,
    }
}

/// Kubernetes changes no claim of a StatefulSet, and refuses a whole object that asks for another.
fn made(plan: &BuildPlan<'_>, role: PodRole) -> Option<Quantity> {
    plan.servers.set.as_ref().filter(|_| role == PodRole::Server)?.disk.clone()
}

fn size(plan: &BuildPlan<'_>, role: PodRole) -> Quantity {
    let bytes = if role == PodRole::Server { of_server(plan) } else { JOURNAL };
    Quantity(format!("{}Gi", bytes.div_ceil(GIB)))
}

/// Two bases and one tail (docs/reliability.md). A base has at most the rows that fit into memory. The tail grows while
/// a base is written: as much again. Rows beyond memory: as many again as in memory.
fn of_server(plan: &BuildPlan<'_>) -> u64 {
    let rows = plan.job.server_rows();
    let tail = 2 * SHORTEST_TAIL.max(rows / 2);
    let disk = plan.job.job.cluster.memory.unwrap_or(0);
    2 * rows + tail + disk
}

pub(super) fn disk(size: &Quantity, class: Option<&String>) -> PersistentVolumeClaimSpec {
    PersistentVolumeClaimSpec {
        access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
        storage_class_name: class.cloned(),
        resources: Some(VolumeResourceRequirements {
            requests: Some([("storage".to_owned(), size.clone())].into()),
            limits: None,
        }),
        ..PersistentVolumeClaimSpec::default()
    }
}
