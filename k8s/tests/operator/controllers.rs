//! What Kubernetes' controllers do with the objects that make pods.
//!
//! A StatefulSet updates its pods from the highest index down to the partition, each once the one before is ready. It makes the
//! claims of the pods and keeps them. A Job that has a pod that ended badly ends, or replaces the pod of that number later.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::kubelet::{has_ended, is_ready};
use crate::world::{ADS, ClusterWorld, key};

pub(crate) fn revision(set: &Value, index: i64) -> Value {
    let is_new = index >= partition(set);
    set["status"][if is_new { "updateRevision" } else { "currentRevision" }].clone()
}

fn partition(set: &Value) -> i64 {
    set["spec"]["updateStrategy"]["rollingUpdate"]["partition"].as_i64().unwrap_or(0)
}

pub(crate) fn step(world: &ClusterWorld, mut set: Value) -> Value {
    let name = set["metadata"]["name"].as_str().unwrap().to_owned();
    let mut hasher = DefaultHasher::new();
    set["spec"]["template"].to_string().hash(&mut hasher);
    let update = json!(format!("{name}-{:x}", hasher.finish() & 0xfff_ffff));
    if set["status"]["currentRevision"].is_null() {
        set["status"]["currentRevision"] = update.clone();
    }
    set["status"]["updateRevision"] = update.clone();
    set["status"]["observedGeneration"] = set["metadata"]["generation"].clone();
    let pod = |index: i64| world.api.store().get(&key("", "pods", &format!("{name}-{index}"))).ok();
    let is_new = |pod: &Value| pod["metadata"]["labels"]["controller-revision-hash"] == update;
    let pods = set["spec"]["replicas"].as_i64().unwrap();
    if (0..pods).all(|index| pod(index).is_some_and(|pod| is_new(&pod) && is_ready(&pod))) {
        set["status"]["currentRevision"] = update.clone();
    }
    for index in (partition(&set)..pods).rev() {
        let Some(pod) = pod(index) else { break };
        if !is_new(&pod) {
            if pod["metadata"]["deletionTimestamp"].is_null() {
                world.delete(&key("", "pods", pod["metadata"]["name"].as_str().unwrap()));
            }
            break;
        }
        if !is_ready(&pod) {
            break;
        }
    }
    remove_surplus(world, &name, pods);
    let place = key("apps", "statefulsets", &name);
    world.write(&place, set);
    world.api.store().get(&place).unwrap()
}

/// Asks the pods to end that are too many, as a StatefulSet with `podManagementPolicy: Parallel` does: all at once.
fn remove_surplus(world: &ClusterWorld, name: &str, replicas: i64) {
    let pods = world.api.store().prefixed("", "pods", ADS, &format!("{name}-"));
    for pod in pods {
        let pod_name = pod["metadata"]["name"].as_str().unwrap();
        let index: i64 = pod_name.rsplit('-').next().unwrap().parse().unwrap();
        if index >= replicas && pod["metadata"]["deletionTimestamp"].is_null() {
            world.delete(&key("", "pods", pod_name));
        }
    }
}

/// Keeps a claim that a pod uses.
const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// Makes the claims of a pod, unless they exist: a pod that is made again finds its claims.
pub(crate) fn claim(world: &ClusterWorld, set: &Value, pod: &str) {
    for template in set["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten() {
        let metadata = &template["metadata"];
        let name = format!("{}-{pod}", metadata["name"].as_str().unwrap());
        let place = key("", "persistentvolumeclaims", &name);
        if world.api.store().get(&place).is_ok() {
            continue;
        }
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": template["spec"],
            "metadata": {
                "name": name, "finalizers": [PROTECTION], "labels": metadata["labels"],
                "ownerReferences": metadata["ownerReferences"],
            },
        });
        world.write(&place, claim);
    }
}

/// Lets claims go that were deleted and that no pod uses any more.
pub(crate) fn release(world: &ClusterWorld) {
    let claims = world.api.store().list("", "persistentvolumeclaims", Some(ADS), "");
    for mut claim in claims.into_iter().filter(|claim| claim["metadata"]["deletionTimestamp"].is_string()) {
        let name = claim["metadata"]["name"].as_str().unwrap().to_owned();
        let pod = name.split_once('-').unwrap().1.to_owned();
        if !world.pods().contains(&pod) {
            claim["metadata"].as_object_mut().unwrap().remove("finalizers");
            world.write(&key("", "persistentvolumeclaims", &name), claim);
        }
    }
}

/// Kubernetes' first pause before it replaces a pod.
const PAUSE: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(crate) struct ReplacedPods {
    failures: Mutex<BTreeMap<(String, i64), PodFailures>>,
}

struct PodFailures {
    pods: u64,
    last: Instant,
}

impl ReplacedPods {
    /// The suffix of the pod that a number should have now; `None` during the pause.
    pub(crate) fn suffix(&self, job: &str, index: i64) -> Option<String> {
        match self.failures.lock().unwrap().get(&(job.to_owned(), index)) {
            None => Some(format!("{index}-x7k2p")),
            Some(failures) if failures.last.elapsed() < PAUSE => None,
            Some(failures) => Some(format!("{index}-again{}", failures.pods)),
        }
    }

    /// A pod ended with a code, or was lost without one. If this ends the Job, returns the type of its condition and
    /// the reason.
    pub(crate) fn ends(&self, job: &mut Value, pod: &str, code: Option<i32>) -> Option<(&'static str, &'static str)> {
        let (name, index) = (pod.rsplitn(3, '-').last().unwrap(), pod.rsplit('-').nth(1).unwrap());
        let more = |value: &Value| json!(value.as_u64().unwrap_or(0) + 1);
        if code == Some(0) {
            job["status"]["succeeded"] = more(&job["status"]["succeeded"]);
            let completed = job["status"]["completedIndexes"].as_str().unwrap_or_default();
            let mut done: Vec<&str> = completed.split(',').filter(|one| !one.is_empty()).chain([index]).collect();
            done.sort_unstable();
            job["status"]["completedIndexes"] = json!(done.join(","));
        } else {
            job["status"]["failed"] = more(&job["status"]["failed"]);
            if let Some(reason) = end_reason(&job["spec"], code) {
                return Some(("Failed", reason));
            }
            self.is_disrupted(name, index.parse().unwrap());
        }
        let is_over = job["status"]["succeeded"].as_u64() == Some(job["spec"]["parallelism"].as_u64().unwrap_or(1));
        is_over.then_some(("Complete", ""))
    }

    /// The program in the pod is not at fault, and the Job does not count this if its policy says so.
    pub(crate) fn is_disrupted(&self, job: &str, index: i64) {
        let mut failures = self.failures.lock().unwrap();
        let none = PodFailures { pods: 0, last: Instant::now() };
        let one = failures.entry((job.to_owned(), index)).or_insert(none);
        (one.pods, one.last) = (one.pods + 1, Instant::now());
    }

    /// Indices that a Job has no more are done again if they come back, by pods with other names.
    pub(crate) fn forget_beyond(&self, job: &mut Value) -> bool {
        let done = job["status"]["completedIndexes"].as_str().unwrap_or_default();
        let done: Vec<i64> = done.split(',').filter_map(|index| index.parse().ok()).collect();
        let most = job["spec"]["completions"].as_i64().unwrap();
        let (kept, gone): (Vec<i64>, Vec<i64>) = done.into_iter().partition(|index| *index < most);
        let name = job["metadata"]["name"].as_str().unwrap().to_owned();
        gone.iter().for_each(|index| self.is_disrupted(&name, *index));
        if !gone.is_empty() {
            let text: Vec<String> = kept.iter().map(ToString::to_string).collect();
            job["status"]["succeeded"] = json!(kept.len());
            job["status"]["completedIndexes"] = json!(text.join(","));
        }
        !gone.is_empty()
    }

    /// A Job counts the failures of each index in annotations of the pods, so it keeps the last pod of an index until
    /// the next one is there.
    pub(crate) fn delays(job: &Value, pod: &Value, pods: &[Value]) -> bool {
        let index = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().rsplit('-').nth(1).unwrap().to_owned();
        let is_over = !job["status"]["conditions"].is_null() || job["spec"]["suspend"] == true;
        if is_over || job["spec"]["backoffLimitPerIndex"].is_null() || pod["status"]["phase"] != "Failed" {
            return false;
        }
        let is_active = |other: &&Value| index(other) == index(pod) && !has_ended(other);
        !is_beyond(job, pod["metadata"]["name"].as_str().unwrap()) && !pods.iter().any(|one| is_active(&one))
    }
}

/// Why a Job ends with a pod that ended badly; `None` if another takes its place. No test exceeds the limit of an index.
fn end_reason(spec: &Value, code: Option<i32>) -> Option<&'static str> {
    if spec["backoffLimitPerIndex"].is_null() {
        return Some("BackoffLimitExceeded");
    }
    let retryable = &spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"];
    let is_policy = code.is_some_and(|code| !retryable.as_array().unwrap().contains(&json!(code)));
    is_policy.then_some("PodFailurePolicy")
}

/// Marks a pod as one whose end its Job has counted. Returns whether it was before.
pub(crate) fn count(pod: &mut Value) -> bool {
    let annotations = &mut pod["metadata"]["annotations"];
    let is_counted = annotations["counted"] == "true";
    annotations["counted"] = json!("true");
    is_counted
}

/// Whether a Job has no more the index of this pod of it: Kubernetes deletes the pod, and does not count how it ends.
pub(crate) fn is_beyond(job: &Value, pod: &str) -> bool {
    let index: i64 = pod.rsplit('-').nth(1).unwrap().parse().unwrap();
    job["spec"]["completions"].as_i64().is_some_and(|most| index >= most)
}
