//! How a run ends, fails, is tried again, and is placed.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zagros_plumbing::exit_codes::EXIT_CODES;

/// How the run ends, and when it is tried again.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunPolicy {
    /// How often the whole group restarts after a failure before the job fails. In modes `hybrid` and `async`
    /// with several workers, a lost worker restarts alone; each worker may do so as often as this.
    #[serde(default = "backoff_limit")]
    #[schemars(range(min = 0, max = 1000))]
    pub backoff_limit: i32,
    /// The longest time that all attempts of the job may take, in seconds. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub active_deadline_seconds: Option<i64>,
    /// Seconds after its end at which the HybridJob is deleted with all that it owns. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i64>,
    /// Which pods are deleted when the job is over.
    #[serde(default)]
    pub clean_pod_policy: CleanPodPolicy,
    /// Whether the job waits. All its pods are deleted; a new attempt starts once this is false again.
    #[serde(default)]
    pub suspend: bool,
    /// Which exit codes of a role lead to another attempt.
    #[serde(default)]
    pub exit_codes: ExitCodes,
}

impl Default for RunPolicy {
    fn default() -> Self {
        Self {
            backoff_limit: backoff_limit(),
            active_deadline_seconds: None,
            ttl_seconds_after_finished: None,
            clean_pod_policy: CleanPodPolicy::default(),
            suspend: false,
            exit_codes: ExitCodes::default(),
        }
    }
}

/// Which pods are deleted when the job is over.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CleanPodPolicy {
    /// The pods that still run: the servers. Ended pods stay, with their logs.
    #[default]
    Running,
    /// All pods.
    All,
    /// No pod. The servers stay up for inspection until the HybridJob is deleted.
    None,
}

/// Which exit codes lead to another attempt.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExitCodes {
    /// Codes after which the group restarts. Default: 1 (the machine failed), 4 (another process was gone), 7 (fenced),
    /// 130 and 143 (asked to stop) and those of a killed process (134, 135, 137, 139). After any other code, such as
    /// 2 (job file), 3 (data) or 5 (diverged), the same would happen again, so the job fails.
    #[serde(default = "retryable")]
    #[schemars(length(max = 64), inner(range(min = 1, max = 255)))]
    pub retryable: Vec<i32>,
}

impl Default for ExitCodes {
    fn default() -> Self {
        Self { retryable: retryable() }
    }
}

/// How many workers a run may have.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.minWorkers <= self.maxWorkers").message("minWorkers is above maxWorkers"))]
pub struct ElasticitySpec {
    /// The fewest workers. In modes `hybrid` and `async` a run goes on without a lost worker that is not replaced in time, while
    /// this many workers are left. Sets `cluster.min_workers` unless the job file does.
    #[schemars(range(min = 1, max = 1024))]
    pub min_workers: i32,
    /// The most workers. In modes `hybrid` and `async` it sets `cluster.max_workers` unless the job file does: up to so many join
    /// the attempt while it trains.
    #[schemars(range(min = 1, max = 1024))]
    pub max_workers: i32,
}

/// How the pods are scheduled as a group.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingSpec {
    /// Schedules all pods at once or none. Default: each pod by itself, servers before workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<GangSpec>,
    /// Name of the scheduler. Default: `volcano` for a gang of Volcano, otherwise Kubernetes' own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = super::rules::NAME))]
    pub scheduler_name: Option<String>,
}

/// A gang.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GangSpec {
    /// Which scheduler's PodGroup is made.
    pub scheduler: GangScheduler,
    /// Queue of the group. Volcano only. Default: Volcano's default queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Seconds that the group may wait to be scheduled. Coscheduling only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub schedule_timeout_seconds: Option<i32>,
}

/// Which scheduler schedules gangs.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GangScheduler {
    /// Volcano: `scheduling.volcano.sh/v1beta1`.
    Volcano,
    /// The coscheduling plugin: `scheduling.x-k8s.io/v1alpha1`.
    Coscheduling,
}

/// Monitoring of the run.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MonitoringSpec {
    /// Whether a PodMonitor is made. The Prometheus operator must be installed.
    #[serde(default)]
    pub pod_monitor: bool,
}

fn backoff_limit() -> i32 {
    3
}

fn retryable() -> Vec<i32> {
    EXIT_CODES.iter().filter(|known| known.is_retryable).map(|known| i32::from(known.code)).collect()
}
