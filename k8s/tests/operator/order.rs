//! The order in which a run is removed, and how long its job is held.

use serde_json::{Value, json};

use crate::api::ApiEvent;
use crate::world::{ADS, ClusterWorld, DEPENDANTS, key, says};

/// Every worker takes long to write its checkpoint.
fn workers_take_long(world: &ClusterWorld) {
    world.unheard.lock().unwrap().extend(world.pods_named("-worker-"));
}

fn workers(world: &ClusterWorld) -> usize {
    world.pods_named("ctr-1-worker-").len()
}

/// Names of deleted objects and of ended pods, in order.
fn gone(world: &ClusterWorld, plurals: &[&str]) -> Vec<String> {
    let store = world.api.store();
    let has_ended = |one: &ApiEvent| one.object["status"]["phase"] == "Failed";
    let of_kind = store.log.iter().filter(|one| plurals.contains(&one.key.plural.as_str()));
    let gone = of_kind.filter(|one| if one.key.plural == "pods" { has_ended(one) } else { one.what == "DELETED" });
    let mut names = Vec::new();
    for one in gone.filter(|one| one.key.name.starts_with("ctr-1-")) {
        let name = format!("{}/{}", one.key.plural, one.key.name);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// A worker that is asked to end writes a checkpoint. That needs servers and coordinator.
async fn ends_in_order(world: &ClusterWorld) {
    world.until("asked to end", |world| !world.names("batch", "jobs").contains(&"ctr-1-worker".to_owned())).await;
    world.advance(40).await;
    assert_eq!(workers(world), 2);
    assert_eq!(world.names("apps", "statefulsets"), ["ctr-1-coord", "ctr-1-server"], "the workers still write");
    assert_eq!(world.names("batch", "jobs"), Vec::<String>::new());
    let runs = |world: &ClusterWorld| {
        let pods = world.api.store().prefixed("", "pods", ADS, "ctr-1-");
        let others = pods.iter().filter(|pod| pod["metadata"]["labels"]["zagros.dev/role"] != "worker");
        others.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).count()
    };
    assert_eq!((runs(world), world.names("", "services").len()), (4, 3));
    world.unheard.lock().unwrap().clear();
    world.until("gone", |world| gone(world, &["services"]).len() == 3).await;
    let order = gone(world, &["pods", "services", "statefulsets", "jobs"]);
    let place = |name: &str| order.iter().position(|one| one.starts_with(name)).unwrap_or_else(|| panic!("{order:?}"));
    let last = |part: &str| order.iter().rposition(|one| one.starts_with(part)).unwrap_or_else(|| panic!("{order:?}"));
    let last_worker = last("pods/ctr-1-worker-");
    assert_eq!(place("jobs/ctr-1-worker"), 0, "{order:?}");
    assert!(last_worker < place("statefulsets/ctr-1-server"), "{order:?}");
    assert!(last_worker < place("statefulsets/ctr-1-coord"), "{order:?}");
    let members = [last("pods/ctr-1-server-"), last("pods/ctr-1-coord-")];
    assert!(members.iter().all(|member| *member < place("services/")), "Services last: {order:?}");
}

/// An operator that takes over keeps the order.
#[tokio::test(start_paused = true)]
async fn a_suspended_run_ends_workers_first() {
    for is_taken_over in [false, true] {
        let (world, mut operator) = ClusterWorld::running(|_| ()).await;
        workers_take_long(&world);
        world.edit(|job| job["spec"]["runPolicy"]["suspend"] = json!(true)).unwrap();
        world.until("reported", |world| world.status("/message").to_string().contains("has not ended yet")).await;
        if is_taken_over {
            operator.kill().await;
            operator = world.operator(None).await;
        }
        ends_in_order(&world).await;
        world.until("done", |world| world.status("/message") == "waits: runPolicy.suspend is true").await;
        drop(operator);
    }
}

/// The deadline is over, but the workers may still write a checkpoint.
#[tokio::test(start_paused = true)]
async fn a_run_beyond_its_deadline_ends_workers_first_and_makes_no_pods() {
    let (world, _operator) =
        ClusterWorld::running(|job| job["spec"]["runPolicy"] = json!({"activeDeadlineSeconds": 300})).await;
    workers_take_long(&world);
    world.until("over", |world| world.phase() == "Failed").await;
    assert_eq!(world.condition("Failed")["reason"], "DeadlineExceeded");
    world.advance(40).await;
    assert_eq!((workers(&world), world.names("apps", "statefulsets").len()), (2, 2));
    world.unheard.lock().unwrap().clear();
    world.until("gone", |world| world.pods().is_empty()).await;
    world.advance(600).await;
    assert_eq!((world.pods(), world.names("batch", "jobs")), (vec![], vec!["ctr-1-worker".to_owned()]));
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
