//! What a user may say about the pods of a role.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, EnvVar, ResourceRequirements, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Pods of one role. Everything else about them is the operator's: command, probes, security, volumes.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSettings {
    /// Image of the role, which is started by its own entrypoint: `zagros-server`, for example, plays the coordinator and
    /// the embedding servers without libtorch. Default: the image of the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// Requests and limits. What is left out has a default of the role: README of the operator, "Resources".
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
    /// Priority class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
    /// Seconds between SIGTERM and SIGKILL. A worker ends its step and writes what there is.
    #[serde(default = "grace")]
    #[schemars(range(min = 1, max = 3600))]
    pub termination_grace_period_seconds: i64,
}

/// A secret as environment.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvName {
    /// Name of a Secret of the same namespace.
    #[schemars(length(min = 1, max = 253))]
    pub secret_name: String,
}

/// A claim that is made for each server.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimTemplate {
    /// Size, for example `200Gi`.
    pub size: Quantity,
    /// Storage class. Default: that of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// Whether the claims outlive the attempt. Rows beyond memory are of no use to the next one.
    #[serde(default)]
    pub retain: bool,
}

/// A volume and where it is mounted.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.mountPath.startsWith('/') && !self.mountPath.contains('..')").message("mountPath is an absolute path"))]
pub struct MountedVolume {
    /// Absolute path in every container; paths of the job file start with it.
    #[schemars(length(min = 2, max = 512))]
    pub mount_path: String,
    /// Folder inside the volume. Default: its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_path: Option<String>,
    /// Whether it is mounted read-only.
    #[serde(default = "super::yes")]
    pub read_only: bool,
    /// What is mounted.
    pub source: VolumeSource,
}

/// Exactly one of these.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.claimName), has(self.configMapName), has(self.secretName)].filter(x, x).size() == 1")
    .message("give exactly one of claimName, configMapName and secretName"))]
pub struct VolumeSource {
    /// A PersistentVolumeClaim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_name: Option<String>,
    /// A ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_name: Option<String>,
    /// A Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_name: Option<String>,
}

fn grace() -> i64 {
    60
}
