//! What Kubernetes' Job controller does with a pod that ended badly: it gives the Job up, or makes the pod of that number
//! anew after a pause.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

/// Kubernetes' first pause before a pod is made anew.
const PAUSE: Duration = Duration::from_secs(10);

/// Failures by Job and number.
#[derive(Default)]
pub(crate) struct Replaced {
    failures: Mutex<BTreeMap<(String, i64), Vec<Instant>>>,
}

impl Replaced {
    /// The end of the name of the pod that a number should have now; `None` during the pause.
    pub(crate) fn suffix(&self, job: &str, index: i64) -> Option<String> {
        let failures = self.failures.lock().unwrap();
        match failures.get(&(job.to_owned(), index)) {
            None => Some(format!("{index}-x7k2p")),
            Some(since) => (since.last().unwrap().elapsed() >= PAUSE).then(|| format!("{index}-again{}", since.len())),
        }
    }

    /// A pod failed with a code, or was lost without one. Answers why the Job has failed, if it has.
    pub(crate) fn fails(&self, job: &mut Value, pod: &str, code: Option<i32>) -> Option<&'static str> {
        job["status"]["failed"] = json!(job["status"]["failed"].as_i64().unwrap_or(0) + 1);
        let spec = &job["spec"];
        let Some(limit) = spec["backoffLimitPerIndex"].as_i64() else { return Some("BackoffLimitExceeded") };
        let retryable = &spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"];
        if code.is_some_and(|code| !retryable.as_array().unwrap().contains(&json!(code))) {
            return Some("PodFailurePolicy");
        }
        let mut failures = self.failures.lock().unwrap();
        let (name, index) = (pod.rsplitn(3, '-').last().unwrap(), pod.rsplit('-').nth(1).unwrap());
        let of_index = failures.entry((name.to_owned(), index.parse().unwrap())).or_default();
        of_index.push(Instant::now());
        (of_index.len() as i64 > limit).then_some("MaxFailedIndexesExceeded")
    }
}
