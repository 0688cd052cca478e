//! Errors that a user or an administrator must correct: the status reports each one, none is a crash or needs a restart.

use serde_json::json;

use crate::world::{ClusterWorld, key, says};

fn message(world: &ClusterWorld, type_: &str) -> String {
    world.condition(type_)["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_wrong_job_file_is_reported_and_waits_for_its_correction() {
    let (world, _operator) = ClusterWorld::with_operator().await;
    let config = |text: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}, "data": {"job.toml": text}});
    let good = "[data]\nformat = \"criteo\"\ntrain = \"/data/train.txt\"\n";
    world.create(|job| job["spec"]["job"] = json!({"configMap": {"name": "mine"}}));
    world.until("invalid", |world| world.phase() == "Invalid").await;
    says(&world.condition("Valid")["message"], "no ConfigMap mine with key job.toml in namespace ads");
    world.write(&key("", "configmaps", "mine"), config(&good.replace("train", "trian")));
    let made = world.now();
    world.until("read", |world| message(world, "Valid").contains("trian")).await;
    let waited = world.now().duration_since(made).as_secs();
    assert!(waited <= 16, "ConfigMaps are not watched: {waited} s");
    assert!(message(&world, "Valid").starts_with("spec.job.configMap: "));
    world.advance(600).await;
    assert!(world.pods().is_empty());
    // One Event per problem. Kubernetes' recorder counts its repetitions.
    assert_eq!(world.events(), ["InvalidSpec"]);
    assert_eq!(world.api.store().list("events.k8s.io", "events", None, "")[0]["series"]["count"], 2);
    world.write(&key("", "configmaps", "mine"), config(good));
    world.until_running().await;
    assert_eq!(world.condition("Valid")["status"], "True");
}

/// The cluster's definition is older, so its rules never checked the object.
#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_read_harms_no_other() {
    let (world, _operator) = ClusterWorld::with_operator().await;
    let broken = key("zagros.dev", "hybridjobs", "broken");
    let object = json!({
        "apiVersion": "zagros.dev/v1alpha1", "kind": "HybridJob", "metadata": {"name": "broken"},
        "spec": {
            "job": {"inline": "x"}, "image": "i", "embeddingServers": {"replicas": 1},
            "denseWorkers": {"replicas": 1, "pod": {"tolerations": "all"}},
        },
    });
    world.api.store().has_old_definition = true;
    world.write(&broken, object);
    world.api.store().has_old_definition = false;
    world.create(|_| ());
    world.until_running().await;
    let status = world.api.store().get(&broken).unwrap()["status"].clone();
    let condition = &status["conditions"][0];
    assert_eq!(
        (&status["phase"], &condition["type"], &condition["status"]),
        (&json!("Invalid"), &json!("Valid"), &json!("False"))
    );
    for text in [&status["message"], &condition["message"]] {
        says(text, "cannot be read: ");
    }
}

/// The status has the words of the scheduler and the kubelet. If they say nothing, it names what may be missing.
#[tokio::test(start_paused = true)]
async fn a_missing_claim_secret_config_or_image_is_named() {
    let all_three = "0/3, dense workers 0/2; ctr-1-server-0: ImagePullBackOff: no manifest, and 2 more";
    let cases = [
        ("Unschedulable", "persistentvolumeclaim \"criteo\" not found", "persistentvolumeclaim \"criteo\" not found"),
        ("CreateContainerConfigError", "secret \"object-store\" not found", "secret \"object-store\" not found"),
        ("ContainerCreating", "", "a volume is missing: claim criteo, Secret keys, ConfigMap hosts"),
        ("ImagePullBackOff", "no manifest", all_three),
    ];
    for (reason, words, expected) in cases {
        let mut world = ClusterWorld::new();
        world.stuck.insert("-server-".to_owned(), (reason, words));
        let _operator = world.operator(None).await;
        world.create(|job| {
            let volumes = job["spec"]["volumes"].as_array_mut().unwrap();
            volumes.push(json!({"mountPath": "/keys", "source": {"secretName": "keys"}}));
            volumes.push(json!({"mountPath": "/hosts", "source": {"configMapName": "hosts"}}));
        });
        let is_named = |world: &ClusterWorld| {
            let message = message(world, "Ready");
            message.contains("ctr-1-server-0: ") && message.contains(expected)
        };
        world.until(reason, |world| world.condition("Ready")["reason"] == reason && is_named(world)).await;
        assert_eq!(world.phase(), "Starting", "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn pods_that_a_quota_prevents_are_reported() {
    let mut world = ClusterWorld::new();
    world.idle.push("statefulsets");
    let _operator = world.operator(None).await;
    world.create(|_| ());
    world.until("reported", |world| world.condition("Ready")["reason"] == "PodsMissing").await;
    let expected = "0 of 1 pods of the coordinator exist; if it stays so, `kubectl describe statefulset`";
    says(&world.condition("Ready")["message"], expected);
}

#[tokio::test(start_paused = true)]
async fn a_missing_permission_is_named_and_work_continues_once_it_is_given() {
    for denied in
        ["patch services", "patch statefulsets", "list pods", "deletecollection jobs", "patch poddisruptionbudgets"]
    {
        let (world, operator) = ClusterWorld::with_operator().await;
        world.api.store().denied.insert(denied.to_owned());
        world.create(|_| ());
        if denied.starts_with("deletecollection") {
            world.until_running().await;
            world.edit(|job| job["spec"]["runPolicy"]["suspend"] = json!(true)).unwrap();
        }
        world.until("reported", |world| world.condition("Reconciled")["reason"] == "Forbidden").await;
        let (verb, resource) = denied.split_once(' ').unwrap();
        says(&world.condition("Reconciled")["message"], &format!("cannot {verb} resource \"{resource}\""));
        says(&world.condition("Reconciled")["message"], "rbac.yaml");
        world.api.store().denied.clear();
        world.until("done", |world| world.condition("Reconciled")["status"] == "True").await;
        assert!(operator.metric("zagros_operator_reconciles_total{outcome=\"reported\"}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_not_installed_is_named() {
    let (world, _operator) = ClusterWorld::with_operator().await;
    world.create(|job| job["spec"]["scheduling"] = json!({"gang": {"scheduler": "Volcano"}}));
    world.until("reported", |world| world.condition("Reconciled")["reason"] == "KindMissing").await;
    says(&world.condition("Reconciled")["message"], "apply PodGroup ctr-1");
    world.api.store().installed.insert("podgroups".to_owned());
    world.until_running().await;
    assert_eq!(world.names("scheduling.volcano.sh", "podgroups"), ["ctr-1"]);
    world.edit(|job| job["spec"]["runPolicy"]["suspend"] = json!(true)).unwrap();
    world.until("released", |world| world.names("scheduling.volcano.sh", "podgroups").is_empty()).await;
}
