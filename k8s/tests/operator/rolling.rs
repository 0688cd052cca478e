//! Servers that are restarted one after another while the run trains.

use serde_json::{Value, json};
use zagros_operator::crd::RunProgress;

use crate::world::{ClusterWorld, key};

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

/// The server with the new image does not start. No other server is restarted, and another edit mends it.
#[tokio::test(start_paused = true)]
async fn an_update_stops_at_a_server_that_does_not_come_back() {
    let mut world = ClusterWorld::new();
    let _operator = world.operator(None).await;
    world.create(|_| ());
    servers_are_alive(&world, 3);
    world.until_running().await;
    let earlier = revisions(&world);
    world.stuck.insert("ctr-1-server-2".to_owned(), ("ImagePullBackOff", "no such image"));
    set_image(&world, "zagros-server:wrong");
    world.until("reported", |world| world.condition("Ready")["reason"] == "ImagePullBackOff").await;
    world.advance(300).await;
    assert_eq!(revisions(&world)[..2], earlier[..2]);
    world.stuck.clear();
    set_image(&world, "zagros-server:right");
    world.until("updated", |world| (0..3).all(|index| revisions(world)[index] != earlier[index])).await;
    world.until("ready", |world| world.condition("Ready")["status"] == "True").await;
    assert_eq!(world.status("/attempt"), 1);
}

/// Their rows would be lost, so the definition refuses the edit.
#[tokio::test(start_paused = true)]
async fn servers_without_a_log_are_not_updated_while_the_run_trains() {
    let text = "[data]\nformat = \"criteo\"\ntrain = \"/data/train.txt\"\n[cluster]\ndurability = \"checkpoint\"\n";
    let (world, _operator) = ClusterWorld::running(|job| job["spec"]["job"]["inline"] = json!(text)).await;
    let refused = world.edit(|job| job["spec"]["embeddingServers"]["pod"]["image"] = json!("zagros:2")).unwrap_err();
    assert!(refused.contains("embeddingServers.pod is fixed while the run is not suspended"), "{refused}");
    assert_eq!(world.status("/recovery"), "Checkpoint");
}
