//! The Secret of a run: made once, kept, and given to each role in part.

use serde_json::{Value, json};

use crate::world::{ADS, ClusterWorld, key};

fn secrets(world: &ClusterWorld) -> Vec<Value> {
    world.api.store().list("", "secrets", Some(ADS), "")
}

fn templates(world: &ClusterWorld) -> Vec<Value> {
    let store = world.api.store();
    let owners = [("apps", "statefulsets"), ("batch", "jobs")];
    let owners = owners.into_iter().flat_map(|(group, plural)| store.list(group, plural, Some(ADS), ""));
    let templates: Vec<Value> = owners.map(|owner| owner["spec"]["template"].clone()).collect();
    assert_eq!(templates.len(), 3);
    templates
}

/// Over an update of the servers, another operator and another attempt, processes of the run know each other.
#[tokio::test(start_paused = true)]
async fn a_job_has_one_secret_for_as_long_as_it_is_there() {
    let (world, operator) = ClusterWorld::running(|_| ()).await;
    let made = secrets(&world);
    assert_eq!(made.len(), 1);
    assert_eq!(made[0]["metadata"]["ownerReferences"][0]["kind"], "HybridJob");
    let env = json!([{"name": "ZAGROS_LOG", "value": "debug"}]);
    world.edit(|job| job["spec"]["embeddingServers"]["pod"]["env"] = env).unwrap();
    world.advance(600).await;
    operator.stop().await;
    let _operator = world.operator(None).await;
    world.ends("ctr-1-coord-0", 4);
    world.until("second attempt", |world| world.status("/attempt") == 2 && world.phase() == "Running").await;
    world.advance(600).await;
    assert_eq!(secrets(&world), made);
    // The token, the keys: nothing that people read has them.
    let shown = format!("{:?} {:?}", world.job(), world.api.store().list("", "configmaps", Some(ADS), ""));
    for (entry, value) in made[0]["data"].as_object().unwrap() {
        assert!(!shown.contains(value.as_str().unwrap()), "{entry} is in the status or in a ConfigMap");
    }
    world.delete(&key("zagros.dev", "hybridjobs", "ctr"));
    world.until("gone", |world| world.job().is_none() && secrets(world).is_empty()).await;
    world.create(|_| ());
    world.until_running().await;
    assert_ne!(secrets(&world)[0]["metadata"]["name"], made[0]["metadata"]["name"]);
}

/// A user deletes the Secret, and the operator makes it again.
#[tokio::test(start_paused = true)]
async fn a_secret_that_is_gone_is_made_again() {
    let (world, _operator) = ClusterWorld::running(|_| ()).await;
    let name = secrets(&world)[0]["metadata"]["name"].as_str().unwrap().to_owned();
    world.delete(&key("", "secrets", &name));
    world.until("made again", |world| secrets(world).len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn each_pod_gets_the_key_of_its_role_and_no_sidecar_gets_any() {
    let sidecar = json!([{"name": "proxy", "image": "proxy:1"}]);
    let with_sidecar = |job: &mut Value| job["spec"]["denseWorkers"]["pod"] = json!({"sidecars": sidecar});
    let (world, _operator) = ClusterWorld::running(with_sidecar).await;
    let name = &secrets(&world)[0]["metadata"]["name"];
    for pod in templates(&world) {
        let role = &pod["metadata"]["labels"]["zagros.dev/role"];
        let volumes = pod["spec"]["volumes"].as_array().unwrap();
        let found: Vec<_> = volumes.iter().filter(|volume| volume["secret"]["secretName"] == *name).collect();
        assert_eq!(found.len(), 1, "{role}");
        let expected = json!([{"key": role, "path": "key"}]);
        assert_eq!((&found[0]["secret"]["items"], &found[0]["secret"]["defaultMode"]), (&expected, &json!(0o440)));
        let mounts = |container: &Value| {
            let mounts = container["volumeMounts"].as_array().unwrap();
            mounts.iter().filter(|mount| mount["name"] == found[0]["name"]).count()
        };
        assert_eq!(mounts(&pod["spec"]["containers"][0]), 1);
        let env = pod["spec"]["containers"][0]["env"].as_array().unwrap();
        assert!(env.contains(&json!({"name": "ZAGROS_RUN_SECRET_FILE", "value": "/run/zagros/key"})), "{env:?}");
        for sidecar in pod["spec"]["initContainers"].as_array().into_iter().flatten() {
            assert_eq!(mounts(sidecar), 0, "{sidecar}");
        }
    }
}

/// As the job files of attempts that an earlier operator has made: their pods stay as they are.
#[tokio::test(start_paused = true)]
async fn a_job_that_says_that_it_is_insecure_gets_no_secret() {
    let (world, _operator) = ClusterWorld::running(|job| {
        let text = job["spec"]["job"]["inline"].as_str().unwrap().to_owned();
        job["spec"]["job"]["inline"] = json!(format!("{text}\n[cluster]\ninsecure = true\n"));
    })
    .await;
    assert_eq!(secrets(&world), Vec::<Value>::new());
    for pod in templates(&world) {
        let text = pod.to_string();
        assert!(text.contains("POD_INDEX") || text.contains("--journal"), "{text}");
        assert!(!text.contains("ZAGROS_RUN_SECRET_FILE") && !text.contains("run-secret"), "{text}");
    }
}
