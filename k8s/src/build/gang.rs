//! Objects of other operators: groups of pods that are scheduled together, and the monitor that Prometheus reads.

use kube::api::{ApiResource, ObjectMeta};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

use super::BuildPlan;
use crate::crd::{GangScheduler, GangSpec};
use crate::names::{JOB_LABEL, PodRole};
use crate::secret_names::{SECRET_TOKEN, secret_name};

#[must_use]
pub(crate) fn group_resource(scheduler: GangScheduler) -> ApiResource {
    let (group, version) = match scheduler {
        GangScheduler::Volcano => ("scheduling.volcano.sh", "v1beta1"),
        GangScheduler::Coscheduling => ("scheduling.x-k8s.io", "v1alpha1"),
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, "PodGroup"), "podgroups")
}

/// A group that is scheduled whole or not at all.
pub(super) fn pod_group(plan: &BuildPlan<'_>, gang: &GangSpec) -> (ApiResource, ObjectMeta, Value) {
    let mut spec = json!({ "minMember": plan.job.pod_count() });
    match gang.scheduler {
        GangScheduler::Volcano => {
            spec["minTaskMember"] =
                PodRole::ALL.into_iter().map(|role| (role.short_name(), plan.job.replicas(role))).collect();
            if let Some(queue) = &gang.queue {
                spec["queue"] = json!(queue);
            }
        }
        GangScheduler::Coscheduling => {
            if let Some(seconds) = gang.schedule_timeout_seconds {
                spec["scheduleTimeoutSeconds"] = json!(seconds);
            }
        }
    }
    (group_resource(gang.scheduler), plan.metadata(plan.attempt.pod_group_name()), json!({ "spec": spec }))
}

pub(super) fn monitor_resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("monitoring.coreos.com", "v1", "PodMonitor");
    ApiResource::from_gvk_with_plural(&kind, "podmonitors")
}

pub(super) fn pod_monitor(plan: &BuildPlan<'_>, metadata: ObjectMeta) -> (ApiResource, ObjectMeta, Value) {
    let mut endpoint = json!({ "port": "http", "path": "/metrics" });
    if plan.job.asks_for_proof() {
        let token = json!({ "name": secret_name(plan.owner), "key": SECRET_TOKEN });
        endpoint["authorization"] = json!({ "type": "Bearer", "credentials": token });
    }
    let spec = json!({
        "selector": { "matchLabels": { JOB_LABEL: plan.attempt.job } },
        "podMetricsEndpoints": [endpoint],
        "podTargetLabels": [JOB_LABEL, crate::names::ROLE_LABEL, crate::names::ATTEMPT_LABEL],
    });
    (monitor_resource(), metadata, json!({ "spec": spec }))
}
