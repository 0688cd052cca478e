//! Another number of embedding servers while the run trains (ADR 22).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::kubelet::is_ready;
use crate::operator::RunningOperator;
use crate::rolling::servers_are_alive;
use crate::world::{ADS, ClusterWorld, key, says};

pub(crate) async fn training(change: impl FnOnce(&mut Value)) -> (ClusterWorld, RunningOperator) {
    let (world, operator) = ClusterWorld::with_operator().await;
    world.run.start(3);
    servers_are_alive(&world, 100);
    world.create(change);
    world.until_running().await;
    (world, operator)
}

pub(crate) fn wants(world: &ClusterWorld, servers: i32) -> Result<(), String> {
    world.edit(|job| job["spec"]["embeddingServers"]["replicas"] = json!(servers))
}

/// Indices of the servers that are ready. The coordinator moves a bucket if it has all of them.
pub(crate) fn buckets_move(world: &ClusterWorld) -> Vec<i32> {
    let pods = world.api.store().list("", "pods", Some(ADS), "");
    let ready: Vec<&Value> =
        pods.iter().filter(|pod| is_ready(pod) && pod["metadata"]["deletionTimestamp"].is_null()).collect();
    let workers = ready.iter().filter(|pod| pod["metadata"]["labels"]["zagros.dev/role"] == "worker").count();
    let names = ready.iter().filter_map(|pod| pod["metadata"]["name"].as_str());
    let index = |name: &str| name.strip_prefix("ctr-1-server-")?.parse().ok();
    let ready: Vec<i32> = names.filter_map(index).collect();
    world.run.advance(&ready, i32::try_from(workers).unwrap());
    ready
}

fn replicas(world: &ClusterWorld) -> i64 {
    let set = world.api.store().get(&key("apps", "statefulsets", "ctr-1-server")).unwrap();
    set["spec"]["replicas"].as_i64().unwrap()
}

fn uids(world: &ClusterWorld) -> BTreeMap<String, Value> {
    let pods = world.api.store().list("", "pods", Some(ADS), "");
    pods.iter().map(|pod| (pod["metadata"]["name"].to_string(), pod["metadata"]["uid"].clone())).collect()
}

pub(crate) fn minimum(world: &ClusterWorld) -> Value {
    world.api.store().get(&key("policy", "poddisruptionbudgets", "ctr")).unwrap()["spec"]["minAvailable"].clone()
}

#[tokio::test(start_paused = true)]
async fn more_servers_join_a_run_that_trains() {
    let (world, _operator) = training(|_| ()).await;
    let (before, config) = (uids(&world), key("", "configmaps", "ctr-1-job"));
    let file = world.api.store().get(&config).unwrap()["data"].clone();
    wants(&world, 5).unwrap();
    world.until("five pods", |world| world.pods_named("-server-").len() == 5 && minimum(world) == 7).await;
    assert_eq!(world.run.state().asked, [5], "asked once, and before any pod was made");
    assert_eq!(world.run.state().is_proven, Some(true));
    world.until("reported", |world| world.condition("Scaled")["message"].to_string().contains("buckets left")).await;
    assert_eq!(world.condition("Scaled")["status"], "False");
    let scaled = |world: &ClusterWorld| {
        buckets_move(world);
        world.condition("Scaled")["status"] == "True"
    };
    world.until("scaled", scaled).await;
    world.advance(120).await;
    let now = uids(&world);
    assert!(before.iter().all(|(pod, uid)| now[pod] == *uid), "no pod was made anew");
    assert_eq!(world.api.store().get(&config).unwrap()["data"], file, "the job file of an attempt never changes");
    assert_eq!((world.status("/attempt"), world.status("/roles/embeddingServers/summary")), (json!(1), json!("5/5")));
    for event in ["Scaling", "Scaled"] {
        assert_eq!(world.events().iter().filter(|one| *one == event).count(), 1, "{:?}", world.events());
    }
}

/// Kubernetes starts a server that was let go again before the operator knows: the coordinator then has no slot for it.
#[tokio::test(start_paused = true)]
async fn fewer_servers_hand_their_buckets_over_before_their_pods_go() {
    let (world, _operator) = training(|_| ()).await;
    wants(&world, 2).unwrap();
    world.run.state().is_stalled = true;
    world.until("asked", |world| world.run.state().asked == [2]).await;
    world.advance(300).await;
    assert_eq!((world.pods_named("-server-").len(), replicas(&world)), (3, 3), "the third still owns buckets");
    assert_eq!(world.condition("Ready")["status"], "True");
    world.run.state().is_stalled = false;
    let is_released = |world: &ClusterWorld| {
        buckets_move(world);
        world.run.state().owners == 2
    };
    world.until("let go", is_released).await;
    world.dies("ctr-1-server-2", 0);
    world.advance(4).await;
    world.dies("ctr-1-server-2", 2);
    world.until("two pods", |world| world.pods_named("-server-").len() == 2).await;
    world.until("scaled", |world| world.condition("Scaled")["status"] == "True").await;
    assert_eq!((world.phase().as_str(), world.status("/attempt"), minimum(&world)), ("Running", json!(1), json!(4)));
    assert!(!world.events().contains(&"ServerLost".to_owned()), "{:?}", world.events());
    // Its disk stays until the attempt is over.
    assert!(world.names("", "persistentvolumeclaims").contains(&"state-ctr-1-server-2".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_number_that_the_coordinator_refuses_makes_no_pod_and_is_reported_once() {
    let (world, _operator) = training(|_| ()).await;
    world.run.state().refuses = Some("5 servers cannot share 4 buckets".to_owned());
    wants(&world, 5).unwrap();
    world.until("refused", |world| world.condition("Scaled")["reason"] == "ScaleRefused").await;
    says(&world.condition("Scaled")["message"], "cannot share 4 buckets");
    says(&world.condition("Scaled")["message"], "spec.embeddingServers.replicas");
    world.advance(300).await;
    assert_eq!((world.pods_named("-server-").len(), world.condition("Ready")["status"].clone()), (3, json!("True")));
    assert_eq!(world.events().iter().filter(|one| *one == "ScaleRefused").count(), 1);
    assert_eq!(world.condition("Scaled")["reason"], "ScaleRefused");
    wants(&world, 3).unwrap();
    world.until("settled", |world| world.condition("Scaled")["status"] == "True").await;
}

/// An attempt that follows a failed one starts with the number of the spec, and starts once.
#[tokio::test(start_paused = true)]
async fn the_next_attempt_starts_with_the_number_of_the_spec() {
    let (world, _operator) = training(|_| ()).await;
    wants(&world, 4).unwrap();
    world.until("four pods", |world| world.pods_named("-server-").len() == 4).await;
    world.run.start(4);
    world.ends("ctr-1-coord-0", 4);
    world.until("second attempt", |world| world.status("/attempt") == 2 && world.phase() == "Running").await;
    world.advance(120).await;
    assert_eq!((world.status("/attempt"), world.phase().as_str()), (json!(2), "Running"));
    assert_eq!(world.pods_named("-server-").iter().filter(|pod| pod.starts_with("ctr-2")).count(), 4);
    let config = world.api.store().get(&key("", "configmaps", "ctr-2-job")).unwrap();
    says(&config["data"]["job.toml"], "servers = 4");
    assert_eq!(world.condition("Scaled"), Value::Null);
}
