//! Edits of a running job are refused, or applied at once without a restart: servers restart one after another. No admitted edit is
//! ignored.

use serde_json::{Value, json};
use zagros_operator::crd::RunProgress;

use crate::world::{ClusterWorld, DEPENDANTS, key};

/// Names of the objects that an edit turns on and off.
fn shared(world: &ClusterWorld) -> Vec<String> {
    let kinds = [("networking.k8s.io", "networkpolicies"), ("policy", "poddisruptionbudgets")];
    kinds.iter().flat_map(|(group, plural)| world.names(group, plural)).collect()
}

#[tokio::test(start_paused = true)]
async fn an_object_that_an_edit_turns_off_is_removed_and_comes_back() {
    let (world, _operator) = ClusterWorld::running(|_| ()).await;
    assert_eq!(shared(&world), ["ctr", "ctr.workers", "ctr"]);
    let pods = world.pods();
    world.edit(|job| job["spec"]["networkPolicy"] = json!(false)).unwrap();
    world.until("no policy", |world| shared(world) == ["ctr"]).await;
    world.edit(|job| job["spec"]["disruptionBudget"] = json!(false)).unwrap();
    world.until("no budgets", |world| shared(world).is_empty()).await;
    world.edit(|job| job["spec"]["disruptionBudget"] = json!(true)).unwrap();
    world.edit(|job| job["spec"]["networkPolicy"] = json!(true)).unwrap();
    world.until("all back", |world| shared(world).len() == 3).await;
    let policy = json!({"activeDeadlineSeconds": 86_400, "cleanPodPolicy": "All"});
    world.edit(|job| job["spec"]["runPolicy"] = policy).unwrap();
    world.advance(30).await;
    assert_eq!((world.pods(), world.status("/attempt")), (pods, json!(1)), "no pod was made anew");
}

/// Only an object with the job's labels is the job's.
#[tokio::test(start_paused = true)]
async fn an_object_without_the_jobs_labels_stays() {
    let world = ClusterWorld::new();
    let place = key("networking.k8s.io", "networkpolicies", "ctr");
    let theirs = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "ctr"}, "spec": {"podSelector": {}},
    });
    world.write(&place, theirs);
    let _operator = world.operator(None).await;
    world.create(|job| job["spec"]["networkPolicy"] = json!(false));
    world.until_running().await;
    world.advance(60).await;
    assert_eq!(world.api.store().get(&place).unwrap()["spec"], json!({"podSelector": {}}));
}

/// `kubectl delete --cascade=orphan` removes the owner from dependants before the finalizer acts.
#[tokio::test(start_paused = true)]
async fn a_job_that_is_deleted_with_its_dependants_orphaned_leaves_none() {
    let (world, _operator) = ClusterWorld::running(|_| ()).await;
    for (group, plural) in DEPENDANTS {
        for name in world.names(group, plural) {
            let place = key(group, plural, &name);
            world.change(&place, |object| {
                drop(object["metadata"].as_object_mut().unwrap().shift_remove("ownerReferences"))
            });
        }
    }
    world.delete(&key("zagros.dev", "hybridjobs", "ctr"));
    world.until("gone", |world| world.job().is_none()).await;
    assert_eq!(shared(&world), Vec::<String>::new());
    assert!(world.names("", "services").is_empty() && world.names("batch", "jobs").is_empty());
}

/// The coordinator reports so many servers as alive.
pub(crate) fn servers_are_alive(world: &ClusterWorld, servers: i32) {
    let state = "training".to_owned();
    let progress = RunProgress { step: 7, epochs: 1, epoch: 1, servers, state, ..RunProgress::default() };
    *world.progress.lock().unwrap() = Some(progress);
}

fn revisions(world: &ClusterWorld) -> Vec<Value> {
    let revision = |index: i32| {
        let pod = world.api.store().get(&key("", "pods", &format!("ctr-1-server-{index}")));
        pod.map_or(Value::Null, |pod| pod["metadata"]["labels"]["controller-revision-hash"].clone())
    };
    (0..3).map(revision).collect()
}

fn set_image(world: &ClusterWorld, image: &str) {
    world.edit(|job| job["spec"]["embeddingServers"]["pod"]["image"] = json!(image)).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_changed_image_reaches_one_server_after_another() {
    let (world, _operator) = ClusterWorld::with_operator().await;
    world.create(|_| ());
    servers_are_alive(&world, 3);
    world.until_running().await;
    let (before, pods) = (revisions(&world), world.pods());
    set_image(&world, "zagros-server:1.0-patched");
    for index in [2, 1, 0] {
        let place = key("", "pods", &format!("ctr-1-server-{index}"));
        let is_ending = |world: &ClusterWorld| {
            let pod = world.api.store().get(&place);
            pod.is_ok_and(|pod| pod["metadata"]["deletionTimestamp"].is_string())
        };
        world.until("asked to end", is_ending).await;
        // All others are as they should be: those above are new, those below are old.
        let now = revisions(&world);
        for other in (0..3).filter(|other| *other != index) {
            assert_eq!(now[other] == before[other], other < index, "{index}: {now:?}");
        }
        // The coordinator has not heard of it yet.
        servers_are_alive(&world, 2);
        world.until("made again", |world| revisions(world)[index] != before[index]).await;
        world.advance(60).await;
        let waits = revisions(&world);
        assert!((0..index).all(|other| waits[other] == before[other]), "no server is restarted meanwhile: {waits:?}");
        servers_are_alive(&world, 3);
    }
    world.until("updated", |world| revisions(world).iter().all(|one| *one != before[0] && one.is_string())).await;
    world.advance(120).await;
    assert_eq!((world.pods(), world.status("/attempt"), world.status("/restarts")), (pods, json!(1), json!(0)));
    assert!(world.events().contains(&"ServersUpdate".to_owned()), "{:?}", world.events());
    let set = world.api.store().get(&key("apps", "statefulsets", "ctr-1-server")).unwrap();
    assert_eq!(set["spec"]["updateStrategy"]["rollingUpdate"]["partition"], 3, "no update is under way");
}
