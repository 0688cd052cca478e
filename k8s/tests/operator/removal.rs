//! How long the job of a run that is removed is held, and the deletion of a namespace with a run in it.

use serde_json::{Value, json};

use crate::api::{FakeApi, ObjectKey, ObjectPart};
use crate::world::{ADS, ClusterWorld, DEPENDANTS, key, says};

/// Every worker takes long to write its checkpoint.
fn workers_take_long(world: &ClusterWorld) {
    world.unheard.lock().unwrap().extend(world.pods_named("-worker-"));
}

fn workers(world: &ClusterWorld) -> usize {
    world.pods_named("ctr-1-worker-").len()
}

fn is_held(world: &ClusterWorld) -> bool {
    world.job().is_some_and(|job| job["metadata"]["finalizers"].as_array().is_some_and(|held| !held.is_empty()))
}

/// While nothing runs, a definition and a namespace can be deleted without an operator.
#[tokio::test(start_paused = true)]
async fn only_a_job_with_workers_is_held() {
    let (world, operator) = ClusterWorld::with_operator().await;
    world.create(|job| job["spec"]["runPolicy"] = json!({"suspend": true}));
    world.until("suspended", |world| world.phase() == "Suspended").await;
    assert!(!is_held(&world), "nothing was made");
    world.edit(|job| job["spec"]["runPolicy"]["suspend"] = json!(false)).unwrap();
    world.until_running().await;
    assert!(is_held(&world));
    world.edit(|job| job["spec"]["runPolicy"]["suspend"] = json!(true)).unwrap();
    world.until("released", |world| !is_held(world)).await;
    assert_eq!(workers(&world), 0);
    world.edit(|job| job["spec"]["runPolicy"]["suspend"] = json!(false)).unwrap();
    world.until_running().await;
    assert!(is_held(&world));
    world.trains_to_the_end();
    world.until("over", |world| world.phase() == "Succeeded" && !is_held(world)).await;
    operator.stop().await;
    world.delete(&key("zagros.dev", "hybridjobs", "ctr"));
    assert!(world.job().is_none(), "without an operator");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_job_is_held_until_its_workers_have_ended_and_no_longer() {
    let (world, _operator) = ClusterWorld::running(|_| ()).await;
    workers_take_long(&world);
    world.delete(&key("zagros.dev", "hybridjobs", "ctr"));
    world.advance(40).await;
    assert!(world.job().is_some() && workers(&world) == 2);
    assert_eq!(world.names("apps", "statefulsets"), ["ctr-1-coord", "ctr-1-server"]);
    says(&world.status("/message"), "ctr-1-worker-0-x7k2p has not ended yet");
    assert_eq!(world.condition("Ready")["reason"], "Deleting");
    world.unheard.lock().unwrap().clear();
    world.until("gone", |world| world.job().is_none()).await;
    assert_eq!(workers(&world), 0);
    let all_gone = |world: &ClusterWorld| {
        DEPENDANTS.into_iter().chain([("", "pods")]).all(|(group, plural)| world.names(group, plural).is_empty())
    };
    world.until("all gone", all_gone).await;
}

/// The role went with the namespace, or the pod is on a lost node. Kubernetes then removes the rest in any order.
#[tokio::test(start_paused = true)]
async fn a_deleted_job_is_not_held_for_an_impossible_step() {
    for is_denied in [true, false] {
        let (world, _operator) = ClusterWorld::running(|_| ()).await;
        if is_denied {
            let denied = ["deletecollection jobs", "list pods", "list jobs"];
            world.api.store().denied.extend(denied.map(str::to_owned));
        } else {
            workers_take_long(&world);
        }
        let deleted = world.now();
        world.delete(&key("zagros.dev", "hybridjobs", "ctr"));
        world.until("released", |world| world.job().is_none()).await;
        let waited = world.now().duration_since(deleted).as_secs();
        assert!(waited <= if is_denied { 5 } else { 130 }, "{waited}");
    }
}

/// A person who suspends a Job directly must resume it too. The status says so.
#[tokio::test(start_paused = true)]
async fn a_job_that_somebody_suspended_is_reported_once() {
    let (world, _operator) = ClusterWorld::running(|_| ()).await;
    let place = key("batch", "jobs", "ctr-1-worker");
    let suspend = |is_suspended: Value| world.change(&place, |job| job["spec"]["suspend"] = is_suspended);
    suspend(json!(true));
    world.until("reported", |world| world.condition("Ready")["reason"] == "JobSuspended").await;
    let words = "Job ctr-1-worker is suspended, but not by the operator: `kubectl patch job ctr-1-worker --type=merge";
    says(&world.status("/message"), words);
    world.advance(120).await;
    let events = world.api.store().list("events.k8s.io", "events", Some(ADS), "");
    let reports: Vec<&Value> = events.iter().filter(|event| event["reason"] == "JobSuspended").collect();
    assert_eq!((reports.len(), &reports[0]["type"]), (1, &json!("Warning")));
    suspend(json!(false));
    world.until("ready", |world| world.condition("Ready")["status"] == "True").await;
    assert_eq!(world.status("/attempt"), 1);
}

fn place() -> ObjectKey {
    ObjectKey { namespace: String::new(), ..key("", "namespaces", ADS) }
}

pub(crate) fn make_namespace(api: &FakeApi) {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"finalizers": ["kubernetes"]}});
    api.store().put(&place(), namespace, ObjectPart::Whole).unwrap();
    api.announce();
}

/// Pods first, and everything else once no pod is left (`OrderedNamespaceDeletion`, since Kubernetes 1.33). Then the
/// namespace goes.
pub(crate) fn remove_namespace(world: &ClusterWorld) {
    if !world.api.store().terminating.contains(ADS) {
        return;
    }
    let all = world.api.store().keys(ADS);
    let pods: Vec<ObjectKey> = all.iter().filter(|key| key.plural == "pods").cloned().collect();
    if all.is_empty() {
        world.api.store().terminating.clear();
        let release = |namespace: &mut serde_json::Value| namespace["metadata"]["finalizers"] = json!([]);
        return world.change(&place(), release);
    }
    for key in if pods.is_empty() { all } else { pods } {
        // Its owner may have taken it along.
        let found = world.api.store().get(&key);
        let is_left = found.is_ok_and(|object| object["metadata"]["deletionTimestamp"].is_null());
        if is_left {
            world.delete(&key);
        }
    }
}

fn delete(world: &ClusterWorld) {
    world.delete(&place());
    world.api.store().terminating.insert(ADS.to_owned());
}

/// The workers' Job would keep a failed pod until its replacement exists, which the namespace does not admit any more.
#[tokio::test(start_paused = true)]
async fn a_namespace_with_a_running_job_goes() {
    let (world, _operator) = ClusterWorld::running(|_| ()).await;
    delete(&world);
    world.until("pods gone", |world| world.pods().is_empty()).await;
    world.until("namespace gone", |world| world.api.store().get(&place()).is_err()).await;
    assert_eq!(world.job(), None);
}

/// A user deletes the pods of workers, and the namespace stays: their Job stays too, and replaces them.
#[tokio::test(start_paused = true)]
async fn deleted_workers_alone_are_replaced() {
    for denied in [None, Some("get namespaces")] {
        let (world, _operator) = ClusterWorld::running(|_| ()).await;
        world.api.store().denied.extend(denied.map(str::to_owned));
        for pod in ["ctr-1-worker-0-x7k2p", "ctr-1-worker-1-x7k2p"] {
            world.delete(&key("", "pods", pod));
        }
        let replaced = ["ctr-1-worker-0-again1", "ctr-1-worker-1-again1"];
        world.until("replaced", |world| replaced.iter().all(|pod| world.pods().contains(&(*pod).to_owned()))).await;
        world.until("running", |world| world.condition("Ready")["status"] == "True").await;
        assert_eq!(world.status("/attempt"), json!(1));
        assert_eq!(world.names("batch", "jobs"), ["ctr-1-worker"]);
    }
}
