//! Settings of the pods of a role, and of the containers beside those of the run.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, EnvVar, ResourceRequirements, SecurityContext, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::{PullPolicy, rules};

/// Settings of the pods of one role. The operator sets everything else: command, probes, volumes.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSettings {
    /// Image of the role, started by its own entrypoint. For example, `zagros-server` runs the coordinator and the
    /// embedding servers without libtorch. Default: the image of the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = rules::IMAGE))]
    pub image: Option<String>,
    /// Requests and limits. A resource that is not given has the role's default: docs/kubernetes.md, "Resources".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Labels that a node must have. For example: high-memory nodes for servers, GPU nodes for workers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Affinity. Default: pods of the role prefer different nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Taints that the pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// How the pods are spread over zones or nodes. A constraint without `labelSelector` selects the role's pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Priority class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = rules::NAME))]
    pub priority_class_name: Option<String>,
    /// Environment variables, for example `ZAGROS_LOG`. Name a secret by `valueFrom.secretKeyRef`; do not write it here.
    /// Names that start with `ZAGROS__` are refused: they would change the job of one role only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub env: Vec<EnvVar>,
    /// Secrets whose keys all become variables, such as an object store's credentials.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub env_from: Vec<EnvName>,
    /// Labels of the pods. The operator owns the prefixes `zagros.dev/` and `app.kubernetes.io/`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Runtime class of the pods, such as gVisor, Kata Containers or a GPU vendor's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = rules::NAME))]
    pub runtime_class_name: Option<String>,
    /// Size of `/dev/shm`, such as `8Gi` for NCCL. It counts as memory of the container. Default: the runtime's, mostly
    /// 64 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_memory: Option<Quantity>,
    /// Rights of the role's container. A field that is not given follows the restricted Pod Security profile: no privilege
    /// escalation, no capability, not root. The root file system is read-only by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_security_context: Option<SecurityContext>,
    /// Containers that run beside the role's container in each pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub sidecars: Vec<SidecarSpec>,
    /// Seconds between SIGTERM and SIGKILL. Default for workers: `cluster.timeout_seconds` of the job file, the time to write
    /// the rows of one server twice at 20 MiB/s, and 60. Default for coordinator and servers: 60 if the servers have a log
    /// (`cluster.durability`); otherwise 60 more than workers have, because they serve until the last checkpoint is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub termination_grace_period_seconds: Option<i64>,
}

/// A container that runs beside a role's container. It starts before the role and is stopped after it, so a sidecar that
/// never exits does not keep a run from ending (Kubernetes' native sidecars). It sees the same folders as the role.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SidecarSpec {
    /// Name of the container. `coordinator`, `server` and `worker` are taken.
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    #[x_kube(validation = Rule::new("!(self in ['coordinator', 'server', 'worker'])").message("the name of a role's container"))]
    pub name: String,
    /// Image of the container.
    #[schemars(length(min = 1, max = 512), regex(pattern = rules::IMAGE))]
    pub image: String,
    /// When the kubelet pulls the image. Default: Kubernetes' own rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<PullPolicy>,
    /// Command. Default: the image's entrypoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub command: Vec<String>,
    /// Arguments. Default: the image's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub args: Vec<String>,
    /// Environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub env: Vec<EnvVar>,
    /// Secrets whose keys all become variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub env_from: Vec<EnvName>,
    /// Requests and limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Rights of the container. A field that is not given has the default of a role's container: no rights, and a
    /// read-only root file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<SecurityContext>,
}

/// A Secret as a source of variables.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvName {
    /// Name of a Secret of the same namespace.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::NAME))]
    pub secret_name: String,
}
