//! What makes the pods of the roles.
//!
//! Coordinator and servers are StatefulSets: a container that ends is started again in its pod, and a pod that goes is made again
//! under its name, with its volume. Neither restarts another pod. Workers run to an end, so they are a Job: a StatefulSet would
//! restart a worker that has finished.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use super::{BuildPlan, ObjectManifest, pod, rollout, volumes};
use crate::names::{PodRole, TEMPLATE_ANNOTATION};

/// They start at once. A changed template restarts them one after another ([`rollout`]), if they have a log.
pub(super) fn servers(plan: &BuildPlan<'_>) -> ObjectManifest {
    let mut data = stateful_set(plan, PodRole::Server);
    let servers = plan.job.replicas(PodRole::Server);
    let hash = format!("{:016x}", xxh3_64(data["spec"]["template"].to_string().as_bytes()));
    let is_durable = plan.job.is_durable();
    let partition = if is_durable { rollout::next_partition(plan.run, plan.alive, servers, &hash) } else { servers };
    data["spec"]["updateStrategy"] = json!({ "type": "RollingUpdate", "rollingUpdate": { "partition": partition } });
    let mut manifest = plan.manifest::<StatefulSet>(plan.attempt.workload_name(PodRole::Server), data);
    manifest.object.metadata.annotations = Some([(TEMPLATE_ANNOTATION.to_owned(), hash)].into());
    manifest
}

/// The coordinator ends with the run. Started again after that, it ends as before (`--one-run`), so its exit code stays
/// that of the run.
pub(super) fn stateful_set(plan: &BuildPlan<'_>, role: PodRole) -> Value {
    let claim = volumes::state_claim(plan, role);
    // A claim may hold the only copy of rows. Kubernetes deletes none: the operator does, once the claim is of no use
    // (`ObjectDeletion::Attempts`).
    let kept = claim.is_some().then(|| json!({ "whenDeleted": "Retain", "whenScaled": "Retain" }));
    json!({ "spec": {
        "serviceName": plan.attempt.service_name(role),
        "replicas": plan.job.replicas(role),
        "podManagementPolicy": "Parallel",
        "selector": { "matchLabels": plan.attempt.role_labels(role) },
        "template": pod::template(plan, role, "Always"),
        "persistentVolumeClaimRetentionPolicy": kept,
        "volumeClaimTemplates": claim.map(|claim| [claim]),
    } })
}

/// If the others wait for a lost worker, the Job replaces its pod under the same name, as often as the run policy says.
/// Otherwise the whole group restarts.
pub(super) fn workers(plan: &BuildPlan<'_>) -> ObjectManifest {
    let workers = plan.job.replicas(PodRole::Worker);
    let (is_replaced, limit) = (plan.replaces_workers(), plan.job.spec.run_policy.backoff_limit);
    let spec = json!({
        "completionMode": "Indexed",
        "completions": workers,
        "parallelism": workers,
        "template": pod::template(plan, PodRole::Worker, "Never"),
        "backoffLimit": (!is_replaced).then_some(0),
        "backoffLimitPerIndex": is_replaced.then_some(limit),
        // The others could not continue with fewer.
        "maxFailedIndexes": is_replaced.then(|| dispensable(plan)),
        "podFailurePolicy": is_replaced.then(|| failure_policy(plan)),
    });
    plan.manifest::<Job>(plan.attempt.workload_name(PodRole::Worker), json!({ "spec": spec }))
}

/// A worker is not replaced whose exit code says that it would fail again. Evictions do not count.
fn failure_policy(plan: &BuildPlan<'_>) -> Value {
    let retryable: BTreeSet<i32> = plan.job.spec.run_policy.exit_codes.retryable.iter().copied().collect();
    let hopeless = json!({ "containerName": PodRole::Worker.short_name(), "operator": "NotIn", "values": retryable });
    json!({ "rules": [
        { "action": "FailJob", "onExitCodes": hopeless },
        { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] },
    ] })
}

fn dispensable(plan: &BuildPlan<'_>) -> i32 {
    let workers = plan.job.replicas(PodRole::Worker);
    let least = plan.job.job.cluster.min_workers.and_then(|least| i32::try_from(least).ok());
    workers - least.unwrap_or(workers).clamp(1, workers)
}
