//! Lost pods, nodes and objects, and what follows. In mode `hybrid` the other workers wait for a lost one.

use serde_json::json;

use crate::world::{ClusterWorld, key, says};

/// A container that ends alone is started again in its pod, and its end is no reason for a later failure.
#[tokio::test(start_paused = true)]
async fn a_server_and_a_coordinator_that_end_alone_are_waited_for() {
    let (world, _operator) = ClusterWorld::running(|_| ()).await;
    for (pod, lost, back) in
        [("ctr-1-server-1", "ServerLost", "ServerBack"), ("ctr-1-coord-0", "CoordinatorLost", "CoordinatorBack")]
    {
        for code in [1, 4, 137, 143].into_iter().filter(|code| *code != 4 || back == "ServerBack") {
            world.dies(pod, code);
            world.until("reported", |world| world.condition("Ready")["reason"] == lost).await;
            says(&world.status("/message"), &format!("{pod} ended with {code} ("));
            world.until("back", |world| world.condition("Ready")["status"] == "True").await;
        }
        // A repeated Event is counted and not made again.
        world.until("reported", |world| world.events().ends_with(&[lost.to_owned(), back.to_owned()])).await;
    }
    assert_eq!((world.phase().as_str(), world.status("/attempt")), ("Running", json!(1)));
    // Much later the run fails for another reason.
    world.ends("ctr-1-worker-0-x7k2p", 3);
    world.until("failed", |world| world.phase() == "Failed").await;
    assert_eq!(world.status("/lastFailure/pod"), "ctr-1-worker-0-x7k2p");
}

/// The operator may be away when the verdict comes: the coordinator ends with the same code each time it is started
/// again.
#[tokio::test(start_paused = true)]
async fn the_verdict_of_the_coordinator_waits_for_the_operator() {
    let (world, first) = ClusterWorld::running(|_| ()).await;
    first.stop().await;
    world.ends("ctr-1-coord-0", 4);
    world.advance(1000).await;
    let second = world.operator(None).await;
    world.until("second attempt", |world| world.status("/attempt") == 2 && world.phase() == "Running").await;
    world.until("first gone", |world| world.pods().iter().all(|pod| pod.starts_with("ctr-2-"))).await;
    assert_eq!((world.pods().len(), world.status("/restarts")), (6, json!(1)));
    assert_eq!(world.status("/lastFailure/pod"), "ctr-1-coord-0");
    assert_eq!(world.events(), ["Started", "Running", "AttemptFailed", "Running"]);
    assert!(second.metric("zagros_operator_failed_attempts_total 1"));
}

/// The node is gone: its pod stays until a person removes the node, and the next attempt does not wait for that.
#[tokio::test(start_paused = true)]
async fn a_lost_node_delays_nothing() {
    let (world, _operator) = ClusterWorld::running(|_| ()).await;
    let place = key("", "pods", "ctr-1-server-2");
    world.unheard.lock().unwrap().insert(place.name.clone());
    world.change(&place, |pod| {
        pod["status"]["reason"] = json!("NodeLost");
        pod["status"]["phase"] = json!("Unknown");
    });
    world.until("not ready", |world| world.condition("Ready")["reason"] == "PodLost").await;
    says(&world.condition("Ready")["message"], "n1");
    world.ends("ctr-1-coord-0", 4);
    world.until("second attempt", |world| world.status("/attempt") == 2 && world.phase() == "Running").await;
    assert!(world.pods().contains(&"ctr-1-server-2".to_owned()), "it still hangs");
    world.until("others gone", |world| world.pods().len() == 7).await;
}

/// A Service has no generation that would count edits.
#[tokio::test(start_paused = true)]
async fn an_edited_service_is_repaired_at_once() {
    let (world, _operator) = ClusterWorld::running(|_| ()).await;
    world.advance(30).await;
    let place = key("", "services", "ctr-1-server");
    let applied = world.api.store().get(&place).unwrap();
    assert!(applied["metadata"]["generation"].is_null() && applied["spec"]["publishNotReadyAddresses"] == true);
    for (field, value) in [("publishNotReadyAddresses", json!(false)), ("ports", json!([]))] {
        let mut edited = applied.clone();
        edited["metadata"].as_object_mut().unwrap().shift_remove("resourceVersion");
        edited["spec"][field] = value;
        // Kubernetes fills in fields of its own.
        edited["spec"]["sessionAffinity"] = json!("None");
        world.write(&place, edited);
        let since = world.now();
        let is_repaired =
            |world: &ClusterWorld| world.api.store().get(&place).unwrap()["spec"][field] == applied["spec"][field];
        world.until("repaired", is_repaired).await;
        let waited = world.now().duration_since(since).as_secs();
        assert!(waited < 5, "{field}: {waited} s");
    }
    world.change(&place, |service| service["spec"]["selector"]["zagros.dev/job"] = json!("other"));
    let is_repaired =
        |world: &ClusterWorld| world.api.store().get(&place).unwrap()["spec"]["selector"]["zagros.dev/job"] == "ctr";
    world.until("repaired", is_repaired).await;
    // Fields of others are no drift.
    world.advance(60).await;
    let written = world.api.store().writes.len();
    world.advance(240).await;
    assert_eq!(world.api.store().writes.len(), written);
}

/// The kubelet never confirms the end of the pod. With a policy for exit codes the Job must wait for that.
#[tokio::test(start_paused = true)]
async fn a_worker_on_a_silent_node_is_given_up_and_replaced() {
    let (world, _operator) = ClusterWorld::running(|_| ()).await;
    let lost = "ctr-1-worker-1-x7k2p".to_owned();
    world.loses_node_of(&lost);
    let evicted = world.now();
    world.until("reported", |world| world.condition("Ready")["reason"] == "PodLost").await;
    world.until("given up", |world| !world.pods().contains(&lost)).await;
    let waited = world.now().duration_since(evicted).as_secs();
    assert!((120..=140).contains(&waited), "its 60 s to end, and 60 s more: {waited}");
    world.until("back", |world| world.condition("Ready")["status"] == "True").await;
    assert!(world.pods().contains(&"ctr-1-worker-1-again1".to_owned()), "{:?}", world.pods());
    assert_eq!((world.status("/attempt"), world.status("/restarts")), (json!(1), json!(0)));
    assert_eq!(world.events(), ["Started", "Running", "WorkerLost", "WorkerGivenUp", "WorkerBack"]);
}

/// The old worker 0 may still use the run folder, so the next attempt must not start.
#[tokio::test(start_paused = true)]
async fn an_attempt_waits_for_workers_of_the_one_before_but_not_for_ever() {
    for is_on_a_lost_node in [false, true] {
        let (world, _operator) = ClusterWorld::running(|_| ()).await;
        let worker = "ctr-1-worker-0-x7k2p";
        world.unheard.lock().unwrap().insert(worker.to_owned());
        world.ends("ctr-1-coord-0", 4);
        let hangs = |world: &ClusterWorld| world.pods().contains(&worker.to_owned());
        world.until("asked to end", |world| hangs(world) && world.status("/attempt") == 2).await;
        let killed = world.now() + k8s_openapi::jiff::SignedDuration::from_secs(60);
        world.advance(40).await;
        assert!(world.names("apps", "statefulsets").iter().all(|set| !set.starts_with("ctr-2-")));
        let message = format!("attempt 2 starts once {worker} of an earlier attempt has ended");
        assert_eq!(world.status("/message"), message);
        if !is_on_a_lost_node {
            world.unheard.lock().unwrap().clear();
        }
        world.until_running().await;
        let late = world.now().duration_since(killed).as_secs();
        assert_eq!(late >= 30, is_on_a_lost_node, "{late} s after it should have been killed");
    }
}
