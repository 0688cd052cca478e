//! Embedding servers: a StatefulSet, with a disk for each server if the spec asks for one.

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::ObjectMeta;

use super::{BuildPlan, pod, volumes};
use crate::crd::ClaimTemplate;
use crate::names::Role;

/// All servers. They start at once, because no server needs another to start.
pub(super) fn stateful_set(plan: &BuildPlan<'_>) -> StatefulSet {
    let attempt = plan.attempt;
    let storage = plan.job.spec.embedding_servers.storage.as_ref();
    StatefulSet {
        metadata: plan.metadata(attempt.name(Role::Server)),
        spec: Some(StatefulSetSpec {
            service_name: Some(attempt.name(Role::Server)),
            replicas: Some(plan.job.replicas(Role::Server)),
            pod_management_policy: Some("Parallel".to_owned()),
            selector: LabelSelector {
                match_labels: Some(attempt.role_labels(Role::Server)),
                ..LabelSelector::default()
            },
            template: pod::template(plan, Role::Server, "Always"),
            volume_claim_templates: storage.map(|storage| vec![claim(plan, storage)]),
            persistent_volume_claim_retention_policy: storage.map(retention),
            ..StatefulSetSpec::default()
        }),
        ..StatefulSet::default()
    }
}

fn claim(plan: &BuildPlan<'_>, storage: &ClaimTemplate) -> PersistentVolumeClaim {
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(volumes::STATE.to_owned()),
            labels: Some(plan.attempt.labels()),
            ..ObjectMeta::default()
        },
        spec: Some(volumes::disk(&storage.size, storage.storage_class_name.as_ref())),
        ..PersistentVolumeClaim::default()
    }
}

fn retention(storage: &ClaimTemplate) -> StatefulSetPersistentVolumeClaimRetentionPolicy {
    let policy = if storage.retain { "Retain" } else { "Delete" };
    StatefulSetPersistentVolumeClaimRetentionPolicy {
        when_deleted: Some(policy.to_owned()),
        when_scaled: Some(policy.to_owned()),
    }
}
