//! Volumes and mounts, by value.

use serde_json::{Value, json};

use super::{POD_OWNERS, all, spec_of};

#[test]
fn output_and_data_are_mounted_at_the_paths_of_the_job() {
    use crate::crd::OutputClaim;
    let object = all(|job| {
        job.spec.output = Some(OutputClaim { claim_name: "models".to_owned(), sub_path: Some("ctr".to_owned()) });
    });
    for title in POD_OWNERS {
        let pod = &object(title)["spec"]["template"]["spec"];
        let volumes = pod["volumes"].as_array().unwrap();
        let claims: Vec<&Value> =
            volumes.iter().map(|volume| &volume["persistentVolumeClaim"]).filter(|claim| !claim.is_null()).collect();
        let expected = [json!({"claimName": "models"}), json!({"claimName": "criteo"})];
        assert_eq!(claims, expected.iter().collect::<Vec<_>>(), "{title}");
        let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
        let data = mounts.iter().find(|mount| mount["mountPath"] == "/data").unwrap();
        assert_eq!(data["readOnly"], true);
        assert!(mounts.iter().any(|mount| mount["mountPath"] == "/output" && mount["subPath"] == "ctr"));
    }
}

/// As the quickstart has it: data and output on one claim. The kubelet mounts a claim once for a pod.
#[test]
fn a_claim_is_one_volume_of_a_pod_and_read_only_where_it_is_mounted_so() {
    let object = all(spec_of(json!({
        "output": {"claimName": "zagros", "subPath": "runs"},
        "volumes": [
            {"mountPath": "/data", "source": {"claimName": "zagros"}},
            {"mountPath": "/first", "source": {"claimName": "other"}},
            {"mountPath": "/keys", "source": {"secretName": "keys"}},
            {"mountPath": "/second", "readOnly": false, "source": {"claimName": "other"}},
        ],
    })));
    for title in POD_OWNERS {
        let pod = &object(title)["spec"]["template"]["spec"];
        let claim = |volume: &Value| {
            Some((
                volume["name"].as_str()?.to_owned(),
                volume["persistentVolumeClaim"]["claimName"].as_str()?.to_owned(),
            ))
        };
        let claims: Vec<(String, String)> = pod["volumes"].as_array().unwrap().iter().filter_map(claim).collect();
        let expected = [("output", "zagros"), ("volume-1", "other")];
        assert_eq!(claims, expected.map(|(name, claim)| (name.to_owned(), claim.to_owned())), "{title}");
        let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
        let mounted = |path: &str| {
            let mount = mounts.iter().find(|mount| mount["mountPath"] == path).unwrap();
            (mount["name"].as_str().unwrap().to_owned(), mount["readOnly"].as_bool())
        };
        for (path, volume, is_read_only) in [
            ("/output", "output", false),
            ("/data", "output", true),
            ("/first", "volume-1", true),
            ("/keys", "volume-2", true),
            ("/second", "volume-1", false),
        ] {
            assert_eq!(mounted(path), (volume.to_owned(), Some(is_read_only)), "{title}");
        }
    }
}

#[test]
fn every_kind_of_volume_becomes_a_volume_of_kubernetes() {
    let cases = [
        (json!({"configMapName": "c"}), json!({"configMap": {"name": "c"}})),
        (json!({"secretName": "s"}), json!({"secret": {"secretName": "s"}})),
        (json!({"emptyDir": {}}), json!({"emptyDir": {}})),
        (
            json!({"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}),
            json!({"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}),
        ),
        (
            json!({"hostPath": {"path": "/mnt", "type": "Directory"}}),
            json!({"hostPath": {"path": "/mnt", "type": "Directory"}}),
        ),
        (json!({"nfs": {"server": "nas", "path": "/ads"}}), json!({"nfs": {"server": "nas", "path": "/ads"}})),
        (json!({"csi": {"driver": "s3", "readOnly": true}}), json!({"csi": {"driver": "s3", "readOnly": true}})),
        (
            json!({"ephemeral": {"size": "100Gi", "storageClassName": "fast"}}),
            json!({"ephemeral": {"volumeClaimTemplate": {"spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                "resources": {"requests": {"storage": "100Gi"}},
            }}}}),
        ),
    ];
    for (source, expected) in cases {
        let volumes = json!([
            {"mountPath": "/data", "source": {"claimName": "criteo"}},
            {"mountPath": "/more", "readOnly": false, "subPath": "a/b", "source": source},
        ]);
        let object = all(spec_of(json!({ "volumes": volumes })));
        for title in POD_OWNERS {
            let pod = object(title)["spec"]["template"]["spec"].clone();
            let mut volume = pod["volumes"].as_array().unwrap().last().unwrap().clone();
            assert_eq!(volume.as_object_mut().unwrap().shift_remove("name"), Some(json!("volume-1")));
            assert_eq!(volume, expected, "{title}");
            let mount = pod["containers"][0]["volumeMounts"].as_array().unwrap().last().unwrap().clone();
            assert_eq!(mount, json!({"name": "volume-1", "mountPath": "/more", "readOnly": false, "subPath": "a/b"}));
        }
    }
}
