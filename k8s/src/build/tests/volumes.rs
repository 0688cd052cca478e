//! Volumes, mounts, and disks of coordinator and servers, by value.

use super::{POD_OWNERS, all, spec_of, *};

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
            let claim = volume["persistentVolumeClaim"]["claimName"].as_str()?;
            Some(format!("{} is {claim}", volume["name"].as_str()?))
        };
        let claims: Vec<String> = pod["volumes"].as_array().unwrap().iter().filter_map(claim).collect();
        assert_eq!(claims, ["output is zagros", "volume-1 is other"], "{title}");
        let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
        assert!(mounts.iter().any(|mount| mount["mountPath"] == "/output" && mount["subPath"] == "runs"), "{title}");
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

/// Kubernetes refuses a StatefulSet whose claims changed. More memory for the servers must reach their pods all the same.
#[test]
fn a_size_that_was_made_stays_when_the_memory_changes() {
    let mut owner = hybrid_job();
    spec_of(json!({"embeddingServers": {"pod": {"resources": {"limits": {"memory": "64Gi"}}}}}))(&mut owner);
    let attempt = attempt(3);
    let job = validate_job(&owner, &JobText::OfSpec(owner.spec.job.inline.clone().unwrap()), &attempt).unwrap();
    let disk = Some(k8s_openapi::apimachinery::pkg::api::resource::Quantity("12Gi".to_owned()));
    let set = crate::observe::ServerSet { disk, ..Default::default() };
    let run = ObservedObjects { servers: Some(set), ..ObservedObjects::default() };
    let plan = BuildPlan { owner: &owner, job: &job, attempt: &attempt, run: &run, alive: None };
    let objects = build(&plan, BuildStage::Servers);
    let set = objects.iter().find(|one| one.title() == POD_OWNERS[1]).unwrap();
    let set = serde_json::to_value(&set.object).unwrap();
    assert_eq!(set["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"], "12Gi");
    assert_eq!(set["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"], "64Gi");
}

fn claim_of(object: &impl Fn(&str) -> Value, title: &str) -> Value {
    object(title)["spec"]["volumeClaimTemplates"][0].clone()
}

#[test]
fn log_and_journal_have_a_disk_that_outlives_the_pod() {
    let size = |change: Value, title: &str| {
        claim_of(&all(spec_of(change)), title)["spec"]["resources"]["requests"]["storage"].clone()
    };
    assert_eq!(size(json!({}), POD_OWNERS[0]), "1Gi");
    // Two bases of 4 GiB, a tail of half a base, and as much again while a base is written.
    assert_eq!(size(json!({}), POD_OWNERS[1]), "12Gi");
    let pod = json!({"resources": {"limits": {"memory": "64Gi"}}});
    assert_eq!(size(json!({"embeddingServers": {"pod": pod}}), POD_OWNERS[1]), "192Gi");
    // With a budget of memory, rows beyond it may be on the disk too.
    let text = format!("{}[cluster]\nmemory = '8GiB'\n", crate::fixture::JOB_TEXT);
    assert_eq!(size(json!({"job": {"inline": text}}), POD_OWNERS[1]), "32Gi");
    let small = format!("{}[cluster]\nmemory = '64MiB'\n", crate::fixture::JOB_TEXT);
    assert_eq!(size(json!({"job": {"inline": small}}), POD_OWNERS[1]), "1Gi", "the shortest tail counts twice");
    for title in &POD_OWNERS[..2] {
        let volatile = all(spec_of(json!({"job": {"inline": VOLATILE}})))(title);
        assert!(volatile["spec"]["volumeClaimTemplates"].is_null(), "{title}");
    }
}

/// A user who deletes or scales a StatefulSet by hand loses no rows.
#[test]
fn a_claim_belongs_to_the_job_and_not_to_its_stateful_set() {
    for role in ["coordinator", "embeddingServers"] {
        let storage =
            |retain: bool| json!({role: {"storage": {"size": "200Gi", "storageClassName": "fast", "retain": retain}}});
        let title = if role == "coordinator" { POD_OWNERS[0] } else { POD_OWNERS[1] };
        for retain in [false, true] {
            let object = all(spec_of(storage(retain)));
            let claim = claim_of(&object, title);
            assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "200Gi");
            assert_eq!(claim["spec"]["storageClassName"], "fast");
            assert_eq!(claim["metadata"]["labels"]["zagros.dev/attempt"], "3");
            assert_eq!(claim["metadata"]["ownerReferences"].is_null(), retain);
            assert_eq!(claim["metadata"]["labels"]["zagros.dev/retain"] == "true", retain);
            let set = object(title);
            let kept = json!({"whenDeleted": "Retain", "whenScaled": "Retain"});
            assert_eq!(set["spec"]["persistentVolumeClaimRetentionPolicy"], kept);
            let volumes = set["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
            assert!(volumes.iter().all(|volume| volume["name"] != claim["metadata"]["name"]));
        }
    }
}
