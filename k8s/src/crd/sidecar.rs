//! Containers beside those of the run.

use k8s_openapi::api::core::v1::{EnvVar, ResourceRequirements, SecurityContext};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::{EnvName, PullPolicy, pattern};

/// A container that runs beside a role's: it starts before the role and is ended after it, so a run ends though the
/// sidecar would not (Kubernetes' native sidecars). It sees the same folders as the role.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sidecar {
    /// Name of the container; `coordinator`, `server` and `worker` are taken.
    #[schemars(length(min = 1, max = 63), regex(pattern = pattern::LABEL))]
    #[x_kube(validation = Rule::new("!(self in ['coordinator', 'server', 'worker'])").message("the name of a role's container"))]
    pub name: String,
    /// Its image.
    #[schemars(length(min = 1, max = 512), regex(pattern = pattern::IMAGE))]
    pub image: String,
    /// When the kubelet pulls it. Default: Kubernetes' own rule.
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
    /// Environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub env: Vec<EnvVar>,
    /// Secrets whose every key becomes a variable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub env_from: Vec<EnvName>,
    /// Requests and limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// What it may do. What is skipped is as for a role's container: no rights, a root file system that is read-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<SecurityContext>,
}
