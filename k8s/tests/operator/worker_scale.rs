//! Another number of dense workers while the run trains (ADR 22).

use serde_json::{Value, json};

use crate::operator::RunningOperator;
use crate::scale::{self, buckets_move, minimum};
use crate::world::{ClusterWorld, key, says};

/// A run of two workers, of one to four, that trains.
async fn training() -> (ClusterWorld, RunningOperator) {
    scale::training(|job| job["spec"]["elasticity"] = json!({"minWorkers": 1, "maxWorkers": 4})).await
}

pub(crate) fn wants(world: &ClusterWorld, workers: i32) {
    world.edit(|job| job["spec"]["denseWorkers"]["replicas"] = json!(workers)).unwrap();
}

fn uid(world: &ClusterWorld, pod: &str) -> Value {
    world.api.store().get(&key("", "pods", pod)).unwrap()["metadata"]["uid"].clone()
}

fn sizes(world: &ClusterWorld) -> Vec<Value> {
    let job = world.api.store().get(&key("batch", "jobs", "ctr-1-worker")).unwrap()["spec"].clone();
    ["completions", "parallelism", "maxFailedIndexes"].map(|field| job[field].clone()).to_vec()
}

async fn settles(world: &ClusterWorld) {
    let is_scaled = |world: &ClusterWorld| {
        buckets_move(world);
        world.condition("Scaled")["status"] == "True" && world.condition("Ready")["status"] == "True"
    };
    world.until("scaled", is_scaled).await;
    assert_eq!((world.status("/attempt"), world.status("/restarts")), (json!(1), json!(0)));
    assert_eq!(world.status("/workerRestarts"), 0);
    assert!(!world.events().contains(&"WorkerLost".to_owned()), "{:?}", world.events());
}

#[tokio::test(start_paused = true)]
async fn workers_join_and_leave_a_run_that_trains() {
    let (world, _operator) = training().await;
    let config = world.api.store().get(&key("", "configmaps", "ctr-1-job")).unwrap()["data"].clone();
    says(&config["job.toml"], "max_workers = 4");
    assert!(world.edit(|job| job["spec"]["denseWorkers"]["replicas"] = json!(5)).is_err(), "beyond elasticity");
    let first = uid(&world, "ctr-1-worker-0-x7k2p");
    wants(&world, 4);
    world.until("four pods", |world| world.pods_named("-worker-").len() == 4).await;
    assert_eq!(world.run.state().asked_workers, [4], "asked once, and before any pod was made");
    assert!(world.run.state().asked.is_empty(), "the number of servers stays");
    assert_eq!((sizes(&world), minimum(&world)), (vec![json!(4), json!(4), json!(3)], json!(7)));
    settles(&world).await;
    assert_eq!(world.status("/roles/denseWorkers/summary"), "4/4");
    wants(&world, 1);
    world.until("one pod", |world| world.pods_named("-worker-") == ["ctr-1-worker-0-x7k2p"]).await;
    settles(&world).await;
    assert_eq!((sizes(&world), minimum(&world)), (vec![json!(1), json!(1), json!(0)], json!(4)));
    assert_eq!((world.status("/workers"), world.run.state().asked_workers.clone()), (json!(1), vec![4, 1]));
    wants(&world, 3);
    world.until("three pods", |world| world.pods_named("-worker-").len() == 3).await;
    settles(&world).await;
    assert_eq!(uid(&world, "ctr-1-worker-0-x7k2p"), first, "the first worker was never started again");
    world.trains_to_the_end();
    world.until("succeeded", |world| world.phase() == "Succeeded").await;
}

/// It learned from the coordinator that it is to leave before its pod was asked to end. Its index is done again when it comes back.
#[tokio::test(start_paused = true)]
async fn a_worker_that_left_early_comes_back_when_it_is_wanted_again() {
    let (world, _operator) = training().await;
    wants(&world, 1);
    world.until("asked", |world| world.run.state().asked_workers == [1]).await;
    assert_eq!(sizes(&world)[0], 2, "the Job is smaller once the coordinator reports the new number");
    world.ends("ctr-1-worker-1-x7k2p", 0);
    settles(&world).await;
    assert_eq!(world.phase(), "Running", "the Job is not over: its first worker trains");
    wants(&world, 2);
    world.until("asked again", |world| world.run.state().asked_workers == [1, 2]).await;
    settles(&world).await;
    assert_eq!(world.status("/roles/denseWorkers/summary"), "2/2");
}

#[tokio::test(start_paused = true)]
async fn a_number_of_workers_that_the_coordinator_refuses_restarts_nothing() {
    let (world, _operator) = training().await;
    let why = "the run has 2 dense workers, and their number cannot change: mode sync";
    for wanted in [4, 1] {
        world.run.state().refuses = Some(why.to_owned());
        wants(&world, wanted);
        let is_refused = |world: &ClusterWorld| {
            let condition = world.condition("Scaled");
            condition["reason"] == "ScaleRefused"
                && condition["message"].to_string().contains(&format!("{wanted} dense"))
        };
        world.until("refused", is_refused).await;
        says(&world.condition("Scaled")["message"], why);
        says(&world.condition("Scaled")["message"], "correct spec.denseWorkers.replicas");
        world.advance(300).await;
        assert_eq!((world.pods_named("-worker-").len(), world.status("/attempt")), (2, json!(1)));
        assert_eq!((world.condition("Ready")["status"].clone(), world.phase().as_str()), (json!("True"), "Running"));
    }
    wants(&world, 2);
    world.until("settled", |world| world.condition("Scaled")["status"] == "True").await;
}
