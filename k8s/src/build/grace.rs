//! The time between SIGTERM and SIGKILL: what a role has to write before it ends, at the rate of a slow disk.

use super::BuildPlan;
use crate::names::PodRole;

/// Seconds that a role may take to end, besides what it waits for and writes.
const SECONDS: i64 = 60;
/// Bytes per second of a slow disk or a distant store.
pub(super) const SLOW: u64 = 20 << 20;
/// Both a checkpoint and a model may have to be written.
const TIMES: u64 = 2;

pub(super) fn period(plan: &BuildPlan<'_>, role: PodRole) -> i64 {
    let given = plan.job.pod_settings(role).termination_grace_period_seconds;
    given.unwrap_or_else(|| match role {
        PodRole::Worker => saving(plan),
        // It leaves everything to the next process, on its disk: every acknowledged push is in its log already.
        PodRole::Coordinator | PodRole::Server if plan.job.is_durable() => SECONDS,
        // They serve until the workers have saved. One that is killed before costs the work since the previous
        // checkpoint.
        PodRole::Coordinator | PodRole::Server => saving(plan).saturating_add(SECONDS),
    })
}

/// A last checkpoint and a model. The servers write side by side, each its own rows.
fn saving(plan: &BuildPlan<'_>) -> i64 {
    let writing = plan.job.saved_rows().saturating_mul(TIMES).div_ceil(SLOW);
    let answer = plan.job.job.cluster.timeout.as_secs();
    i64::try_from(answer.saturating_add(writing)).unwrap_or(i64::MAX).saturating_add(SECONDS)
}
