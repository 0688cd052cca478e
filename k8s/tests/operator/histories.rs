//! Histories by seed, in which plans are executed as they are made: pods and processes end, operators end, a user edits and
//! deletes, in any order. The run goes on in its first attempt, no claim is ever deleted, and all is as it should be in the
//! end. From a state that no history leads to, plans lead to an end too.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::edits::servers_are_alive;
use crate::kubelet::is_ready;
use crate::planned::PlannedRun;
use crate::scale::{buckets_move, wants, wants_workers};
use crate::world::{ADS, ClusterWorld, key};

/// A generator of numbers (xorshift64*).
struct TestDice(u64);

impl TestDice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides
    }

    fn pick(&mut self, items: &[String]) -> Option<String> {
        let place = usize::try_from(self.roll(items.len().max(1) as u64)).unwrap();
        items.get(place).cloned()
    }
}

/// Pods that work now, of a part of their names.
fn working(world: &ClusterWorld, part: &str) -> Vec<String> {
    let pods = world.api.store().list("", "pods", Some(ADS), "");
    let works = pods.iter().filter(|pod| is_ready(pod) && pod["metadata"]["deletionTimestamp"].is_null());
    let names = works.map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned());
    names.filter(|name| name.contains(part)).collect()
}

/// The claims, and which object each is: a claim that was deleted and made again is another.
fn claims(world: &ClusterWorld) -> BTreeMap<String, String> {
    let claims = world.api.store().list("", "persistentvolumeclaims", Some(ADS), "");
    let one = |claim: &serde_json::Value| {
        assert!(claim["metadata"]["deletionTimestamp"].is_null(), "{}", claim["metadata"]);
        let text = |field: &str| claim["metadata"][field].as_str().unwrap().to_owned();
        (text("name"), text("uid"))
    };
    claims.iter().map(one).collect()
}

/// Whether all these claims are there. A run that was scaled has more.
fn keeps(world: &ClusterWorld, before: &BTreeMap<String, String>) -> bool {
    let now = claims(world);
    before.iter().all(|(claim, uid)| now.get(claim) == Some(uid))
}

fn happens(world: &ClusterWorld, operator: &mut PlannedRun, dice: &mut TestDice) -> String {
    let codes = [1, 7, 134, 137, 139, 143];
    let code = codes[usize::try_from(dice.roll(6)).unwrap()];
    match dice.roll(11) {
        role @ 0..=2 => {
            let part = ["-server-", "-coord-", "-worker-"][usize::try_from(role).unwrap()];
            let Some(pod) = dice.pick(&working(world, part)) else { return String::new() };
            if role == 2 {
                world.ends(&pod, code)
            } else {
                world.dies(&pod, code)
            }
            format!("{pod} ends with {code}")
        }
        3 => {
            let Some(pod) = dice.pick(&working(world, "ctr-1-")) else { return String::new() };
            world.vanishes(&pod);
            format!("{pod} vanishes")
        }
        4 => {
            operator.is_away = true;
            "the operator ends".to_owned()
        }
        5 => {
            operator.is_away = false;
            operator.forget();
            "an operator starts".to_owned()
        }
        6 => {
            let value = dice.roll(1000);
            let env = json!([{"name": "ZAGROS_LOG", "value": format!("level-{value}")}]);
            let edited = world.edit(|job| job["spec"]["embeddingServers"]["pod"]["env"] = env);
            format!("servers are edited: {edited:?}")
        }
        7 => {
            let servers = 1 + i32::try_from(dice.roll(5)).unwrap();
            wants(world, servers).unwrap();
            format!("{servers} servers are wanted")
        }
        8 => {
            let workers = 1 + i32::try_from(dice.roll(4)).unwrap();
            wants_workers(world, workers);
            format!("{workers} workers are wanted")
        }
        9 => {
            let is_on = dice.roll(2) == 0;
            let field = if dice.roll(2) == 0 { "networkPolicy" } else { "disruptionBudget" };
            world.edit(|job| job["spec"][field] = json!(is_on)).unwrap();
            format!("{field} is {is_on}")
        }
        _ => {
            // Its pods go with it, and its claims stay.
            let (plural, name) =
                [("statefulsets", "ctr-1-server"), ("statefulsets", "ctr-1-coord"), ("services", "ctr-1-server")]
                    [usize::try_from(dice.roll(3)).unwrap()];
            let place = key(if plural == "services" { "" } else { "apps" }, plural, name);
            if world.api.store().get(&place).is_ok() {
                world.delete(&place);
            }
            format!("{name} of {plural} is deleted by hand")
        }
    }
}

/// The cluster goes on for some seconds, and buckets move. No server that owns buckets is removed.
async fn time_passes(world: &ClusterWorld, operator: &PlannedRun, seconds: u64) {
    for _ in 0..seconds {
        world.advance(1).await;
        operator.look(world);
        buckets_move(world);
        if let Ok(set) = world.api.store().get(&key("apps", "statefulsets", "ctr-1-server")) {
            let (pods, owners) = (set["spec"]["replicas"].as_i64().unwrap(), world.run.state().owners);
            assert!(pods >= i64::from(owners), "{pods} pods of servers, and {owners} servers own buckets");
        }
    }
}

async fn history(seed: u64) {
    let mut dice = TestDice(seed * 0x9e37_79b9 + 1);
    let world = ClusterWorld::new();
    let mut operator = PlannedRun::default();
    world.create(|job| {
        job["spec"]["runPolicy"] = json!({"backoffLimit": 1000});
        job["spec"]["elasticity"] = json!({"minWorkers": 1, "maxWorkers": 4});
    });
    servers_are_alive(&world, 100);
    world.run.start(3);
    operator.until(&world, "running", is_running).await;
    let first_claims = claims(&world);
    assert_eq!(first_claims.len(), 4, "a disk of the coordinator and one of each server");
    let mut happened = Vec::new();
    for _ in 0..12 {
        happened.push(happens(&world, &mut operator, &mut dice));
        time_passes(&world, &operator, dice.roll(40)).await;
        assert!(keeps(&world, &first_claims), "seed {seed}: {happened:#?}");
        assert_eq!(world.status("/attempt"), json!(1), "seed {seed}: {happened:#?}");
        assert_eq!(world.status("/restarts"), json!(0), "seed {seed}: {happened:#?}");
    }
    operator.is_away = false;
    println!("seed {seed}: {happened:#?}");
    let wanted = |world: &ClusterWorld| {
        let set = world.api.store().get(&key("apps", "statefulsets", "ctr-1-server")).unwrap_or_default();
        let is_updated = set["status"]["currentRevision"] == set["status"]["updateRevision"];
        let image = set["spec"]["template"]["spec"]["containers"][0]["env"].as_array();
        let job = world.job().unwrap();
        let env = job["spec"]["embeddingServers"]["pod"]["env"].as_array();
        let has_env = env.is_none_or(|env| env.iter().all(|one| image.is_some_and(|all| all.contains(one))));
        let servers = job["spec"]["embeddingServers"]["replicas"].as_u64().unwrap();
        let workers = job["spec"]["denseWorkers"]["replicas"].as_u64().unwrap();
        let is_scaled = world.condition("Scaled").is_null() || world.condition("Scaled")["status"] == "True";
        buckets_move(world);
        let pods = working(world, "ctr-1-").len() as u64;
        is_updated
            && has_env
            && is_scaled
            && world.condition("Ready")["status"] == "True"
            && pods == 1 + servers + workers
    };
    operator.until(&world, "as it should be", wanted).await;
    assert!(keeps(&world, &first_claims));
    time_passes(&world, &operator, 60).await;
    // At rest nothing is written.
    let version = world.api.store().version;
    time_passes(&world, &operator, 60).await;
    assert_eq!(world.api.store().version, version, "seed {seed}");
    world.trains_to_the_end();
    operator.until(&world, "succeeded", |world| world.phase() == "Succeeded").await;
    operator.until(&world, "no claim", |world| world.names("", "persistentvolumeclaims").is_empty()).await;
    assert_eq!(world.status("/attempt"), 1);
}

fn is_running(world: &ClusterWorld) -> bool {
    world.phase() == "Running" && world.condition("Ready")["status"] == "True"
}

#[tokio::test(start_paused = true)]
async fn a_run_goes_on_whatever_happens_to_its_pods_and_its_operator() {
    for seed in 1..=12 {
        history(seed).await;
    }
}

/// Someone writes into the status and deletes objects, and the operator forgets.
fn damage(world: &ClusterWorld, operator: &PlannedRun, dice: &mut TestDice) -> String {
    let job = key("zagros.dev", "hybridjobs", "ctr");
    let (group, plural, name) = [
        ("apps", "statefulsets", "ctr-1-server"),
        ("apps", "statefulsets", "ctr-1-coord"),
        ("batch", "jobs", "ctr-1-worker"),
        ("", "services", "ctr-1-server"),
    ][usize::try_from(dice.roll(4)).unwrap()];
    let place = key(group, plural, name);
    match dice.roll(5) {
        0 => {
            world.change(&job, |job| drop(job.as_object_mut().unwrap().shift_remove("status")));
            "the status is gone".to_owned()
        }
        1 => {
            let phases = ["Invalid", "Suspended", "Starting", "Running", "Restarting", "Succeeded", "Failed"];
            let phase = phases[usize::try_from(dice.roll(7)).unwrap()];
            world.change(&job, |job| job["status"]["phase"] = json!(phase));
            format!("the phase is {phase}")
        }
        2 => {
            let attempt = 1 + dice.roll(3);
            world.change(&job, |job| job["status"]["attempt"] = json!(attempt));
            format!("the attempt is {attempt}")
        }
        3 if world.api.store().get(&place).is_ok() => {
            world.delete(&place);
            format!("{name} of {plural} is deleted")
        }
        _ => {
            operator.forget();
            "the operator forgets".to_owned()
        }
    }
}

/// Whether all members of one attempt are ready and nothing of another is left, or the job is over and no pod runs.
fn is_at_rest(world: &ClusterWorld) -> bool {
    let attempt = format!("ctr-{}-", world.status("/attempt"));
    let (pods, sets) = (working(world, "ctr-"), world.names("apps", "statefulsets"));
    let is_over = world.phase() == "Succeeded" || world.phase() == "Failed";
    let is_whole = is_running(world) && pods.len() == 6 && sets.len() == 2 && world.names("", "services").len() == 3;
    is_over && pods.is_empty() || is_whole && pods.iter().chain(&sets).all(|name| name.starts_with(&attempt))
}

async fn any_state(seed: u64) {
    let mut dice = TestDice(seed * 0x9e37_79b9 + 7);
    let (world, operator) = (ClusterWorld::new(), PlannedRun::default());
    world.create(|_| ());
    operator.until(&world, "running", is_running).await;
    let damages: Vec<String> = (0..4).map(|_| damage(&world, &operator, &mut dice)).collect();
    println!("seed {seed}: {damages:#?}");
    operator.until(&world, "at rest", is_at_rest).await;
    let suspended =
        |is_suspended: bool| move |job: &mut Value| job["spec"]["runPolicy"] = json!({"suspend": is_suspended});
    world.edit(suspended(true)).unwrap();
    let is_empty = |world: &ClusterWorld| world.pods().is_empty() && world.names("", "services").is_empty();
    let is_over = world.phase() == "Succeeded" || world.phase() == "Failed";
    operator.until(&world, "suspended", |world| is_over || world.phase() == "Suspended" && is_empty(world)).await;
    world.edit(suspended(false)).unwrap();
    operator.until(&world, "at rest again", is_at_rest).await;
    world.delete(&key("zagros.dev", "hybridjobs", "ctr"));
    operator.until(&world, "gone", |world| world.job().is_none()).await;
    world.until("nothing left", is_empty).await;
}

#[tokio::test(start_paused = true)]
async fn every_state_leads_to_an_end() {
    for seed in 1..=24 {
        any_state(seed).await;
    }
}

/// A failed attempt's rows are of no use to the next one. Its claims go with it, and those of the next one stay.
#[tokio::test(start_paused = true)]
async fn claims_go_with_their_attempt_and_with_a_deleted_job() {
    let (world, operator) = ClusterWorld::running(|_| ()).await;
    let all = |attempt: i32| {
        let servers = (0..3).map(|index| format!("state-ctr-{attempt}-server-{index}"));
        std::iter::once(format!("state-ctr-{attempt}-coord-0")).chain(servers).collect::<Vec<_>>()
    };
    assert_eq!(world.names("", "persistentvolumeclaims"), all(1));
    world.ends("ctr-1-coord-0", 4);
    world.until("second attempt", |world| world.status("/attempt") == 2 && world.phase() == "Running").await;
    world.until("claims of the first gone", |world| world.names("", "persistentvolumeclaims") == all(2)).await;
    // Without an operator, the claims go with their owner.
    operator.stop().await;
    let place = key("zagros.dev", "hybridjobs", "ctr");
    world.change(&place, |job| drop(job["metadata"].as_object_mut().unwrap().remove("finalizers")));
    world.delete(&place);
    world.until("all gone", |world| world.names("", "persistentvolumeclaims").is_empty()).await;
}
