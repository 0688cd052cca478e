//! The deletion of a namespace with a run in it.

use serde_json::json;

use crate::api::{FakeApi, ObjectKey, ObjectPart};
use crate::world::{ADS, ClusterWorld, key};

fn place() -> ObjectKey {
    ObjectKey { namespace: String::new(), ..key("", "namespaces", ADS) }
}

pub(crate) fn make(api: &FakeApi) {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"finalizers": ["kubernetes"]}});
    api.store().put(&place(), namespace, ObjectPart::Whole).unwrap();
    api.announce();
}

/// Pods first, and everything else once no pod is left (`OrderedNamespaceDeletion`, since Kubernetes 1.33). Then the
/// namespace goes.
pub(crate) fn remove(world: &ClusterWorld) {
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

/// Without anyone who deletes the Job, the stand-in holds such a namespace for ever, as Kubernetes does.
#[tokio::test(start_paused = true)]
async fn without_an_operator_the_namespace_stays() {
    let (world, operator) = ClusterWorld::running(|_| ()).await;
    operator.kill().await;
    delete(&world);
    world.advance(600).await;
    let pods = world.pods();
    assert!(pods.len() == 2 && pods.iter().all(|pod| pod.contains("-worker-")), "{pods:?}");
}
