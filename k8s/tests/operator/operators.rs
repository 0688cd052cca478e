//! Operators that end half-way, and several operators at once.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zagros_operator::error::Error;
use zagros_operator::leader::{LeaseCandidate, LeaseHandle};
use zagros_operator::names::MANAGER;
use zagros_plumbing::Shutdown;
use zagros_plumbing::metrics::{Registry, render_text};

use crate::api::ObjectKey;
use crate::world::{ClusterWorld, key};

fn lease_key() -> ObjectKey {
    ObjectKey { namespace: "zagros-system".to_owned(), ..key("coordination.k8s.io", "leases", MANAGER) }
}

/// The final state, without what differs from run to run.
fn outcome(world: &ClusterWorld) -> (Vec<String>, Value, Value) {
    let mut all = Vec::new();
    for (group, plural) in
        [("", "configmaps"), ("", "services"), ("", "pods"), ("apps", "statefulsets"), ("batch", "jobs")]
    {
        all.extend(world.names(group, plural).into_iter().map(|name| format!("{plural}/{name}")));
    }
    (all, world.status("/attempt"), world.status("/restarts"))
}

/// One attempt that fails, and one that runs.
async fn live(world: &ClusterWorld) {
    world.until("first attempt", |world| world.phase() == "Running" || world.status("/attempt") == 2).await;
    if world.status("/attempt") == 1 {
        let coordinator = "ctr-1-coord-0";
        world.ends(coordinator, 4);
    }
    world.until("second attempt", |world| world.phase() == "Running" && world.status("/attempt") == 2).await;
    world.until("first gone", |world| world.pods().iter().all(|pod| pod.starts_with("ctr-2-"))).await;
}

/// The operator is killed after so many of its writes. The next one takes over, and the result is that without a kill.
#[tokio::test(start_paused = true)]
async fn an_operator_may_end_between_any_two_writes() {
    let (world, operator) = ClusterWorld::with_operator().await;
    world.create(|_| ());
    live(&world).await;
    let expected = outcome(&world);
    let writes = world.api.store().writes.clone();
    operator.stop().await;
    assert!(writes.len() > 20, "{writes:?}");

    for most in 1..writes.len() {
        let world = ClusterWorld::new();
        world.api.store().dies_after = Some(most);
        let first = world.operator(None).await;
        world.create(|_| ());
        tokio::select! {
            () = live(&world) => {}
            () = async {
                while world.api.store().writes.len() < most {
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
                tokio::time::sleep(std::time::Duration::from_secs(2)).await;
            } => {}
        }
        first.kill().await;
        world.api.store().dies_after = None;
        let second = world.operator(None).await;
        live(&world).await;
        assert_eq!(outcome(&world), expected, "killed after {most} writes, the last of them {:?}", writes.get(most));
        second.stop().await;
    }
}

/// Kubernetes may end a pod before its operator has seen any job: the operator then waits for nothing. If the API takes a
/// request and never answers, it waits as long as a reconciliation may take to end.
#[tokio::test(start_paused = true)]
async fn an_operator_that_is_stopped_ends_at_once_or_in_time() {
    for (denied, dies_after, seconds, waits) in
        [(None, None, 0, 0), (Some("list hybridjobs"), None, 30, 0), (None, Some(0), 30, 10)]
    {
        let world = ClusterWorld::new();
        world.create(|_| ());
        world.api.store().denied.extend(denied.map(str::to_owned));
        world.api.store().dies_after = dies_after;
        let operator = world.operator(None).await;
        world.advance(seconds).await;
        let since = world.now();
        operator.stop().await;
        assert_eq!(world.now().duration_since(since).as_secs(), waits, "{denied:?} {dies_after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_operators_one_leads_and_the_other_takes_over() {
    let world = ClusterWorld::new();
    let first = world.operator(Some("op-a")).await;
    world.advance(5).await;
    let second = world.operator(Some("op-b")).await;
    world.create(|_| ());
    world.until_running().await;
    assert!(first.metric("zagros_operator_leads 1") && second.metric("zagros_operator_leads 0"));
    let lease = lease_key();
    let holder = |world: &ClusterWorld| world.api.store().get(&lease).unwrap()["spec"]["holderIdentity"].clone();
    assert_eq!(holder(&world), "op-a");

    first.kill().await;
    let killed = world.now();
    world.until("taken over", |world| holder(world) == "op-b").await;
    let waited = world.now().duration_since(killed).as_secs();
    assert!((13..=20).contains(&waited), "a lease holds 15 s: {waited}");
    world.ends("ctr-1-coord-0", 4);
    world.until("second attempt", |world| world.phase() == "Running" && world.status("/attempt") == 2).await;
    second.stop().await;
    assert!(holder(&world).is_null(), "given back");
}

/// The lease has a thread of its own: it is taken although nothing else of the operator gets to run.
#[tokio::test]
async fn a_lease_is_kept_while_the_operator_is_busy() {
    let world = ClusterWorld::new();
    let (api, place) = (world.api.clone(), lease_key());
    let candidate = async move || Ok(LeaseCandidate::new(api.client(), "zagros-system", "op-a"));
    let mut lease = LeaseHandle::keep_apart(candidate).unwrap();
    let started = std::time::Instant::now();
    // This thread is the whole runtime of the test, and it does not come back to it.
    while world.api.store().get(&place).is_err() {
        assert!(started.elapsed().as_secs() < 60, "never taken");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    lease.wait_until_leading().await.unwrap();
    lease.give_back().await;
    assert!(world.api.store().get(&place).unwrap()["spec"]["holderIdentity"].is_null(), "given back");
}

#[tokio::test]
async fn an_operator_whose_lease_nothing_keeps_does_not_lead() {
    let refused = async || Err("no client".to_owned());
    let mut lease = LeaseHandle::keep_apart(refused).unwrap();
    assert!(lease.wait_until_leading().await.unwrap_err().to_string().contains("nothing renews it"));
    assert!(lease.wait_until_lost().await.to_string().contains("nothing renews it"));
}

/// An operator that hung finds another leader when it wakes up, and stops before it writes anything. A leader that cannot
/// renew its lease stops before a follower may take over.
#[tokio::test(start_paused = true)]
async fn a_deposed_operator_and_one_that_cannot_renew_stop_in_time_and_say_why() {
    for (is_deposed, reasons) in
        [(true, &["op-b"][..]), (false, &["not be renewed for 10 s", "cannot update resource"])]
    {
        let world = ClusterWorld::new();
        let first = world.operator(Some("op-a")).await;
        world.advance(5).await;
        if is_deposed {
            world.change(&lease_key(), |lease| lease["spec"]["holderIdentity"] = json!("op-b"));
        } else {
            world.api.store().denied.insert("update leases".to_owned());
        }
        let since = world.now();
        let ended = first.end().await.unwrap_err().to_string();
        let waited = world.now().duration_since(since).as_secs();
        assert!(waited < 15, "before a follower may take over: {waited} s");
        assert!(reasons.iter().all(|reason| ended.contains(reason)), "{ended}");
    }
}

/// An operator that was asked to end should be gone after this virtual time.
const LATE: Duration = Duration::from_secs(60);

pub(crate) struct RunningOperator {
    pub(crate) shutdown: Shutdown,
    /// `None` once it is waited for.
    pub(crate) task: Option<JoinHandle<Result<(), Error>>>,
    pub(crate) registry: Registry,
}

impl RunningOperator {
    pub(crate) fn metric(&self, line: &str) -> bool {
        render_text(&self.registry).contains(line)
    }

    pub(crate) fn count(&self, name: &str) -> usize {
        let page = render_text(&self.registry);
        let number = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        number.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
    }

    /// Ends as by SIGKILL.
    pub(crate) async fn kill(mut self) {
        let task = self.task.take().unwrap();
        task.abort();
        assert!(timeout(LATE, task).await.is_ok(), "killed, and still there");
    }

    pub(crate) async fn end(mut self) -> Result<(), Error> {
        self.task.take().unwrap().await.unwrap()
    }

    /// Ends as by SIGTERM.
    pub(crate) async fn stop(self) {
        self.shutdown.request();
        timeout(LATE, self.end()).await.expect("asked to end, and still there").unwrap();
    }
}

/// At the end of a test its operator still works.
impl Drop for RunningOperator {
    fn drop(&mut self) {
        let Some(task) = self.task.take() else { return };
        assert!(!task.is_finished() || std::thread::panicking(), "the operator ended alone");
        task.abort();
    }
}
