//! Volumes that a user may mount.

use k8s_openapi::api::core::v1::{CSIVolumeSource, HostPathVolumeSource, NFSVolumeSource};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;

/// A claim that is made for each pod of a role.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimTemplate {
    /// Size, for example `200Gi`. Default: what the job can need (docs/kubernetes.md, "Disks").
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    /// Storage class. Default: that of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub storage_class_name: Option<String>,
    /// Whether the claims outlive the attempt and the HybridJob. The next attempt cannot use what is on them.
    #[serde(default)]
    pub retain: bool,
}

/// A volume and where it is mounted.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.mountPath.startsWith('/') && !self.mountPath.contains(':') && !(self.mountPath + '/').contains('/../')")
        .message("mountPath is an absolute path without .. and without a colon").field_path(".mountPath"),
    validation = Rule::new("!has(self.subPath) || !(self.subPath.startsWith('/') || ('/' + self.subPath + '/').contains('/../'))")
        .message("subPath is a relative path without ..").field_path(".subPath"),
    validation = Rule::new("!self.readOnly || !(has(self.source.emptyDir) || has(self.source.ephemeral))")
        .message("what is made empty for each pod and read-only stays empty: set readOnly to false").field_path(".readOnly")
)]
pub struct MountedVolume {
    /// Absolute path in every container; paths of the job file start with it.
    #[schemars(length(min = 2, max = 512))]
    pub mount_path: String,
    /// Folder inside the volume. Default: its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub sub_path: Option<String>,
    /// Whether it is mounted read-only.
    #[serde(default = "super::yes")]
    pub read_only: bool,
    /// The source of the volume.
    pub source: VolumeSource,
}

/// The source of a volume: exactly one of these.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.claimName), has(self.configMapName), has(self.secretName), has(self.emptyDir), has(self.ephemeral), has(self.hostPath), has(self.nfs), has(self.csi)].filter(x, x).size() == 1")
    .message("give exactly one of claimName, configMapName, secretName, emptyDir, ephemeral, hostPath, nfs and csi"))]
pub struct VolumeSource {
    /// A PersistentVolumeClaim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = rules::NAME))]
    pub claim_name: Option<String>,
    /// A ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = rules::NAME))]
    pub config_map_name: Option<String>,
    /// A Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = rules::NAME))]
    pub secret_name: Option<String>,
    /// A folder that is empty when the pod starts and is deleted with the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_dir: Option<EmptyDir>,
    /// A disk that is made for each pod and is deleted with the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<EphemeralClaim>,
    /// A file or folder of the node. The baseline Pod Security profile refuses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<HostPathVolumeSource>,
    /// A folder of an NFS server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nfs: Option<NFSVolumeSource>,
    /// A volume that a CSI driver makes inline: an object store's bucket, secrets of a vault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csi: Option<CSIVolumeSource>,
}

impl VolumeSource {
    /// The object that the source names, for a person: `claim criteo`. A volume that is made for the pod names none.
    pub fn object_name(&self) -> Option<String> {
        let describe = |kind: &str, name: &Option<String>| name.as_ref().map(|name| format!("{kind} {name}"));
        describe("claim", &self.claim_name)
            .or_else(|| describe("ConfigMap", &self.config_map_name))
            .or_else(|| describe("Secret", &self.secret_name))
            .or_else(|| self.host_path.as_ref().map(|host| format!("{} of the node", host.path)))
            .or_else(|| self.nfs.as_ref().map(|nfs| format!("{} of NFS server {}", nfs.path, nfs.server)))
            .or_else(|| self.csi.as_ref().map(|csi| format!("a volume of driver {}", csi.driver)))
    }
}

/// A folder that is empty when the pod starts.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EmptyDir {
    /// The medium. Default: the node's disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub medium: Option<FolderMedium>,
    /// The most that it may hold. Default: no limit of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_limit: Option<Quantity>,
}

/// The medium of an empty folder.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FolderMedium {
    /// Memory. It counts as memory of the containers that write to it.
    Memory,
}

/// A disk that is made for each pod.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EphemeralClaim {
    /// Size, for example `200Gi`.
    pub size: Quantity,
    /// Storage class. Default: that of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub storage_class_name: Option<String>,
}
