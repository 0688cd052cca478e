//! Claims of a StatefulSet's pods, as Kubernetes makes and keeps them.

use serde_json::{Value, json};

use crate::world::{ADS, ClusterWorld, key};

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
