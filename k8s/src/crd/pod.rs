//! What a user may say about the pods of a role.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, EnvVar, ResourceRequirements, SecurityContext, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::{Sidecar, pattern};

/// Pods of one role. Everything else about them is the operator's: command, probes, volumes.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSettings {
    /// Image of the role, which is started by its own entrypoint: `zagros-server`, for example, plays the coordinator and
    /// the embedding servers without libtorch. Default: the image of the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = pattern::IMAGE))]
    pub image: Option<String>,
    /// Requests and limits. What is skipped has a default of the role: docs/kubernetes.md, "Resources".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Labels that a node must have: high-memory nodes for servers, GPU or CPU nodes for workers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Affinity. Default: pods of the role prefer different nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Taints that the pods bear.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// How the pods are spread over zones or nodes; a constraint without `labelSelector` is about the role's pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Priority class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = pattern::NAME))]
    pub priority_class_name: Option<String>,
    /// Environment, for example `ZAGROS_LOG`. Secrets are named, never written: `valueFrom.secretKeyRef`. Names that
    /// start with `ZAGROS__` would change the job for one role alone and are refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub env: Vec<EnvVar>,
    /// Secrets whose every key becomes a variable, such as an object store's credentials.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub env_from: Vec<EnvName>,
    /// Labels of the pods; those of `zagros.dev/` and `app.kubernetes.io/` are the operator's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Runtime class of the pods: gVisor, Kata Containers, a GPU vendor's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = pattern::NAME))]
    pub runtime_class_name: Option<String>,
    /// Size of `/dev/shm`, such as `8Gi` for NCCL, counted to the container's memory. Default: the runtime's, 64 MiB
    /// mostly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_memory: Option<Quantity>,
    /// What the role's container may do. What is skipped is as the restricted Pod Security profile has it: no
    /// privilege escalation, no capability, not root; and a root file system that is read-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_security_context: Option<SecurityContext>,
    /// Containers that run beside the role's in each pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub sidecars: Vec<Sidecar>,
    /// Seconds between SIGTERM and SIGKILL. Default: `cluster.timeout_seconds` of the job file, which a worker's last
    /// checkpoint may take, and 60; 120 for coordinator and servers, which serve until it is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub termination_grace_period_seconds: Option<i64>,
}

/// A Secret as a source of variables.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvName {
    /// Name of a Secret of the same namespace.
    #[schemars(length(min = 1, max = 253), regex(pattern = pattern::NAME))]
    pub secret_name: String,
}
