//! What a kubelet does with the volumes and the containers of a pod.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// Why the containers of a pod would not have the mounts that they ask for, if so: a kubelet mounts a claim once for a
/// pod, for all of its containers with the rights of the first volume.
pub(crate) fn fault(spec: &Value) -> Option<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut mounted: BTreeMap<String, String> = BTreeMap::new();
    let containers = [list(&spec["initContainers"]), list(&spec["containers"])].concat();
    for volume in list(&spec["volumes"]) {
        let claim = &volume["persistentVolumeClaim"];
        let (Some(claim_name), Some(name)) = (claim["claimName"].as_str(), volume["name"].as_str()) else { continue };
        if let Some(other) = mounted.insert(claim_name.to_owned(), name.to_owned()) {
            return Some(format!("claim {claim_name} is mounted once, and {other} and {name} name it"));
        }
        let mut mounts = containers.iter().flat_map(|container| list(&container["volumeMounts"]));
        if claim["readOnly"] == true && mounts.any(|mount| mount["name"] == name && mount["readOnly"] != true) {
            return Some(format!("volume {name} is read-only, and a container would write to it"));
        }
    }
    None
}

/// How soon the kubelet starts a container again that ended for the first time.
const RESTARTS_WITHIN: SignedDuration = SignedDuration::from_secs(2);

/// Whether a Job made the pod. A StatefulSet made the others.
pub(crate) fn is_of_job(pod: &str) -> bool {
    pod.contains("-worker-")
}

pub(crate) fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let holds = |one: &&Value| one["type"] == "Ready" && one["status"] == "True";
    pod["status"]["phase"] == "Running" && conditions.is_some_and(|all| all.iter().find(holds).is_some())
}

pub(crate) fn set_ready(pod: &mut Value, is_ready: bool, now: &str) {
    let status = json!(if is_ready { "True" } else { "False" });
    for condition in pod["status"]["conditions"].as_array_mut().into_iter().flatten() {
        if condition["type"] == "Ready" && condition["status"] != status {
            condition["status"] = status.clone();
            condition["lastTransitionTime"] = json!(now);
        }
    }
}

/// The container of a pod that stays has ended. `state` is what follows; without one, the container is started soon.
pub(crate) fn stop(pod: &mut Value, code: i32, now: &str, state: Option<Value>) {
    let ended = terminated(code, now);
    let role = pod["metadata"]["labels"]["zagros.dev/role"].clone();
    let mut statuses = containers(&role, state.clone().unwrap_or_else(|| ended.clone()));
    if state.is_some() {
        statuses[1]["lastState"] = ended;
    }
    pod["status"]["containerStatuses"] = statuses;
    set_ready(pod, false, now);
}

/// Starts a container that has ended a moment ago in a pod that stays. Returns whether it did.
pub(crate) fn comes_back(pod: &mut Value, now: Timestamp) -> bool {
    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
    let ended = pod["status"]["containerStatuses"][1]["state"].clone();
    let Some(at) = ended["terminated"]["finishedAt"].as_str().map(str::to_owned).filter(|_| !is_of_job(&name)) else {
        return false;
    };
    if now.duration_since(at.parse().unwrap()) < RESTARTS_WITHIN {
        return false;
    }
    let role = pod["metadata"]["labels"]["zagros.dev/role"].clone();
    // It starts at once, and is ready a moment later.
    pod["status"]["containerStatuses"] = containers(&role, json!({"running": {"startedAt": at}}));
    pod["status"]["containerStatuses"][1]["lastState"] = ended;
    set_ready(pod, true, &now.to_string());
    true
}

pub(crate) fn terminated(code: i32, now: &str) -> Value {
    let reason = if code == 0 { "Completed" } else { "Error" };
    // Times of Kubernetes are whole seconds.
    let finished = now.parse::<Timestamp>().unwrap().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({"terminated": {
        "exitCode": code, "reason": reason, "message": "the last line of the log", "finishedAt": finished,
    }})
}

pub(crate) fn has_ended(pod: &Value) -> bool {
    pod["status"]["phase"] == "Succeeded" || pod["status"]["phase"] == "Failed"
}

pub(crate) fn end(pod: &mut Value, code: i32, now: &str) {
    pod["status"]["containerStatuses"] =
        containers(&pod["metadata"]["labels"]["zagros.dev/role"], terminated(code, now));
    pod["status"]["phase"] = json!(if code == 0 { "Succeeded" } else { "Failed" });
    set_ready(pod, false, now);
}

/// Statuses of a pod's containers: first a sidecar that a mesh added, then the role's.
pub(crate) fn containers(role: &Value, state: Value) -> Value {
    json!([
        container("istio-proxy", json!({"terminated": {"exitCode": 2, "reason": "Error"}})),
        container(role.as_str().unwrap(), state)
    ])
}

pub(crate) fn container(name: &str, state: Value) -> Value {
    json!({"name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state})
}
