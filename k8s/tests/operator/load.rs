//! The number of requests to Kubernetes: at rest, during training, after refusals, and with many jobs.

use std::time::Duration;

use serde_json::json;
use zagros_operator::crd::RunProgress;

use crate::world::ClusterWorld;

/// The requests of a kind since a moment. Watches do not count, because they end and start by themselves.
fn requests(world: &ClusterWorld, since: usize, what: &str) -> usize {
    let store = world.api.store();
    let asked = store.requests[since..].iter().filter(|request| !request.starts_with("watch"));
    asked.filter(|request| request.starts_with(what)).count()
}

fn so_far(world: &ClusterWorld) -> (usize, usize) {
    let store = world.api.store();
    (store.requests.len(), store.writes.len())
}

/// The progress changes with every heartbeat.
fn trains(world: &ClusterWorld, step: i64) {
    *world.progress.lock().unwrap() = Some(RunProgress { step, checkpoint_step: step / 10, ..RunProgress::default() });
}

#[tokio::test(start_paused = true)]
async fn progress_is_written_every_fifteen_seconds_and_nothing_else() {
    let (world, _operator) = ClusterWorld::running(|_| ()).await;
    world.advance(60).await;
    let (asked, written) = so_far(&world);
    for step in 0..600 {
        trains(&world, step);
        world.advance(1).await;
    }
    let writes = world.api.store().writes[written..].to_vec();
    assert!(writes.iter().all(|write| write == "update hybridjobs/status ctr"), "{writes:?}");
    assert!((30..=40).contains(&writes.len()), "{}", writes.len());
    assert!(world.status("/progress/step").as_i64().unwrap() > 550);
    // A look every 15 s reads the job. Objects that are not watched are applied again every five minutes.
    let all = requests(&world, asked, "");
    assert!(all <= 40 + 40 + 3 * 10, "{all}: {:?}", &world.api.store().requests[asked..]);
}

#[tokio::test(start_paused = true)]
async fn a_run_at_rest_is_read_and_not_written() {
    let (world, _operator) = ClusterWorld::running(|_| ()).await;
    world.advance(60).await;
    let ((asked, written), version) = (so_far(&world), world.api.store().version);
    world.advance(240).await;
    assert_eq!(world.api.store().writes[written..], [] as [String; 0]);
    assert!(requests(&world, asked, "") <= 16 + 10, "{:?}", &world.api.store().requests[asked..]);
    world.advance(360).await;
    assert_eq!(world.api.store().version, version, "what is applied again changes nothing");
    for (change, phase) in [(json!({"suspend": true}), "Suspended"), (json!({"activeDeadlineSeconds": 1}), "Failed")] {
        world.edit(|job| job["spec"]["runPolicy"] = change).unwrap();
        world.until("there", |world| world.phase() == phase).await;
        world.advance(120).await;
        let (asked, _) = so_far(&world);
        world.advance(600).await;
        assert_eq!(requests(&world, asked, ""), 0, "{phase}: {:?}", &world.api.store().requests[asked..]);
        if phase == "Suspended" {
            world.edit(|job| job["spec"]["runPolicy"]["suspend"] = json!(false)).unwrap();
            world.until_running().await;
        }
    }
}

/// Without a right, or under a quota, the operator reports once and then tries again less and less often.
#[tokio::test(start_paused = true)]
async fn a_refused_write_is_not_repeated_in_a_loop() {
    let refusals =
        ["patch services", "patch statefulsets", "patch jobs", "patch networkpolicies", "quota services", "quota jobs"];
    for refusal in refusals {
        let world = ClusterWorld::new();
        match refusal.strip_prefix("quota ") {
            Some(kind) => world.api.store().exceeded.insert(kind.to_owned()),
            None => world.api.store().denied.insert(refusal.to_owned()),
        };
        let _operator = world.operator(None).await;
        world.create(|_| ());
        world.until("reported", |world| world.condition("Reconciled")["status"] == "False").await;
        let message = world.condition("Reconciled")["message"].clone();
        let [applied, way_out] = match refusal.strip_prefix("quota ") {
            Some(_) => ["exceeded quota: ads", "raise the quota of the namespace or make the job smaller"],
            None => ["cannot apply ", "rbac.yaml"],
        };
        let words = message.to_string();
        assert!(words.contains(applied) && words.contains(way_out), "{refusal}: {words}");
        world.advance(45).await;
        let (asked, written) = so_far(&world);
        assert!(written <= 20, "{refusal}: {written} writes in the first 45 s: {:?}", world.api.store().writes);
        world.advance(600).await;
        let writes = world.api.store().writes[written..].to_vec();
        assert_eq!(writes, [] as [String; 0], "{refusal}: reported, and nothing changes");
        let kind = refusal.split_once(' ').unwrap().1;
        let tries = requests(&world, asked, &format!("patch {kind}"));
        assert!((1..=36).contains(&tries), "{refusal}: {tries} tries in ten minutes");
        let reports =
            world.events().into_iter().filter(|reason| ["Forbidden", "QuotaExceeded"].contains(&reason.as_str()));
        assert_eq!(reports.count(), 1, "{refusal}: {:?}", world.events());
        assert_eq!(world.condition("Reconciled")["message"], message);
        assert_eq!(world.status("/message"), message);

        world.api.store().denied.clear();
        world.api.store().exceeded.clear();
        world.until_running().await;
        assert_eq!(world.condition("Reconciled")["status"], "True");
    }
}

/// If the status itself cannot be written, only the log reports that.
#[tokio::test(start_paused = true)]
async fn a_status_that_cannot_be_written_is_not_written_in_a_loop() {
    let world = ClusterWorld::new();
    world.api.store().denied.insert("update hybridjobs/status".to_owned());
    let _operator = world.operator(None).await;
    world.create(|_| ());
    world.advance(60).await;
    let (asked, _) = so_far(&world);
    world.advance(600).await;
    assert!(requests(&world, asked, "") <= 60, "{:?}", &world.api.store().requests[asked..]);
    world.api.store().denied.clear();
    world.until_running().await;
}

/// The virtual time of this test comes from requests that take 50 ms each and from pods that start at once.
#[tokio::test(start_paused = true)]
async fn two_hundred_jobs_at_once_cost_few_requests_and_few_turns() {
    const JOBS: usize = 200;
    let world = ClusterWorld::new();
    world.api.slow_down(50);
    let operator = world.operator(None).await;
    world.advance(1).await;
    let (asked, _) = so_far(&world);
    let (created, clock) = (world.now(), std::time::Instant::now());
    for index in 0..JOBS {
        world.create_named(&format!("ctr{index}"), |_| ());
    }
    let running = |world: &ClusterWorld| {
        let jobs = world.api.store().list("zagros.dev", "hybridjobs", None, "");
        jobs.iter().filter(|job| job["status"]["phase"] == "Running").count()
    };
    world.until("all running", |world| running(world) == JOBS).await;
    let (all, lists) = (requests(&world, asked, ""), requests(&world, asked, "list"));
    let (seconds, most) = (world.now().duration_since(created).as_secs_f64(), world.api.most_at_once());
    // One check of the spec's job file, and one of the attempt's. More looks check nothing more.
    let looks = operator.count("zagros_operator_reconcile_seconds_count");
    let checks = operator.count("zagros_operator_spec_checks_total");
    println!(
        "{JOBS} jobs: {looks} looks, {checks} checks of specs, {all} requests, {most} at once, {seconds:.1} s virtual, {:.1?} real",
        clock.elapsed()
    );
    assert_eq!(lists, 0);
    assert!(all <= JOBS * 40, "{} a job", all / JOBS);
    assert!(most >= 16, "{most} at once");
    assert_eq!(checks, 2 * JOBS, "in {looks} looks");
    assert!(looks > checks, "{looks}");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let later = operator.count("zagros_operator_reconcile_seconds_count");
    assert!(later > looks + 2 * JOBS, "{later}");
    assert_eq!(operator.count("zagros_operator_spec_checks_total"), 2 * JOBS, "in {later} looks");
}
