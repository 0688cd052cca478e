//! Sidecars: containers beside those of the run.

use k8s_openapi::api::core::v1::{EnvVar, ResourceRequirements, SecurityContext};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::{EnvName, PullPolicy, pattern};

/// A container that runs beside a role's container. It starts before the role and is stopped after it, so a sidecar that
/// never exits does not keep a run from ending (Kubernetes' native sidecars). It sees the same folders as the role.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SidecarSpec {
    /// Name of the container. `coordinator`, `server` and `worker` are taken.
    #[schemars(length(min = 1, max = 63), regex(pattern = pattern::LABEL))]
    #[x_kube(validation = Rule::new("!(self in ['coordinator', 'server', 'worker'])").message("the name of a role's container"))]
    pub name: String,
    /// Image of the container.
    #[schemars(length(min = 1, max = 512), regex(pattern = pattern::IMAGE))]
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
