//! Lost pods, nodes and objects, and what follows.

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

/// A pod ends, and no other comes in its place. Coordinator and workers then end with 4, which is not the cause.
#[tokio::test(start_paused = true)]
async fn the_pod_that_ended_first_is_named_as_the_cause_of_another_attempt() {
    const SYNC: &str = "[data]\nformat = \"criteo\"\ntrain = \"/data/train.txt\"\n[train]\nmode = \"sync\"\n";
    let worker = "ctr-1-worker-1-x7k2p";
    let both = ["ctr-1-coord-0", "ctr-1-worker-0-x7k2p"];
    for (is_sync, culprit, others) in [
        // In mode `sync` the whole group restarts at once.
        (true, worker, &both[..0]),
        // No replacement came in time, so the coordinator gives the worker up.
        (false, worker, &both[..]),
        // The server is killed for its memory. The run itself says when it is over.
        (false, "ctr-1-server-1", &both[..]),
    ] {
        let (world, _operator) = ClusterWorld::running(|job| {
            if is_sync {
                job["spec"]["job"]["inline"] = json!(SYNC);
            }
        })
        .await;
        world.ends(culprit, 137);
        if !is_sync {
            world.advance(if culprit == worker { 5 } else { 20 }).await;
            assert_eq!(world.status("/attempt"), 1, "{culprit}");
        }
        others.iter().for_each(|pod| world.ends(pod, 4));
        world.until("second attempt", |world| world.status("/attempt") == 2 && world.phase() == "Running").await;
        assert_eq!(world.status("/lastFailure/pod"), culprit);
        assert_eq!(world.status("/lastFailure/exitCode"), 137, "{culprit}");
        assert_eq!(world.status("/workerRestarts"), 0, "{culprit}");
    }
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

#[tokio::test(start_paused = true)]
async fn data_that_is_missing_ends_the_job_with_the_reason() {
    let (world, _operator) = ClusterWorld::running(|_| ()).await;
    world.ends("ctr-1-worker-0-x7k2p", 3);
    world.until("failed", |world| world.phase() == "Failed").await;
    let condition = world.condition("Failed");
    assert_eq!(condition["reason"], "PermanentFailure");
    let how = "ctr-1-worker-0-x7k2p ended with 3 (data is missing or malformed): the last line of the log";
    says(&condition["message"], how);
    world.advance(600).await;
    assert_eq!(world.status("/attempt"), 1);
    assert!(world.names("apps", "statefulsets").is_empty());
    assert_eq!(world.pods(), ["ctr-1-worker-0-x7k2p"], "with its log; coordinator and the other worker run no more");
    // The model is not saved: a user may want to look at what is there.
    assert_eq!(world.names("", "persistentvolumeclaims").len(), 4);
    world.delete(&key("zagros.dev", "hybridjobs", "ctr"));
    world.until("gone", |world| world.names("", "persistentvolumeclaims").is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn attempts_end_with_the_limit() {
    let (world, _operator) = ClusterWorld::running(|job| job["spec"]["runPolicy"] = json!({"backoffLimit": 2})).await;
    for attempt in 1..=3 {
        world.until("running", |world| world.phase() == "Running" && world.status("/attempt") == attempt).await;
        world.ends(&format!("ctr-{attempt}-coord-0"), 4);
        world.ends(&format!("ctr-{attempt}-worker-0-x7k2p"), 4);
        world.until("noticed", |world| world.phase() != "Running").await;
    }
    assert_eq!(world.phase(), "Failed");
    assert_eq!(world.condition("Failed")["reason"], "BackoffLimitExceeded");
    assert_eq!((world.status("/restarts"), world.status("/lastFailure/attempt")), (json!(2), json!(3)));
    assert_eq!(world.events().iter().filter(|reason| *reason == "AttemptFailed").count(), 2);
}

#[tokio::test(start_paused = true)]
async fn drift_is_repaired() {
    let (world, _operator) = ClusterWorld::running(|_| ()).await;
    world.delete(&key("", "services", "ctr-1-server"));
    world.delete(&key("networking.k8s.io", "networkpolicies", "ctr"));
    let place = key("apps", "statefulsets", "ctr-1-server");
    world.change(&place, |set| {
        set["spec"]["replicas"] = json!(1);
        set["metadata"]["annotations"] = json!({"someone": "else"});
    });
    let is_repaired = |world: &ClusterWorld| {
        let set = world.api.store().get(&place).unwrap();
        let policies = world.names("networking.k8s.io", "networkpolicies");
        set["spec"]["replicas"] == 3 && world.names("", "services").len() == 3 && policies == ["ctr", "ctr.workers"]
    };
    world.until("repaired", is_repaired).await;
    let set = world.api.store().get(&place).unwrap();
    assert_eq!(set["metadata"]["annotations"]["someone"], "else", "fields of others stay");
    assert_eq!(world.status("/attempt"), 1);
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
