//! Workers that are lost where the others wait for them (mode hybrid), and where they do not.

use serde_json::json;

use crate::world::{World, key};

const SYNC: &str = "[data]\nformat = \"criteo\"\ntrain = \"/data/train.txt\"\n[train]\nmode = \"sync\"\n";

#[tokio::test(start_paused = true)]
async fn a_killed_worker_is_started_again_and_the_run_goes_on() {
    let world = World::new();
    let operator = world.operator(None).await;
    world.create(|_| ());
    world.until_running().await;
    world.ends("ctr-1-worker-1-x7k2p", 137);
    world.until("told", |world| world.condition("Ready")["reason"] == "WorkerLost").await;
    let message = world.status("/message").as_str().unwrap().to_owned();
    assert!(message.contains("dense workers 1/2; ctr-1-worker-1-x7k2p ended with 137 (killed)"), "{message}");
    assert_eq!((world.phase().as_str(), world.status("/workerRestarts")), ("Running", json!(1)));
    world.until("back", |world| world.condition("Ready")["status"] == "True").await;
    assert!(world.pods().contains(&"ctr-1-worker-1-again1".to_owned()), "{:?}", world.pods());
    world.pass(600).await;
    assert_eq!((world.status("/attempt"), world.status("/restarts")), (json!(1), json!(0)), "the same generation");

    world.trains_to_the_end();
    world.until("succeeded", |world| world.phase() == "Succeeded").await;
    assert_eq!(world.events(), ["Started", "Running", "WorkerLost", "WorkerBack", "Succeeded"]);
    operator.stop().await;
}

/// Nothing is left that could tell a code.
#[tokio::test(start_paused = true)]
async fn a_worker_that_vanishes_with_its_node_comes_back_as_well() {
    let world = World::new();
    let operator = world.operator(None).await;
    world.create(|_| ());
    world.until_running().await;
    world.vanishes("ctr-1-worker-0-x7k2p");
    world.until("counted", |world| world.status("/workerRestarts") == 1).await;
    world.until("back", |world| world.condition("Ready")["status"] == "True").await;
    assert_eq!(world.status("/attempt"), 1);
    assert_eq!(world.events(), ["Started", "Running", "WorkerLost"]);
    operator.stop().await;
}

#[tokio::test(start_paused = true)]
async fn in_mode_sync_the_whole_group_starts_anew() {
    let world = World::new();
    let operator = world.operator(None).await;
    world.create(|job| job["spec"]["job"]["inline"] = json!(SYNC));
    world.until_running().await;
    world.ends("ctr-1-worker-1-x7k2p", 137);
    world.until("second attempt", |world| world.status("/attempt") == 2 && world.phase() == "Running").await;
    assert_eq!(world.status("/lastFailure/pod"), "ctr-1-worker-1-x7k2p");
    assert_eq!(world.events(), ["Started", "Running", "AttemptFailed", "Running"]);
    operator.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_fails_beyond_its_limit_ends_the_job_with_the_reason() {
    let world = World::new();
    let operator = world.operator(None).await;
    world.create(|job| job["spec"]["runPolicy"] = json!({"backoffLimit": 2}));
    world.until_running().await;
    for pod in ["x7k2p", "again1", "again2"] {
        let pod = format!("ctr-1-worker-1-{pod}");
        world.until("there", |world| world.pods().contains(&pod)).await;
        world.pass(30).await;
        world.ends(&pod, 139);
    }
    world.until("failed", |world| world.phase() == "Failed").await;
    let failed = world.condition("Failed");
    assert_eq!(failed["reason"], "BackoffLimitExceeded");
    let message = failed["message"].as_str().unwrap();
    assert!(message.contains("ctr-1-worker-1-again2 ended with 139 (crashed)"), "{message}");
    assert!(message.contains("it was started again 2 times, the limit (runPolicy.backoffLimit)"), "{message}");
    assert_eq!((world.status("/attempt"), world.status("/restarts")), (json!(1), json!(0)));
    operator.stop().await;
}

/// Kubernetes gives it up; the run goes on with those left and comes to its end.
#[tokio::test(start_paused = true)]
async fn an_elastic_run_ends_well_without_a_worker_that_is_given_up() {
    let world = World::new();
    let operator = world.operator(None).await;
    world.create(|job| {
        job["spec"]["elasticity"] = json!({"minWorkers": 2, "maxWorkers": 4});
        job["spec"]["denseWorkers"]["replicas"] = json!(3);
        job["spec"]["runPolicy"] = json!({"backoffLimit": 1});
    });
    world.until_running().await;
    let text = world.api.store().get(&key("", "configmaps", "ctr-1-job")).unwrap()["data"]["job.toml"].to_string();
    assert!(text.contains("min_workers = 2"), "{text}");
    for pod in ["ctr-1-worker-2-x7k2p", "ctr-1-worker-2-again1"] {
        world.until("there", |world| world.pods().contains(&pod.to_owned())).await;
        world.pass(30).await;
        world.ends(pod, 139);
    }
    world.pass(600).await;
    assert_eq!((world.phase().as_str(), world.status("/attempt")), ("Running", json!(1)));
    assert_eq!(world.condition("Ready")["reason"], "WorkerLost");
    world.trains_to_the_end();
    world.until("over", |world| world.phase() == "Succeeded").await;
    world.pass(60).await;
    assert_eq!(world.status("/attempt"), 1);
    operator.stop().await;
}

/// The coordinator gives a worker up for which none came in time, and all end with it.
#[tokio::test(start_paused = true)]
async fn when_the_run_gives_a_worker_up_the_whole_group_starts_anew() {
    let world = World::new();
    let operator = world.operator(None).await;
    world.create(|_| ());
    world.until_running().await;
    world.ends("ctr-1-worker-1-x7k2p", 137);
    world.pass(5).await;
    world.ends("ctr-1-coordinator-0-x7k2p", 4);
    world.ends("ctr-1-worker-0-x7k2p", 4);
    world.until("second attempt", |world| world.status("/attempt") == 2 && world.phase() == "Running").await;
    assert_eq!(world.status("/lastFailure/pod"), "ctr-1-worker-1-x7k2p");
    assert_eq!(world.status("/workerRestarts"), 0);
    operator.stop().await;
}

/// The old worker 0 still has the run folder: the next would not go on with it.
#[tokio::test(start_paused = true)]
async fn workers_wait_for_those_of_the_attempt_before_but_not_for_ever() {
    for is_on_a_lost_node in [false, true] {
        let world = World::new();
        let operator = world.operator(None).await;
        world.create(|_| ());
        world.until_running().await;
        let place = key("", "pods", "ctr-1-worker-0-x7k2p");
        let mut pod = world.api.store().get(&place).unwrap();
        let killed = world.now() + k8s_openapi::jiff::SignedDuration::from_secs(60);
        pod["metadata"]["finalizers"] = json!(["node.example/slow"]);
        pod["metadata"]["deletionTimestamp"] = json!(killed.to_string());
        world.write(&place, pod.clone());
        world.ends("ctr-1-coordinator-0-x7k2p", 4);
        world.until("second attempt", |world| world.pods().contains(&"ctr-2-server-0".to_owned())).await;
        world.pass(20).await;
        assert!(!world.names("batch", "jobs").contains(&"ctr-2-worker".to_owned()));
        let message = world.status("/message").as_str().unwrap().to_owned();
        assert!(
            message.contains("workers start once ctr-1-worker-0-x7k2p of an earlier attempt has ended"),
            "{message}"
        );
        if !is_on_a_lost_node {
            let mut ended = world.api.store().get(&place).unwrap();
            ended["metadata"]["finalizers"] = json!([]);
            world.write(&place, ended);
        }
        world.until_running().await;
        let late = world.now().duration_since(killed).as_secs();
        assert_eq!(late >= 30, is_on_a_lost_node, "{late} s after it should have been killed");
        operator.stop().await;
    }
}

/// What a job file says of training lies below the same folder in each attempt, so the next one finds checkpoints.
#[tokio::test(start_paused = true)]
async fn the_next_attempt_goes_on_where_the_last_one_was() {
    let world = World::new();
    let operator = world.operator(None).await;
    world.create(|_| ());
    world.until_running().await;
    world.ends("ctr-1-coordinator-0-x7k2p", 4);
    world.until("second attempt", |world| world.status("/attempt") == 2 && world.phase() == "Running").await;
    let text = world.api.store().get(&key("", "configmaps", "ctr-2-job")).unwrap()["data"]["job.toml"].to_string();
    assert!(text.contains("folder = \\\"/output/ctr\\\""), "{text}");
    assert_eq!(world.status("/output"), "/output/ctr");
    operator.stop().await;
}
