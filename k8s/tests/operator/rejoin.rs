//! Lost workers in mode `hybrid`, where the others wait for them.

use serde_json::json;

use crate::world::{ClusterWorld, key, says};

#[tokio::test(start_paused = true)]
async fn a_killed_worker_is_started_again_and_the_run_goes_on() {
    let (world, _operator) = ClusterWorld::running(|_| ()).await;
    world.ends("ctr-1-worker-1-x7k2p", 137);
    world.until("reported", |world| world.condition("Ready")["reason"] == "WorkerLost").await;
    says(&world.status("/message"), "dense workers 1/2; ctr-1-worker-1-x7k2p ended with 137 (killed)");
    assert_eq!((world.phase().as_str(), world.status("/workerRestarts")), ("Running", json!(1)));
    world.until("back", |world| world.condition("Ready")["status"] == "True").await;
    assert!(world.pods().contains(&"ctr-1-worker-1-again1".to_owned()), "{:?}", world.pods());
    world.advance(600).await;
    assert_eq!((world.status("/attempt"), world.status("/restarts")), (json!(1), json!(0)), "the same generation");

    world.trains_to_the_end();
    world.until("succeeded", |world| world.phase() == "Succeeded").await;
    assert_eq!(world.events(), ["Started", "Running", "WorkerLost", "WorkerBack", "Succeeded"]);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_fails_beyond_its_limit_ends_the_job_with_the_reason() {
    let (world, _operator) = ClusterWorld::running(|job| job["spec"]["runPolicy"] = json!({"backoffLimit": 2})).await;
    for pod in ["x7k2p", "again1", "again2"] {
        let pod = format!("ctr-1-worker-1-{pod}");
        world.until("there", |world| world.pods().contains(&pod)).await;
        world.advance(30).await;
        world.ends(&pod, 139);
    }
    world.until("failed", |world| world.phase() == "Failed").await;
    let failed = world.condition("Failed");
    assert_eq!(failed["reason"], "BackoffLimitExceeded");
    says(&failed["message"], "ctr-1-worker-1-again2 ended with 139 (crashed)");
    says(&failed["message"], "it was restarted 2 times, which is the limit (runPolicy.backoffLimit)");
    assert_eq!((world.status("/attempt"), world.status("/restarts")), (json!(1), json!(0)));
}

/// Kubernetes gives the worker up. The run continues with the others and ends well.
#[tokio::test(start_paused = true)]
async fn an_elastic_run_ends_well_without_a_worker_that_is_given_up() {
    let (world, _operator) = ClusterWorld::running(|job| {
        job["spec"]["elasticity"] = json!({"minWorkers": 2, "maxWorkers": 4});
        job["spec"]["denseWorkers"]["replicas"] = json!(3);
        job["spec"]["runPolicy"] = json!({"backoffLimit": 1});
    })
    .await;
    let config = world.api.store().get(&key("", "configmaps", "ctr-1-job")).unwrap();
    says(&config["data"]["job.toml"], "min_workers = 2");
    for pod in ["ctr-1-worker-2-x7k2p", "ctr-1-worker-2-again1"] {
        world.until("there", |world| world.pods().contains(&pod.to_owned())).await;
        world.advance(30).await;
        world.ends(pod, 139);
    }
    world.advance(600).await;
    assert_eq!((world.phase().as_str(), world.status("/attempt")), ("Running", json!(1)));
    assert_eq!(world.condition("Ready")["reason"], "WorkerLost");
    world.trains_to_the_end();
    world.until("over", |world| world.phase() == "Succeeded").await;
    world.advance(60).await;
    assert_eq!(world.status("/attempt"), 1);
}

/// The worker is evicted, and its kubelet ends it: its Job does not count it.
#[tokio::test(start_paused = true)]
async fn an_evicted_worker_is_reported_when_it_is_lost_and_when_it_is_back() {
    let (world, _operator) = ClusterWorld::running(|_| ()).await;
    world.loses_node_of("ctr-1-worker-1-x7k2p");
    world.unheard.lock().unwrap().clear();
    world.until("lost", |world| !world.status("/workersLost").is_null()).await;
    world.until("back", |world| world.events().contains(&"WorkerBack".to_owned())).await;
    assert_eq!(world.events(), ["Started", "Running", "WorkerLost", "WorkerBack"]);
    assert_eq!((world.status("/workerRestarts"), world.status("/workersLost")), (json!(0), json!(null)));
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

/// The coordinator's pod never goes, so no other is made. Its workers wait for it in vain and end.
#[tokio::test(start_paused = true)]
async fn a_coordinator_on_a_silent_node_is_followed_by_another_attempt() {
    let (world, _operator) = ClusterWorld::running(|job| job["spec"]["runPolicy"] = json!({"backoffLimit": 1})).await;
    let coordinator = "ctr-1-coord-0";
    world.loses_node_of(coordinator);
    world.until("reported", |world| world.condition("Ready")["reason"] == "PodLost").await;
    for worker in ["x7k2p", "again1"] {
        let worker = format!("ctr-1-worker-0-{worker}");
        world.until("there", |world| world.pods().contains(&worker)).await;
        world.ends(&worker, 4);
    }
    world.until("second attempt", |world| world.status("/attempt") == 2 && world.phase() == "Running").await;
    assert!(world.pods().contains(&coordinator.to_owned()), "it still hangs");
}
