//! What is told back.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the run does. Written by the operator alone.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HybridJobStatus {
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The run in a word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// What is waited for, or why the run ended as it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Number of the attempt, from 1; objects of the attempt carry it in their names. Recorded before they are made.
    #[serde(default)]
    pub attempt: i32,
    /// Attempts that failed and were followed by another; `backoffLimit` bounds them.
    #[serde(default)]
    pub restarts: i32,
    /// Workers of this attempt that were lost and started again while the others waited; `backoffLimit` bounds them, for
    /// each worker by itself.
    #[serde(default)]
    pub worker_restarts: i32,
    /// When a worker was lost that is not there again yet, and the others wait for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers_lost: Option<Time>,
    /// When all workers were there again after that: how one ended before is no reason for a later failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers_back: Option<Time>,
    /// What the attempt was made from: a changed spec makes another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_hash: Option<String>,
    /// When the first attempt started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the job succeeded or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Pods of each role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roles: Option<RoleCounts>,
    /// Workers that there are; for the scale subresource.
    #[serde(default)]
    pub workers: i32,
    /// Selector of the workers' pods; for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// What the coordinator told last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The newest complete checkpoint: the next attempt goes on from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<LastCheckpoint>,
    /// Parent of the run folder, on the output volume: the model and all measures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The last attempt that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<AttemptFailure>,
    /// Valid, Ready, Suspended, Complete, Failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// The run in a word.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The spec cannot be carried out; waits for a change of it.
    Invalid,
    /// Set to wait by `runPolicy.suspend`.
    Suspended,
    /// Pods are being made.
    Starting,
    /// Every role is ready.
    Running,
    /// An attempt failed; the next one is about to start.
    Restarting,
    /// Trained to the end.
    Succeeded,
    /// Given up.
    Failed,
}

impl Phase {
    /// Whether nothing more will be started.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// Whether pods run, or are about to be made.
    #[must_use]
    pub fn makes_pods(self) -> bool {
        matches!(self, Self::Starting | Self::Running | Self::Restarting)
    }
}

/// Pods of each role.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RoleCounts {
    /// The coordinator.
    pub coordinator: RoleCount,
    /// The embedding servers.
    pub embedding_servers: RoleCount,
    /// The dense workers.
    pub dense_workers: RoleCount,
}

/// Pods of a role.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RoleCount {
    /// Pods that there should be.
    pub desired: i32,
    /// Pods that are ready, or ended well.
    pub ready: i32,
    /// Both, for the printer: `2/3`.
    pub summary: String,
}

/// What the coordinator told.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Batches trained, by the worker that is furthest.
    pub step: i64,
    /// Step of the newest complete checkpoint; 0 before the first.
    #[serde(default)]
    pub checkpoint_step: i64,
    /// Epoch over the data, from 1.
    pub epoch: i32,
    /// Epochs in all.
    pub epochs: i32,
    /// Samples per second, all workers together.
    pub samples_per_second: i64,
    /// Smoothed loss, nats; text, as no number of JSON holds NaN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// Area under the ROC curve at the last evaluation, four digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auc: Option<String>,
    /// Log loss at the last evaluation, nats, four digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logloss: Option<String>,
    /// `waiting`, `training`, `finished`, `interrupted` or `failed`.
    pub state: String,
    /// Why, in the coordinator's words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// A checkpoint.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastCheckpoint {
    /// Steps made before it.
    pub step: i64,
    /// When it was first seen, some seconds after it was written.
    pub seen: Time,
}

/// Why an attempt failed.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttemptFailure {
    /// Which one.
    pub attempt: i32,
    /// The pod that is to blame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Its exit code: docs/exit-codes.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// When it was seen; the next attempt waits from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// In words.
    pub message: String,
}

/// One aspect of the run.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Valid, Ready, Suspended, Complete or Failed.
    #[serde(rename = "type")]
    pub type_: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Why, in one CamelCase word.
    pub reason: String,
    /// Why, for a person.
    pub message: String,
    /// When `status` changed last.
    pub last_transition_time: Time,
    /// Generation of the spec that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Whether a condition holds.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionStatus {
    /// It does.
    True,
    /// It does not.
    False,
    /// Not known.
    Unknown,
}
