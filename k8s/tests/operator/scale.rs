//! Another number of embedding servers and of dense workers while the run trains (ADR 22).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};
use zagros_operator::crd::{RunProgress, ServerScaling};
use zagros_operator::probe::CoordinatorScale;
use zagros_protocol::Refusal;
use zagros_protocol::control::ScaleRequest;
use zagros_transport::Credentials;

use crate::edits::servers_are_alive;
use crate::kubelet::is_ready;
use crate::operators::RunningOperator;
use crate::world::{ADS, ClusterWorld, key, says};

/// Workers with which a run of these tests starts.
const STARTED: i32 = 2;
/// Buckets that have to move for another number.
const BUCKETS: i32 = 4;

/// What a coordinator does with the numbers of its members: it admits more, moves buckets one after another while all servers are
/// there, and lets the servers go that own none. A worker trains while its pod is ready.
#[derive(Clone, Default)]
pub(crate) struct ScalingRun(Arc<Mutex<ScalingState>>);

#[derive(Default)]
pub(crate) struct ScalingState {
    pub(crate) asked: Vec<u32>,
    pub(crate) asked_workers: Vec<u32>,
    pub(crate) refuses: Option<String>,
    /// Whether every call had the run's secret.
    pub(crate) is_proven: Option<bool>,
    pub(crate) is_stalled: bool,
    scaling: Option<ServerScaling>,
    pub(crate) owners: i32,
}

impl ScalingRun {
    pub(crate) fn state(&self) -> MutexGuard<'_, ScalingState> {
        self.0.lock().unwrap()
    }

    pub(crate) fn start(&self, servers: i32) {
        *self.state() = ScalingState { owners: servers, ..ScalingState::default() };
    }

    pub(crate) fn scaler(&self) -> CoordinatorScale {
        let run = self.clone();
        Arc::new(move |_, credentials, wanted| {
            let answer = run.scale(&credentials, wanted);
            Box::pin(async move { answer })
        })
    }

    pub(crate) fn scale(&self, credentials: &Credentials, request: ScaleRequest) -> Result<(), Refusal> {
        let mut state = self.state();
        state.asked.extend((request.servers > 0).then_some(request.servers));
        state.asked_workers.extend((request.workers > 0).then_some(request.workers));
        state.is_proven = Some(state.is_proven.unwrap_or(true) && credentials.is_checked());
        if let Some(why) = &state.refuses {
            return Err(Refusal::invalid(why.clone()));
        }
        let owners = state.owners;
        let unchanged = || ServerScaling { servers: owners, wanted: owners, ..ServerScaling::default() };
        let mut scaling = state.scaling.clone().unwrap_or_else(unchanged);
        if request.servers > 0 {
            scaling.wanted = i32::try_from(request.servers).unwrap();
            scaling.servers = scaling.servers.max(scaling.wanted);
            scaling.buckets_left = if scaling.wanted == owners { 0 } else { BUCKETS };
        }
        if request.workers > 0 {
            // Those that leave train until then, and new ones have not joined.
            scaling.workers = if scaling.workers_wanted == 0 { STARTED } else { scaling.workers };
            scaling.workers_wanted = i32::try_from(request.workers).unwrap();
        }
        scaling.text = format!("{} buckets left", scaling.buckets_left);
        state.scaling = Some(scaling);
        Ok(())
    }

    /// A bucket moves if all servers are there. `ready` are those that are, by their index; `workers` is how many workers train.
    pub(crate) fn advance(&self, ready: &[i32], workers: i32) {
        let mut state = self.state();
        let (is_stalled, before) = (state.is_stalled, state.owners);
        let Some(scaling) = state.scaling.as_mut() else { return };
        let all = (0..scaling.servers).all(|index| ready.contains(&index));
        let mut owners = before;
        if scaling.buckets_left > 0 && all && !is_stalled {
            scaling.buckets_left -= 1;
            owners = before.max(scaling.wanted);
        }
        if scaling.buckets_left == 0 {
            (owners, scaling.servers) = (scaling.wanted, scaling.wanted);
        }
        if scaling.workers_wanted > 0 {
            scaling.workers = workers;
        }
        scaling.text = format!("{} buckets left", scaling.buckets_left);
        state.owners = owners;
    }

    /// The coordinator's report with the change of the number.
    pub(crate) fn report(&self, progress: Option<RunProgress>) -> Option<RunProgress> {
        progress.map(|progress| RunProgress { scaling: self.state().scaling.clone(), ..progress })
    }
}

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

/// A run of two workers, of one to four, that trains.
async fn elastic_training() -> (ClusterWorld, RunningOperator) {
    training(|job| job["spec"]["elasticity"] = json!({"minWorkers": 1, "maxWorkers": 4})).await
}

pub(crate) fn wants_workers(world: &ClusterWorld, workers: i32) {
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
    let (world, _operator) = elastic_training().await;
    let config = world.api.store().get(&key("", "configmaps", "ctr-1-job")).unwrap()["data"].clone();
    says(&config["job.toml"], "max_workers = 4");
    assert!(world.edit(|job| job["spec"]["denseWorkers"]["replicas"] = json!(5)).is_err(), "beyond elasticity");
    let first = uid(&world, "ctr-1-worker-0-x7k2p");
    wants_workers(&world, 4);
    world.until("four pods", |world| world.pods_named("-worker-").len() == 4).await;
    assert_eq!(world.run.state().asked_workers, [4], "asked once, and before any pod was made");
    assert!(world.run.state().asked.is_empty(), "the number of servers stays");
    assert_eq!((sizes(&world), minimum(&world)), (vec![json!(4), json!(4), json!(3)], json!(7)));
    settles(&world).await;
    assert_eq!(world.status("/roles/denseWorkers/summary"), "4/4");
    wants_workers(&world, 1);
    world.until("one pod", |world| world.pods_named("-worker-") == ["ctr-1-worker-0-x7k2p"]).await;
    settles(&world).await;
    assert_eq!((sizes(&world), minimum(&world)), (vec![json!(1), json!(1), json!(0)], json!(4)));
    assert_eq!((world.status("/workers"), world.run.state().asked_workers.clone()), (json!(1), vec![4, 1]));
    wants_workers(&world, 3);
    world.until("three pods", |world| world.pods_named("-worker-").len() == 3).await;
    settles(&world).await;
    assert_eq!(uid(&world, "ctr-1-worker-0-x7k2p"), first, "the first worker was never started again");
    world.trains_to_the_end();
    world.until("succeeded", |world| world.phase() == "Succeeded").await;
}

/// It learned from the coordinator that it is to leave before its pod was asked to end. Its index is done again when it comes back.
#[tokio::test(start_paused = true)]
async fn a_worker_that_left_early_comes_back_when_it_is_wanted_again() {
    let (world, _operator) = elastic_training().await;
    wants_workers(&world, 1);
    world.until("asked", |world| world.run.state().asked_workers == [1]).await;
    assert_eq!(sizes(&world)[0], 2, "the Job is smaller once the coordinator reports the new number");
    world.ends("ctr-1-worker-1-x7k2p", 0);
    settles(&world).await;
    assert_eq!(world.phase(), "Running", "the Job is not over: its first worker trains");
    wants_workers(&world, 2);
    world.until("asked again", |world| world.run.state().asked_workers == [1, 2]).await;
    settles(&world).await;
    assert_eq!(world.status("/roles/denseWorkers/summary"), "2/2");
}
