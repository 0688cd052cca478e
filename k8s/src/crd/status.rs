//! The status of a HybridJob. It has a condition of each type once, with the time of its last change.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

// Types of conditions.
/// The operator can carry out the spec.
pub const VALID: &str = "Valid";
pub const READY: &str = "Ready";
/// The operator's last work succeeded.
pub const RECONCILED: &str = "Reconciled";
/// The run has as many embedding servers as the spec says.
pub const SCALED: &str = "Scaled";
/// The job waits because of `runPolicy.suspend`.
pub const SUSPENDED: &str = "Suspended";
pub const COMPLETE: &str = "Complete";
pub const FAILED: &str = "Failed";

/// The status of the run. Only the operator writes it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HybridJobStatus {
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Phase of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<RunPhase>,
    /// What the run waits for, or why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Number of the attempt, from 1. The names of its objects contain it. It is recorded before they are made.
    #[serde(default)]
    pub attempt: i32,
    /// Attempts that failed and were followed by another. At most `backoffLimit`.
    #[serde(default)]
    pub restarts: i32,
    /// Workers of this attempt that were lost and restarted while the others waited. At most `backoffLimit` for each
    /// worker.
    #[serde(default)]
    pub worker_restarts: i32,
    /// When a worker was lost for which the others still wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers_lost: Option<Time>,
    /// When all workers were back after that. An exit before this time is no reason for a later failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers_back: Option<Time>,
    /// What the rows of a lost embedding server come back from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RowsRecovery>,
    /// When the first attempt started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the job succeeded or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Pods of each role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roles: Option<RoleCounts>,
    /// How many workers there are. For the scale subresource.
    #[serde(default)]
    pub workers: i32,
    /// Selector of the workers' pods. For the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The coordinator's last report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<RunProgress>,
    /// The newest complete checkpoint. The next attempt goes on from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<LastCheckpoint>,
    /// Parent of the run folder on the output volume. It holds the model and all measures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The last attempt that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<AttemptFailure>,
    /// Valid, Ready, Scaled, Suspended, Complete, Failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<JobCondition>,
}

/// What the rows of a lost embedding server come back from.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowsRecovery {
    /// Its log: the server comes back, and the run goes on.
    Log,
    /// The newest checkpoint: the whole group starts anew.
    Checkpoint,
}

/// Phase of a run.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunPhase {
    /// The spec cannot be carried out. The operator waits for a change.
    Invalid,
    /// The job waits, because of `runPolicy.suspend`.
    Suspended,
    /// Pods are being made.
    Starting,
    /// Every role is ready.
    Running,
    /// An attempt failed. The next one starts soon.
    Restarting,
    /// The training is complete.
    Succeeded,
    /// The job has failed for good.
    Failed,
}

impl RunPhase {
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

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
    /// Pods that the role should have.
    pub desired: i32,
    /// Pods that are ready, or have succeeded.
    pub ready: i32,
    /// Both numbers, for `kubectl get`: `2/3`.
    pub summary: String,
}

/// A report of the coordinator.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunProgress {
    /// Batches trained by the most advanced worker.
    pub step: i64,
    /// Step of the newest complete checkpoint; 0 before the first.
    #[serde(default)]
    pub checkpoint_step: i64,
    /// Embedding servers that the coordinator counts as alive.
    #[serde(default)]
    pub servers: i32,
    /// A change of their number or of that of the workers; absent until a user has asked for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<ServerScaling>,
    /// Epoch over the data, from 1.
    pub epoch: i32,
    /// Epochs in all.
    pub epochs: i32,
    /// Samples per second, all workers together.
    pub samples_per_second: i64,
    /// Smoothed loss, nats. It is text, because a number in JSON cannot be NaN.
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
    /// The reason, in the coordinator's words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

// The aliases are the names in the coordinator's own report.
/// A change of the numbers of embedding servers and dense workers while the run trains, as the coordinator reports it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerScaling {
    /// Servers of the run, with those that have not joined yet and those that leave. There are as many pods.
    pub servers: i32,
    /// Servers that the run is to have.
    #[serde(alias = "servers_wanted")]
    pub wanted: i32,
    /// Buckets that still have to move.
    #[serde(alias = "buckets_left")]
    pub buckets_left: i32,
    /// Dense workers that train.
    #[serde(default)]
    pub workers: i32,
    /// Dense workers that the run is to have; 0 while no user has asked for another number than that of the attempt's job file.
    #[serde(default, alias = "workers_wanted")]
    pub workers_wanted: i32,
    /// All of it in one sentence.
    pub text: String,
}

/// A checkpoint.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastCheckpoint {
    /// Steps made before the checkpoint.
    pub step: i64,
    /// When the operator first heard of it, some seconds after it was written.
    pub seen: Time,
}

/// Why an attempt failed.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttemptFailure {
    /// Number of the attempt.
    pub attempt: i32,
    /// The pod that caused the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Its exit code: docs/exit-codes.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// When the operator noticed it. The pause before the next attempt starts here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// The reason, in words.
    pub message: String,
}

/// One aspect of the run.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobCondition {
    /// Valid, Ready, Scaled, Suspended, Complete or Failed.
    #[serde(rename = "type")]
    pub type_: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// The reason, as one CamelCase word.
    pub reason: String,
    /// The reason, in words.
    pub message: String,
    /// When `status` changed last.
    pub last_transition_time: Time,
    /// Generation of the spec that the condition is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Whether a condition holds.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// Unknown.
    Unknown,
}

impl HybridJobStatus {
    pub fn condition(&self, type_: &str) -> Option<&JobCondition> {
        self.conditions.iter().find(|one| one.type_ == type_)
    }

    pub fn set_condition(&mut self, mut condition: JobCondition) {
        match self.conditions.iter_mut().find(|one| one.type_ == condition.type_) {
            Some(known) => {
                if known.status == condition.status {
                    condition.last_transition_time = known.last_transition_time.clone();
                }
                *known = condition;
            }
            None => self.conditions.push(condition),
        }
    }

    /// What Kubernetes refused last, until the operator's work succeeds.
    pub fn refusal(&self) -> Option<&str> {
        let refused = self.condition(RECONCILED).filter(|one| one.status == ConditionStatus::False);
        refused.map(|one| one.message.as_str())
    }
}

impl JobCondition {
    pub fn new(type_: &str, holds: bool, reason: &str, message: &str, generation: Option<i64>, now: Timestamp) -> Self {
        Self {
            type_: type_.to_owned(),
            status: if holds { ConditionStatus::True } else { ConditionStatus::False },
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_transition_time: Time(now),
            observed_generation: generation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_the_last_change() {
        let mut status = HybridJobStatus::default();
        let mut set = |type_: &str, holds: bool, message: &str, seconds: i64| {
            let now = Timestamp::from_second(seconds).unwrap();
            status.set_condition(JobCondition::new(type_, holds, "Reason", message, Some(seconds), now));
            let known = status.condition(type_).unwrap();
            assert_eq!((known.message.as_str(), known.observed_generation), (message, Some(seconds)));
            (known.last_transition_time.0.as_second(), status.conditions.len())
        };
        assert_eq!(set(READY, false, "0 of 3", 10), (10, 1));
        assert_eq!(set(READY, false, "1 of 3", 20), (10, 1));
        assert_eq!(set(VALID, true, "", 20), (20, 2));
        assert_eq!(set(READY, true, "3 of 3", 30), (30, 2));
    }
}
