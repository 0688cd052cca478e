//! Coordinator and workers: they run to an end, so they are Jobs, whose pods are never restarted in place.
//!
//! A StatefulSet would start a worker anew that has finished. The workers' Job is indexed: each pod has a number, and
//! a name that does not change.

use k8s_openapi::api::batch::v1::{Job, JobSpec};

use super::{Plan, pod};
use crate::names::Role;

/// The coordinator. It ends with the run, and its exit code is the run's.
pub(super) fn coordinator(plan: &Plan<'_>) -> Job {
    job(plan, Role::Coordinator, JobSpec::default())
}

/// The workers.
pub(super) fn workers(plan: &Plan<'_>) -> Job {
    let workers = plan.job.replicas(Role::Worker);
    let indexed = JobSpec {
        completion_mode: Some("Indexed".to_owned()),
        completions: Some(workers),
        parallelism: Some(workers),
        ..JobSpec::default()
    };
    job(plan, Role::Worker, indexed)
}

/// The operator starts the whole group anew where a Job would replace one pod.
fn job(plan: &Plan<'_>, role: Role, spec: JobSpec) -> Job {
    Job {
        metadata: plan.metadata(plan.attempt.name(role)),
        spec: Some(JobSpec { backoff_limit: Some(0), template: pod::template(plan, role, "Never"), ..spec }),
        ..Job::default()
    }
}
