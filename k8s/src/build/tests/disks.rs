//! Disks of coordinator and servers, by value.

use super::*;

/// Kubernetes refuses a StatefulSet whose claims changed. More memory for the servers must reach their pods all the same.
#[test]
fn a_size_that_was_made_stays_when_the_memory_changes() {
    let mut owner = hybrid_job();
    spec_of(json!({"embeddingServers": {"pod": {"resources": {"limits": {"memory": "64Gi"}}}}}))(&mut owner);
    let attempt = attempt(3);
    let job = validate_job(&owner, &JobText::OfSpec(owner.spec.job.inline.clone().unwrap()), &attempt).unwrap();
    let disk = Some(k8s_openapi::apimachinery::pkg::api::resource::Quantity("12Gi".to_owned()));
    let set = crate::rollout::ServerSet { disk, ..Default::default() };
    let servers = ServerFacts { set: Some(set), ..ServerFacts::default() };
    let objects =
        build(&BuildPlan { owner: &owner, job: &job, attempt: &attempt, servers: &servers }, BuildStage::Servers);
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
