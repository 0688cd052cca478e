//! Workers run to an end, so they are a Job. A StatefulSet would restart a worker that has finished. The Job is indexed: each
//! pod has a number and a name that does not change.

use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
    PodFailurePolicyRule,
};

use super::{BuildPlan, pod};
use crate::names::PodRole;

/// The workers. If the other workers wait for a lost one, the Job replaces its pod under the same number and name.
/// Otherwise the operator restarts the whole group.
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

/// Each worker restarts as often as the run policy says, unless its exit code says that it would fail again. Evictions are
/// not counted.
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

/// How many workers the run can lose for good.
fn dispensable(plan: &BuildPlan<'_>) -> i32 {
    let workers = plan.job.replicas(PodRole::Worker);
    let least = plan.job.job.cluster.min_workers.and_then(|least| i32::try_from(least).ok());
    workers - least.unwrap_or(workers).clamp(1, workers)
}
