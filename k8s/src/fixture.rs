//! A valid HybridJob, and a pod in its first state, for tests that change one thing.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::crd::HybridJob;
use crate::names::{PodRole, RunAttempt};
use crate::observe::{OwnedKind, OwnedObject, PodState};

pub(crate) const JOB_TEXT: &str = "\
# What the user wrote stays.
[data]
format = \"criteo\"
train = \"/data/train.txt\"
test = \"/data/test.txt\"

[train]
seed = 7
";

/// `ctr` in `ads`: three servers, two workers, data on a claim.
pub(crate) fn hybrid_job() -> HybridJob {
    let spec = json!({
        "job": { "inline": JOB_TEXT },
        "image": "registry.example/zagros:1.0",
        "embeddingServers": { "replicas": 3 },
        "denseWorkers": { "replicas": 2 },
        "volumes": [{ "mountPath": "/data", "source": { "claimName": "criteo" } }],
    });
    let mut job = HybridJob::new("ctr", serde_json::from_value(spec).expect("a spec"));
    job.metadata.namespace = Some("ads".to_owned());
    job.metadata.uid = Some("11111111-2222-3333-4444-555555555555".to_owned());
    job.metadata.generation = Some(1);
    job
}

pub(crate) fn attempt(number: i32) -> RunAttempt {
    RunAttempt { job: "ctr".to_owned(), namespace: "ads".to_owned(), number }
}

/// A pod of attempt 1 that is not ready, has not ended, and has no fault.
pub(crate) fn pod(name: &str, role: PodRole) -> PodState {
    PodState {
        name: name.to_owned(),
        attempt: Some(1),
        role,
        is_ready: false,
        exit: None,
        revision: None,
        done: None,
        trouble: None,
        creating: None,
        departure: None,
        until: None,
        has_ended: false,
    }
}

pub(crate) fn timestamp(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

pub(crate) fn owned(kind: OwnedKind, attempt: i32) -> OwnedObject {
    let name = format!("ctr-{attempt}-{kind:?}");
    OwnedObject { kind, name, attempt: Some(attempt), is_active: true, is_deleting: false }
}

pub(crate) fn merge(value: &mut Value, over: &Value) {
    match (value, over) {
        (Value::Object(fields), Value::Object(over)) => {
            for (key, over) in over {
                merge(fields.entry(key).or_insert(Value::Null), over);
            }
        }
        (value, over) => *value = over.clone(),
    }
}
