//! StatefulSets as Kubernetes keeps them. From the highest index down to the partition, it updates each pod once the one before is
//! ready. It makes the claims of the pods and keeps them.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Value, json};

use crate::kubelet::is_ready;
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
