//! What a kubelet does with the volumes of a pod.

use std::collections::BTreeMap;

use serde_json::Value;

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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_has_one_volume_whose_rights_suffice() {
        let pod = |volumes: Value| {
            let mounts = json!([{"name": "a", "mountPath": "/a", "readOnly": true}, {"name": "b", "mountPath": "/b"}]);
            fault(&json!({"volumes": volumes, "containers": [{"volumeMounts": mounts}]}))
        };
        let claim = |name: &str, claim: &str, is_read_only: bool| json!({"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": is_read_only}});
        assert_eq!(pod(json!([claim("a", "x", true), claim("b", "y", false), {"name": "c", "emptyDir": {}}])), None);
        assert!(pod(json!([claim("a", "x", false), claim("b", "x", false)])).unwrap().contains("claim x"));
        assert!(pod(json!([claim("b", "y", true)])).unwrap().contains("volume b is read-only"));
    }
}
