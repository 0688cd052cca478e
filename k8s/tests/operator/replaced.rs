//! How Kubernetes' Job controller treats a pod that ended badly: it ends the Job, or replaces the pod of that number
//! later.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::kubelet::has_ended;

/// Kubernetes' first pause before it replaces a pod.
const PAUSE: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(crate) struct ReplacedPods {
    failures: Mutex<BTreeMap<(String, i64), PodFailures>>,
}

struct PodFailures {
    pods: u64,
    /// How many of them count as failures.
    count: u64,
    last: Instant,
    is_given_up: bool,
}

impl ReplacedPods {
    /// The suffix of the pod that a number should have now; `None` during the pause, and for a number that was given up.
    pub(crate) fn suffix(&self, job: &str, index: i64) -> Option<String> {
        match self.failures.lock().unwrap().get(&(job.to_owned(), index)) {
            None => Some(format!("{index}-x7k2p")),
            Some(failures) if failures.is_given_up || failures.last.elapsed() < PAUSE => None,
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
            if let Some(reason) = self.fails(&job["spec"], name, index.parse().unwrap(), code) {
                return Some(("Failed", reason));
            }
        }
        let given_up = self.given_up(name);
        let ended = job["status"]["succeeded"].as_u64().unwrap_or(0) + given_up;
        let is_over = ended == job["spec"]["parallelism"].as_u64().unwrap_or(1);
        is_over.then_some(if given_up == 0 { ("Complete", "") } else { ("Failed", "FailedIndexes") })
    }

    /// The program in the pod is not at fault, and the Job does not count this if its policy says so.
    pub(crate) fn is_disrupted(&self, job: &str, index: i64) {
        let mut failures = self.failures.lock().unwrap();
        let none = PodFailures { pods: 0, count: 0, last: Instant::now(), is_given_up: false };
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
    pub(crate) fn delays(&self, job: &Value, pod: &Value, pods: &[Value]) -> bool {
        let index = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().rsplit('-').nth(1).unwrap().to_owned();
        let is_over = !job["status"]["conditions"].is_null() || job["spec"]["suspend"] == true;
        let name = job["metadata"]["name"].as_str().unwrap();
        if is_over || job["spec"]["backoffLimitPerIndex"].is_null() || pod["status"]["phase"] != "Failed" {
            return false;
        }
        let number: i64 = index(pod).parse().unwrap();
        let is_given_up =
            self.failures.lock().unwrap().get(&(name.to_owned(), number)).is_some_and(|failures| failures.is_given_up);
        let is_active = |other: &&Value| index(other) == index(pod) && !has_ended(other);
        !is_given_up
            && !is_beyond(job, pod["metadata"]["name"].as_str().unwrap())
            && !pods.iter().any(|one| is_active(&one))
    }

    fn fails(&self, spec: &Value, job: &str, index: i64, code: Option<i32>) -> Option<&'static str> {
        let Some(limit) = spec["backoffLimitPerIndex"].as_u64() else { return Some("BackoffLimitExceeded") };
        let retryable = &spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"];
        if code.is_some_and(|code| !retryable.as_array().unwrap().contains(&json!(code))) {
            return Some("PodFailurePolicy");
        }
        let key = (job.to_owned(), index);
        let earlier =
            self.failures.lock().unwrap().get(&key).map_or((0, 0), |failures| (failures.pods, failures.count));
        let (pods, count) = (earlier.0 + 1, earlier.1 + 1);
        let failures = PodFailures { pods, count, last: Instant::now(), is_given_up: count > limit };
        self.failures.lock().unwrap().insert(key, failures);
        (self.given_up(job) > spec["maxFailedIndexes"].as_u64().unwrap()).then_some("MaxFailedIndexesExceeded")
    }

    fn given_up(&self, job: &str) -> u64 {
        let failures = self.failures.lock().unwrap();
        failures.iter().filter(|((name, _), failures)| name == job && failures.is_given_up).count() as u64
    }
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
