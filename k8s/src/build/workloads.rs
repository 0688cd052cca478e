//! What makes the pods of the roles.
//!
//! Coordinator and servers are StatefulSets: a container that ends is started again in its pod, and a pod that goes is made again
//! under its name, with its volume. Neither restarts another pod. Workers run to an end, so they are a Job: a StatefulSet would
//! restart a worker that has finished.

use k8s_openapi::api::apps::v1::{
    RollingUpdateStatefulSetStrategy, StatefulSet, StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec,
    StatefulSetUpdateStrategy,
};
use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
    PodFailurePolicyRule,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use xxhash_rust::xxh3::xxh3_64;

use super::{BuildPlan, pod, rollout, volumes};
use crate::names::{PodRole, TEMPLATE_ANNOTATION};

/// They start at once. A changed template restarts them one after another ([`rollout`]), if they have a log.
pub(super) fn servers(plan: &BuildPlan<'_>) -> StatefulSet {
    let mut set = stateful_set(plan, PodRole::Server);
    let servers = plan.job.replicas(PodRole::Server);
    let template = set.spec.as_ref().map(|spec| serde_json::to_string(&spec.template).unwrap_or_default());
    let hash = format!("{:016x}", xxh3_64(template.unwrap_or_default().as_bytes()));
    let is_durable = plan.job.is_durable();
    let partition = if is_durable { rollout::next_partition(plan.run, plan.alive, servers, &hash) } else { servers };
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

/// The coordinator ends with the run. Started again after that, it ends as before (`--one-run`), so its exit code stays
/// that of the run.
pub(super) fn stateful_set(plan: &BuildPlan<'_>, role: PodRole) -> StatefulSet {
    let attempt = plan.attempt;
    let claim = volumes::state_claim(plan, role);
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
/// (`ObjectDeletion::Attempts`).
fn kept() -> StatefulSetPersistentVolumeClaimRetentionPolicy {
    let retain = || Some("Retain".to_owned());
    StatefulSetPersistentVolumeClaimRetentionPolicy { when_deleted: retain(), when_scaled: retain() }
}

/// If the others wait for a lost worker, the Job replaces its pod under the same name. Otherwise the whole group
/// restarts.
pub(super) fn workers(plan: &BuildPlan<'_>) -> Job {
    let workers = plan.job.replicas(PodRole::Worker);
    let replacing = plan.replaces_workers().then(|| replacing(plan));
    let once = || JobSpec { backoff_limit: Some(0), ..JobSpec::default() };
    Job {
        metadata: plan.metadata(plan.attempt.workload_name(PodRole::Worker)),
        spec: Some(JobSpec {
            completion_mode: Some("Indexed".to_owned()),
            completions: Some(workers),
            parallelism: Some(workers),
            template: pod::template(plan, PodRole::Worker, "Never"),
            ..replacing.unwrap_or_else(once)
        }),
        ..Job::default()
    }
}

/// As often as the run policy says, unless the exit code says that the worker would fail again. Evictions do not count.
fn replacing(plan: &BuildPlan<'_>) -> JobSpec {
    let policy = &plan.job.spec.run_policy;
    let mut retryable = policy.exit_codes.retryable.clone();
    retryable.sort_unstable();
    retryable.dedup();
    let hopeless = PodFailurePolicyOnExitCodesRequirement {
        container_name: Some(PodRole::Worker.short_name().to_owned()),
        operator: "NotIn".to_owned(),
        values: retryable,
    };
    let evicted =
        PodFailurePolicyOnPodConditionsPattern { type_: "DisruptionTarget".to_owned(), status: "True".to_owned() };
    let rules = vec![
        PodFailurePolicyRule {
            action: "FailJob".to_owned(),
            on_exit_codes: Some(hopeless),
            ..PodFailurePolicyRule::default()
        },
        PodFailurePolicyRule {
            action: "Ignore".to_owned(),
            on_pod_conditions: Some(vec![evicted]),
            ..PodFailurePolicyRule::default()
        },
    ];
    JobSpec {
        backoff_limit_per_index: Some(policy.backoff_limit),
        // The others could not continue with fewer.
        max_failed_indexes: Some(dispensable(plan)),
        pod_failure_policy: Some(PodFailurePolicy { rules }),
        ..JobSpec::default()
    }
}

fn dispensable(plan: &BuildPlan<'_>) -> i32 {
    let workers = plan.job.replicas(PodRole::Worker);
    let least = plan.job.job.cluster.min_workers.and_then(|least| i32::try_from(least).ok());
    workers - least.unwrap_or(workers).clamp(1, workers)
}
