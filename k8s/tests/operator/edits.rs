//! Edits of a running job are refused, or applied at once without a restart. No admitted edit is ignored.

use serde_json::json;

use crate::world::{ClusterWorld, DEPENDANTS, key};

/// Names of the objects that an edit turns on and off.
fn shared(world: &ClusterWorld) -> Vec<String> {
    let kinds = [("networking.k8s.io", "networkpolicies"), ("policy", "poddisruptionbudgets")];
    kinds.iter().flat_map(|(group, plural)| world.names(group, plural)).collect()
}

#[tokio::test(start_paused = true)]
async fn an_object_that_an_edit_turns_off_is_removed_and_comes_back() {
    let (world, _operator) = ClusterWorld::running(|_| ()).await;
    assert_eq!(shared(&world), ["ctr", "ctr.workers", "ctr"]);
    let pods = world.pods();
    world.edit(|job| job["spec"]["networkPolicy"] = json!(false)).unwrap();
    world.until("no policy", |world| shared(world) == ["ctr"]).await;
    world.edit(|job| job["spec"]["disruptionBudget"] = json!(false)).unwrap();
    world.until("no budgets", |world| shared(world).is_empty()).await;
    world.edit(|job| job["spec"]["disruptionBudget"] = json!(true)).unwrap();
    world.edit(|job| job["spec"]["networkPolicy"] = json!(true)).unwrap();
    world.until("all back", |world| shared(world).len() == 3).await;
    let policy = json!({"activeDeadlineSeconds": 86_400, "cleanPodPolicy": "All"});
    world.edit(|job| job["spec"]["runPolicy"] = policy).unwrap();
    world.advance(30).await;
    assert_eq!((world.pods(), world.status("/attempt")), (pods, json!(1)), "no pod was made anew");
}

#[tokio::test(start_paused = true)]
async fn a_pod_monitor_goes_with_its_option() {
    let world = ClusterWorld::new();
    world.api.store().installed.insert("podmonitors".to_owned());
    let _operator = world.operator(None).await;
    world.create(|job| job["spec"]["monitoring"] = json!({"podMonitor": true}));
    world.until_running().await;
    assert_eq!(world.names("monitoring.coreos.com", "podmonitors"), ["ctr"]);
    world.edit(|job| job["spec"]["monitoring"] = json!({"podMonitor": false})).unwrap();
    world.until("gone", |world| world.names("monitoring.coreos.com", "podmonitors").is_empty()).await;
}

/// Only an object with the job's labels is the job's.
#[tokio::test(start_paused = true)]
async fn an_object_without_the_jobs_labels_stays() {
    let world = ClusterWorld::new();
    let place = key("networking.k8s.io", "networkpolicies", "ctr");
    let theirs = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "ctr"}, "spec": {"podSelector": {}},
    });
    world.write(&place, theirs);
    let _operator = world.operator(None).await;
    world.create(|job| job["spec"]["networkPolicy"] = json!(false));
    world.until_running().await;
    world.advance(60).await;
    assert_eq!(world.api.store().get(&place).unwrap()["spec"], json!({"podSelector": {}}));
}

/// `kubectl delete --cascade=orphan` removes the owner from dependants before the finalizer acts.
#[tokio::test(start_paused = true)]
async fn a_job_that_is_deleted_with_its_dependants_orphaned_leaves_none() {
    let (world, _operator) = ClusterWorld::running(|_| ()).await;
    for (group, plural) in DEPENDANTS {
        for name in world.names(group, plural) {
            let place = key(group, plural, &name);
            world.change(&place, |object| {
                drop(object["metadata"].as_object_mut().unwrap().shift_remove("ownerReferences"))
            });
        }
    }
    world.delete(&key("zagros.dev", "hybridjobs", "ctr"));
    world.until("gone", |world| world.job().is_none()).await;
    assert_eq!(shared(&world), Vec::<String>::new());
    assert!(world.names("", "services").is_empty() && world.names("batch", "jobs").is_empty());
}

/// No object of the job exists, so all of it may change without suspending it.
#[tokio::test(start_paused = true)]
async fn an_invalid_job_is_corrected_in_place() {
    let (world, _operator) = ClusterWorld::with_operator().await;
    world.create(|job| job["spec"]["volumes"] = json!([]));
    world.until("invalid", |world| world.phase() == "Invalid").await;
    world
        .edit(|job| {
            job["spec"]["volumes"] = json!([{"mountPath": "/data", "source": {"claimName": "criteo"}}]);
            job["spec"]["image"] = json!("zagros:2");
            job["spec"]["embeddingServers"]["replicas"] = json!(1);
        })
        .unwrap();
    world.until_running().await;
    assert_eq!(world.condition("Valid")["status"], "True");
    assert!(world.edit(|job| job["spec"]["image"] = json!("zagros:3")).is_err(), "it runs now");
}
