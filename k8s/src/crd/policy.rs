//! How a run ends, fails, is tried again, and is placed.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zagros_plumbing::exit_codes::EXIT_CODES;

/// How the run ends, fails and is tried again.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunPolicy {
    /// How often the whole group is started anew after a failure before the job fails. In mode `hybrid` with several
    /// workers a lost worker is started again by itself while the others wait, each as often as this.
    #[serde(default = "backoff_limit")]
    #[schemars(range(min = 0, max = 1000))]
    pub backoff_limit: i32,
    /// Longest time that the job may take, all attempts together, in seconds. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub active_deadline_seconds: Option<i64>,
    /// Seconds after its end when the HybridJob is deleted with all that it owns. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i64>,
    /// Which pods go when the job is over.
    #[serde(default)]
    pub clean_pod_policy: CleanPodPolicy,
    /// Whether the job waits: all its pods go, and a new attempt starts when it is set back.
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

/// Which pods go when the job is over.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CleanPodPolicy {
    /// Those that still run: the servers. Ended pods stay, with their logs.
    #[default]
    Running,
    /// All.
    All,
    /// None: servers stay up, for someone who wants to look at them, until the HybridJob is deleted.
    None,
}

/// Which exit codes lead to another attempt.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExitCodes {
    /// Codes after which the group is started anew: by default 1 (the machine failed), 4 (another process was gone),
    /// 7 (fenced), 130 and 143 (asked to stop) and those of a killed process (134, 135, 137, 139). After any other, such as
    /// 2 (job file), 3 (data) or 5 (diverged), the same would happen again, and the job fails.
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
pub struct Elasticity {
    /// At least. In mode `hybrid` a run goes on without lost workers for which none comes in time as long as so many are
    /// left (`cluster.min_workers`, unless the job file sets it).
    #[schemars(range(min = 1, max = 1024))]
    pub min_workers: i32,
    /// At most.
    #[schemars(range(min = 1, max = 1024))]
    pub max_workers: i32,
}

/// Scheduling of the pods as a group.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scheduling {
    /// All pods at once or none. Default: each pod by itself, servers before workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<Gang>,
    /// Name of the scheduler. Default: Volcano's with a gang of Volcano's, otherwise Kubernetes' own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = super::pattern::NAME))]
    pub scheduler_name: Option<String>,
}

/// A gang.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gang {
    /// Whose PodGroup is made.
    pub scheduler: GangScheduler,
    /// Queue of the group; Volcano only. Default: Volcano's default queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Seconds that the group may wait for places; coscheduling only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub schedule_timeout_seconds: Option<i32>,
}

/// Who schedules gangs.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GangScheduler {
    /// Volcano: `scheduling.volcano.sh/v1beta1`.
    Volcano,
    /// The coscheduling plugin: `scheduling.x-k8s.io/v1alpha1`.
    Coscheduling,
}

/// What watches the run.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Monitoring {
    /// Whether a PodMonitor of the Prometheus operator is made, which must be installed.
    #[serde(default)]
    pub pod_monitor: bool,
}

fn backoff_limit() -> i32 {
    3
}

fn retryable() -> Vec<i32> {
    EXIT_CODES.iter().filter(|known| known.is_retryable).map(|known| i32::from(known.code)).collect()
}
