//! A container that ends is started again in its pod, and a pod that goes is made again under its name, with its
//! volume. Neither restarts another pod.

use k8s_openapi::api::apps::v1::{
    RollingUpdateStatefulSetStrategy, StatefulSet, StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec,
    StatefulSetUpdateStrategy,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use xxhash_rust::xxh3::xxh3_64;

use super::{BuildPlan, claims, pod};
use crate::names::PodRole;
use crate::rollout::TEMPLATE_ANNOTATION;

/// It ends with the run. Started again after that, it ends as before (`--one-run`), so its exit code stays that of the
/// run.
pub(super) fn coordinator(plan: &BuildPlan<'_>) -> StatefulSet {
    set(plan, PodRole::Coordinator)
}

/// They start at once. A changed template restarts them one after another ([`crate::rollout`]), if they have a log.
pub(super) fn servers(plan: &BuildPlan<'_>) -> StatefulSet {
    let mut set = set(plan, PodRole::Server);
    let servers = plan.job.replicas(PodRole::Server);
    let template = set.spec.as_ref().map(|spec| serde_json::to_string(&spec.template).unwrap_or_default());
    let hash = format!("{:016x}", xxh3_64(template.unwrap_or_default().as_bytes()));
    let partition = if plan.job.is_durable() { plan.servers.partition(servers, &hash) } else { servers };
    set.metadata.annotations = Some([(TEMPLATE_ANNOTATION.to_owned(), hash)].into());
    if let Some(spec) = &mut set.spec {
        spec.update_strategy = Some(StatefulSetUpdateStrategy {
            type_: Some("RollingUpdate".to_owned()),
            rolling_update: Some(RollingUpdateStatefulSetStrategy {
                partition: Some(partition),
                max_unavailable: None,
            }),
        });
    }
    set
}

fn set(plan: &BuildPlan<'_>, role: PodRole) -> StatefulSet {
    let attempt = plan.attempt;
    let claim = claims::template(plan, role);
    StatefulSet {
        metadata: plan.metadata(attempt.workload_name(role)),
        spec: Some(StatefulSetSpec {
            service_name: Some(attempt.service_name(role)),
            replicas: Some(plan.job.replicas(role)),
            pod_management_policy: Some("Parallel".to_owned()),
            selector: LabelSelector { match_labels: Some(attempt.role_labels(role)), ..LabelSelector::default() },
            template: pod::template(plan, role, "Always"),
            persistent_volume_claim_retention_policy: claim.is_some().then(kept),
            volume_claim_templates: claim.map(|claim| vec![claim]),
            ..StatefulSetSpec::default()
        }),
        ..StatefulSet::default()
    }
}

/// A claim may hold the only copy of rows. Kubernetes deletes none: the operator does, once the claim is of no use
/// (`RemovalStep::Services`).
fn kept() -> StatefulSetPersistentVolumeClaimRetentionPolicy {
    let retain = || Some("Retain".to_owned());
    StatefulSetPersistentVolumeClaimRetentionPolicy { when_deleted: retain(), when_scaled: retain() }
}
