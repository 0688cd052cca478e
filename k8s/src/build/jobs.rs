//! Workers run to an end, so they are a Job: a StatefulSet would restart a worker that has finished.

use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
    PodFailurePolicyRule,
};

use super::{BuildPlan, pod};
use crate::names::PodRole;

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
