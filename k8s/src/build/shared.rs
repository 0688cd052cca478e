//! Optional objects that all attempts of a job share. An edit turns each on and off while the run goes on. And objects of other
//! operators: groups of pods that are scheduled together, and the monitor that Prometheus reads.

use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ApiResource;
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

use super::{BuildPlan, ObjectManifest, network, owned_metadata};
use crate::crd::{GangScheduler, GangSpec};
use crate::names::{ATTEMPT_LABEL, JOB_LABEL, PodRole, ROLE_LABEL, SECRET_TOKEN, secret_name};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedObject {
    /// Who may reach coordinator and servers.
    NetworkPolicy,
    /// Who may reach workers.
    WorkerPolicy,
    /// How many pods may be evicted at a time: one, or none if the loss of a pod restarts the whole group.
    Budget,
    /// The same for workers, where they differ from the other roles.
    WorkerBudget,
    PodMonitor,
}

impl SharedObject {
    pub const ALL: [Self; 5] =
        [Self::NetworkPolicy, Self::WorkerPolicy, Self::Budget, Self::WorkerBudget, Self::PodMonitor];
    pub const BUDGETS: [Self; 2] = [Self::Budget, Self::WorkerBudget];

    pub fn api_resource(self) -> ApiResource {
        match self {
            Self::NetworkPolicy | Self::WorkerPolicy => ApiResource::erase::<NetworkPolicy>(&()),
            Self::Budget | Self::WorkerBudget => ApiResource::erase::<PodDisruptionBudget>(&()),
            Self::PodMonitor => {
                let kind = GroupVersionKind::gvk("monitoring.coreos.com", "v1", "PodMonitor");
                ApiResource::from_gvk_with_plural(&kind, "podmonitors")
            }
        }
    }

    /// Its name. The name of a HybridJob has no dot, so this name cannot be that of another job's object.
    pub fn object_name(self, job: &str) -> String {
        match self {
            Self::NetworkPolicy | Self::Budget | Self::PodMonitor => job.to_owned(),
            Self::WorkerPolicy | Self::WorkerBudget => format!("{job}.workers"),
        }
    }

    /// As that of its manifest.
    pub fn title(self, job: &str) -> String {
        format!("{} {}", self.api_resource().kind, self.object_name(job))
    }

    pub fn is_wanted(self, plan: &BuildPlan<'_>) -> bool {
        let spec = &plan.job.spec;
        match self {
            Self::NetworkPolicy | Self::WorkerPolicy => spec.network_policy,
            Self::Budget => spec.disruption_budget,
            Self::WorkerBudget => spec.disruption_budget && network::has_worker_budget(plan),
            Self::PodMonitor => spec.monitoring.pod_monitor,
        }
    }

    pub(super) fn manifest(self, plan: &BuildPlan<'_>) -> ObjectManifest {
        let metadata = owned_metadata(plan.owner, self.object_name(&plan.attempt.job));
        let spec = match self {
            Self::NetworkPolicy => network::policy(plan),
            Self::WorkerPolicy => network::worker_policy(plan),
            Self::Budget => network::disruption_budget(plan),
            Self::WorkerBudget => network::budget(plan, &[PodRole::Worker]),
            Self::PodMonitor => pod_monitor(plan),
        };
        ObjectManifest::new(self.api_resource(), metadata, json!({ "spec": spec }))
    }
}

pub(crate) fn group_resource(scheduler: GangScheduler) -> ApiResource {
    let (group, version) = match scheduler {
        GangScheduler::Volcano => ("scheduling.volcano.sh", "v1beta1"),
        GangScheduler::Coscheduling => ("scheduling.x-k8s.io", "v1alpha1"),
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, "PodGroup"), "podgroups")
}

/// A group that is scheduled whole or not at all.
pub(super) fn pod_group(plan: &BuildPlan<'_>, gang: &GangSpec) -> ObjectManifest {
    let pods: i32 = PodRole::ALL.into_iter().map(|role| plan.job.replicas(role)).sum();
    let mut spec = json!({ "minMember": pods });
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
    let metadata = plan.metadata(plan.attempt.pod_group_name());
    ObjectManifest::new(group_resource(gang.scheduler), metadata, json!({ "spec": spec }))
}

fn pod_monitor(plan: &BuildPlan<'_>) -> Value {
    let mut endpoint = json!({ "port": "http", "path": "/metrics" });
    if plan.job.asks_for_proof() {
        let token = json!({ "name": secret_name(plan.owner), "key": SECRET_TOKEN });
        endpoint["authorization"] = json!({ "type": "Bearer", "credentials": token });
    }
    json!({
        "selector": { "matchLabels": { JOB_LABEL: plan.attempt.job } },
        "podMetricsEndpoints": [endpoint],
        "podTargetLabels": [JOB_LABEL, ROLE_LABEL, ATTEMPT_LABEL],
    })
}
