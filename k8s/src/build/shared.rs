//! Optional objects that all attempts of a job share. An edit turns each on and off while the run goes on.

use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ApiResource;

use super::{BuildPlan, ObjectManifest, gang, network};

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

    #[must_use]
    pub fn api_resource(self) -> ApiResource {
        match self {
            Self::NetworkPolicy | Self::WorkerPolicy => ApiResource::erase::<NetworkPolicy>(&()),
            Self::Budget | Self::WorkerBudget => ApiResource::erase::<PodDisruptionBudget>(&()),
            Self::PodMonitor => gang::monitor_resource(),
        }
    }

    /// Its name. The name of a HybridJob has no dot, so this name cannot be that of another job's object.
    #[must_use]
    pub fn object_name(self, job: &str) -> String {
        match self {
            Self::NetworkPolicy | Self::Budget | Self::PodMonitor => job.to_owned(),
            Self::WorkerPolicy | Self::WorkerBudget => format!("{job}.workers"),
        }
    }

    #[must_use]
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
        let metadata = plan.job_metadata(self.object_name(&plan.attempt.job));
        match self {
            Self::NetworkPolicy => plan.manifest(network::policy(plan, metadata)),
            Self::WorkerPolicy => plan.manifest(network::worker_policy(plan, metadata)),
            Self::Budget => plan.manifest(network::disruption_budget(plan, metadata)),
            Self::WorkerBudget => plan.manifest(network::worker_budget(plan, metadata)),
            Self::PodMonitor => plan.dynamic(gang::pod_monitor(plan, metadata)),
        }
    }
}
