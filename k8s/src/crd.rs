//! `HybridJob`, group `zagros.dev`, version `v1alpha1`: the raw types, from which the schema, its defaults and its CEL
//! rules come. The rest of the operator works with `ValidJob`.

#![expect(unreachable_pub, reason = "KubeSchema copies each struct, `pub` and all, into the body of a function")]

mod pod;
mod policy;
mod rules;
mod schema;
mod status;
mod volume;

use k8s_openapi::api::core::v1::PodSecurityContext;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use pod::{EnvName, PodSettings, SidecarSpec};
pub use policy::{
    CleanPodPolicy, ElasticitySpec, ExitCodes, GangScheduler, GangSpec, MonitoringSpec, RunPolicy, SchedulingSpec,
};
pub use schema::{KUBERNETES_FIELDS, definition_yaml, resource_definition};
pub use status::{
    AttemptFailure, COMPLETE, ConditionStatus, FAILED, HybridJobStatus, JobCondition, LastCheckpoint, READY,
    RECONCILED, RoleCount, RoleCounts, RowsRecovery, RunPhase, RunProgress, SCALED, SUSPENDED, ServerScaling, VALID,
};
pub use volume::{ClaimTemplate, EmptyDir, EphemeralClaim, FolderMedium, MountedVolume, VolumeSource};

/// A training run of Zagros: one coordinator, embedding servers that hold the rows, dense workers that train.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "zagros.dev",
    version = "v1alpha1",
    kind = "HybridJob",
    plural = "hybridjobs",
    shortname = "hj",
    category = "all",
    namespaced,
    status = "HybridJobStatus",
    derive = "PartialEq",
    doc = "A training run of Zagros: one coordinator, embedding servers, dense workers.",
    scale(
        spec_replicas_path = ".spec.denseWorkers.replicas",
        status_replicas_path = ".status.workers",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Servers", type_ = "string", json_path = ".status.roles.embeddingServers.summary"),
    printcolumn(name = "Workers", type_ = "string", json_path = ".status.roles.denseWorkers.summary"),
    printcolumn(name = "Step", type_ = "integer", json_path = ".status.progress.step"),
    printcolumn(name = "AUC", type_ = "string", json_path = ".status.progress.auc"),
    printcolumn(name = "Checkpoint", type_ = "integer", json_path = ".status.lastCheckpoint.step"),
    printcolumn(name = "Attempt", type_ = "integer", json_path = ".status.attempt"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = "1"),
    validation = Rule::new("self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name names pods and services: at most 40 lower-case letters, digits and -, starting with a letter"),
    validation = rules::fixed("job", "the run goes on with the job file that it started with"),
    validation = rules::fixed("image", "its pods run it"),
    validation = rules::fixed_option("imagePullPolicy", "its pods are made from it"),
    validation = rules::fixed_option("imagePullSecrets", "its pods are made from it"),
    validation = rules::fixed("coordinator", "its pod is made from it"),
    validation = rules::fixed_option("embeddingServers.storage", "Kubernetes changes no claim of a StatefulSet"),
    validation = rules::fixed_without_log("embeddingServers.pod", "their rows live in memory, and they have no log"),
    validation = rules::fixed("denseWorkers.pod", "its pods are made from it"),
    validation = rules::fixed_workers(),
    validation = rules::fixed_option("volumes", "its pods are made from it"),
    validation = rules::fixed_option("output", "its pods are made from it, and its checkpoints lie there"),
    validation = rules::fixed("scheduling", "its pods are made from it"),
    validation = rules::fixed_option("serviceAccountName", "its pods are made from it"),
    validation = rules::fixed_option("podSecurityContext", "its pods are made from it"),
    validation = rules::fixed("runPolicy.backoffLimit", "the workers' Job was made with it"),
    validation = rules::fixed("runPolicy.exitCodes", "the workers' Job was made with it"),
    validation = rules::fixed_least_workers(),
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.elasticity) || (self.denseWorkers.replicas >= self.elasticity.minWorkers && self.denseWorkers.replicas <= self.elasticity.maxWorkers)")
        .message("denseWorkers.replicas must lie within elasticity.minWorkers and elasticity.maxWorkers"),
    validation = Rule::new("!has(self.volumes) || self.volumes.all(v, self.volumes.exists_one(w, w.mountPath == v.mountPath))")
        .message("two volumes are mounted at one mountPath"),
)]
pub struct HybridJobSpec {
    /// The job file.
    pub job: JobSource,
    /// Image whose entrypoint is `zagros`, for every role. Name a fixed tag or digest.
    #[schemars(length(min = 1, max = 512), regex(pattern = rules::IMAGE))]
    pub image: String,
    /// When the kubelet pulls the image: Always, IfNotPresent or Never. Default: Kubernetes' own rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<PullPolicy>,
    /// Names of the Secrets that the image is pulled with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253), regex(pattern = rules::NAME)))]
    pub image_pull_secrets: Vec<String>,
    /// The coordinator. A run has one.
    #[serde(default)]
    pub coordinator: CoordinatorSpec,
    /// The embedding servers. They need memory.
    pub embedding_servers: EmbeddingServers,
    /// The dense workers. They need CPUs or GPUs.
    pub dense_workers: DenseWorkers,
    /// Volumes mounted in every role: data sets, TorchScript files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub volumes: Vec<MountedVolume>,
    /// Where run folders and models are written, mounted at `/output`. Servers write the rows, worker 0 writes all else.
    /// Pods on several nodes need a claim that they can share (ReadWriteMany), unless the job's `checkpoint.folder` and
    /// `output.model_folder` are in an object store. Default: an empty directory of each pod, deleted with the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputClaim>,
    /// How the run ends, and when it is tried again.
    #[serde(default)]
    pub run_policy: RunPolicy,
    /// How many workers the run may have. `kubectl scale` changes their number while the run trains, in modes `hybrid` and
    /// `async`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elasticity: Option<ElasticitySpec>,
    /// How the pods are scheduled as a group.
    #[serde(default)]
    pub scheduling: SchedulingSpec,
    /// Monitoring of the run.
    #[serde(default)]
    pub monitoring: MonitoringSpec,
    /// Whether a NetworkPolicy admits only pods of this run to its ports. The HTTP port stays open for metrics.
    #[serde(default = "yes")]
    pub network_policy: bool,
    /// Whether PodDisruptionBudgets protect the run from voluntary evictions (node drains). Where a lost worker restarts
    /// alone, one worker at a time may be evicted. Pods whose loss restarts the whole run may not.
    #[serde(default = "yes")]
    pub disruption_budget: bool,
    /// Service account of the pods, for access to storage. Its token is not mounted. Default: the namespace's default
    /// account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::NAME))]
    pub service_account_name: Option<String>,
    /// Users and groups of all pods. Default: user and group 65532, which also own the volumes. A given value replaces
    /// them: `{}` leaves them to the platform, as OpenShift's restricted-v2 demands. Unless given, `runAsNonRoot`,
    /// `seccompProfile` and `fsGroupChangePolicy` follow the restricted Pod Security profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_security_context: Option<PodSecurityContext>,
}

impl HybridJobSpec {
    /// The same with so many embedding servers and dense workers.
    #[must_use]
    pub fn with_numbers(mut self, servers: i32, workers: i32) -> Self {
        self.embedding_servers.replicas = servers;
        self.dense_workers.replicas = workers;
        self
    }
}

/// Where the job file comes from: `inline` or `configMap`. The operator sets `cluster.servers`, `cluster.workers`,
/// `cluster.coordinator`, `cluster.server_addresses`, `cluster.worker_address`, `cluster.admin` and `output.folder`.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.inline) != has(self.configMap)").message("give exactly one of job.inline and job.configMap"))]
pub struct JobSource {
    /// The text of the job file (TOML).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 262_144))]
    pub inline: Option<String>,
    /// A ConfigMap of the same namespace. It is read when an attempt starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapKey>,
}

/// A key of a ConfigMap.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapKey {
    /// Name of the ConfigMap.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::NAME))]
    pub name: String,
    /// Key in its `data`.
    #[serde(default = "job_key")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// When an image is pulled.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PullPolicy {
    /// Each time a container starts.
    Always,
    /// When the node does not have it.
    IfNotPresent,
    /// Not at all.
    Never,
}

/// The coordinator.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CoordinatorSpec {
    /// Its pod.
    #[serde(default)]
    pub pod: PodSettings,
    /// The disk of its journal, mounted at `/var/lib/zagros`. Default: a claim of 1Gi of the cluster's storage class if the
    /// servers have a log (`cluster.durability`); otherwise an empty directory, which goes with the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<ClaimTemplate>,
}

/// The embedding servers.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EmbeddingServers {
    /// How many pods.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1024))]
    pub replicas: i32,
    /// Their pods.
    #[serde(default)]
    pub pod: PodSettings,
    /// The disk of each server, for its log and for rows beyond `cluster.memory`, mounted at `/var/lib/zagros`. Default: a claim
    /// of the computed size and the cluster's storage class if the servers have a log (`cluster.durability`); otherwise an
    /// empty directory, which goes with the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<ClaimTemplate>,
}

/// The dense workers.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DenseWorkers {
    /// How many pods.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1024))]
    pub replicas: i32,
    /// Their pods.
    #[serde(default)]
    pub pod: PodSettings,
}

/// A claim for run folders and models.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OutputClaim {
    /// Name of a PersistentVolumeClaim of the same namespace.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::NAME))]
    pub claim_name: String,
    /// Folder in the claim. Default: its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(validation = Rule::new("!(self.startsWith('/') || ('/' + self + '/').contains('/../'))").message("subPath is a relative path without .."))]
    pub sub_path: Option<String>,
}

pub(crate) fn yes() -> bool {
    true
}

fn one() -> i32 {
    1
}

fn job_key() -> String {
    "job.toml".to_owned()
}
