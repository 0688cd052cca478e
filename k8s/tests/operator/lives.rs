//! Jobs without a fault: trained, suspended, scaled, deleted.

use serde_json::json;
use zagros_coordinator::{CheckpointReport, EvaluationReport, MemberReport, ProgressReport, StatusReport};
use zagros_operator::crd::RunProgress;

use crate::world::{ClusterWorld, key};

#[tokio::test(start_paused = true)]
async fn a_job_is_created_runs_completes_and_goes() {
    let (world, operator) = ClusterWorld::with_operator().await;
    world.create(|job| job["spec"]["runPolicy"] = json!({"ttlSecondsAfterFinished": 600}));
    world.until("servers", |world| world.pods().len() == 4).await;
    assert!(!world.names("batch", "jobs").contains(&"ctr-1-worker".to_owned()), "workers come last");
    let auc = Some("0.7512".to_owned());
    let progress = RunProgress { step: 41, checkpoint_step: 40, epoch: 1, epochs: 3, auc, ..RunProgress::default() };
    *world.progress.lock().unwrap() = Some(progress);
    world.until_running().await;
    world.until("progress", |world| world.status("/progress/step") == 41).await;
    assert_eq!(world.status("/lastCheckpoint/step"), 40);

    assert_eq!(world.status("/roles/embeddingServers/summary"), "3/3");
    assert_eq!((world.status("/workers"), world.status("/observedGeneration")), (json!(2), json!(1)));
    assert_eq!(world.condition("Ready")["status"], "True");
    assert_eq!(world.condition("Valid")["status"], "True");
    let selector = world.status("/selector");
    let workers = world.api.store().list("", "pods", None, selector.as_str().unwrap());
    assert_eq!(workers.len(), 2);

    world.trains_to_the_end();
    world.until("succeeded", |world| world.phase() == "Succeeded").await;
    world.until("servers gone", |world| !world.pods().iter().any(|pod| pod.contains("-server-"))).await;
    world.until("coordinator gone", |world| world.pods().len() == 2).await;
    assert!(world.pods().iter().all(|pod| pod.contains("-worker-")), "they stay with their logs: {:?}", world.pods());
    assert_eq!(world.condition("Complete")["status"], "True");
    assert_eq!(world.status("/output"), "/output/ctr");
    assert_eq!(world.status("/progress/auc"), "0.7512");
    world.advance(590).await;
    assert!(world.job().is_some());
    world.until("gone", |world| world.job().is_none()).await;
    world.until("pods gone", |world| world.pods().is_empty()).await;
    assert!(world.names("", "services").is_empty());
    assert_eq!(world.events(), ["Started", "Running", "Succeeded"]);
    assert!(operator.metric("zagros_operator_leads 1"));
}

/// The coordinator is asked every 15 s, and leaves its last report as the message of its container's end.
#[tokio::test(start_paused = true)]
async fn a_finished_run_shows_its_last_numbers() {
    let (world, _operator) = ClusterWorld::running(|_| ()).await;
    *world.progress.lock().unwrap() = Some(RunProgress { step: 41, ..RunProgress::default() });
    world.until("progress", |world| world.status("/progress/step") == 41).await;
    let progress = Some(ProgressReport { step: 113, ..ProgressReport::default() });
    let worker = MemberReport { role: "dense worker".to_owned(), progress, ..MemberReport::default() };
    let (state, members) = ("finished".to_owned(), vec![worker]);
    let evaluations = vec![EvaluationReport { auc: 0.7512, ..EvaluationReport::default() }];
    let checkpoints = vec![CheckpointReport { step: 112, age_seconds: 0.1 }];
    let report = StatusReport { state, members, evaluations, checkpoints, ..StatusReport::default() };
    world.trains_to_the_end();
    let place = key("", "pods", "ctr-1-coord-0");
    let message = serde_json::to_string(&report.in_brief()).unwrap();
    let text = |pod: &mut serde_json::Value| {
        pod["status"]["containerStatuses"][1]["lastState"]["terminated"]["message"] = json!(message);
    };
    world.change(&place, text);
    world.until("succeeded", |world| world.phase() == "Succeeded").await;
    assert_eq!((world.status("/progress/step"), world.status("/progress/auc")), (json!(113), json!("0.7512")));
    assert_eq!(world.status("/progress/state"), json!("finished"));
    assert_eq!(world.status("/lastCheckpoint/step"), json!(112));
}

#[tokio::test(start_paused = true)]
async fn pods_go_as_the_policy_says() {
    for (policy, pods) in [("All", 0), ("None", 6)] {
        let (world, _operator) =
            ClusterWorld::running(|job| job["spec"]["runPolicy"] = json!({"cleanPodPolicy": policy})).await;
        world.trains_to_the_end();
        world.until("succeeded", |world| world.phase() == "Succeeded").await;
        world.advance(60).await;
        assert_eq!(world.pods().len(), pods, "{policy}");
        // Servers that stay up for inspection must not keep a node from being drained.
        assert_eq!(world.names("policy", "poddisruptionbudgets"), Vec::<String>::new(), "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_suspended_job_has_no_pods_and_may_be_edited() {
    let (world, _operator) = ClusterWorld::running(|_| ()).await;
    let refused = world.edit(|job| job["spec"]["image"] = json!("zagros:2")).unwrap_err();
    assert!(refused.contains("image is fixed while the run is not suspended"), "{refused}");
    world.edit(|job| job["spec"]["runPolicy"]["suspend"] = json!(true)).unwrap();
    world.until("suspended", |world| world.phase() == "Suspended" && world.pods().is_empty()).await;
    world.advance(600).await;
    assert!(world.pods().is_empty() && world.names("batch", "jobs").is_empty());
    assert_eq!(world.condition("Suspended")["status"], "True");
    world.edit(|job| job["spec"]["image"] = json!("zagros:2")).unwrap();
    world.edit(|job| job["spec"]["runPolicy"]["suspend"] = json!(false)).unwrap();
    world.until_running().await;
    assert_eq!((world.status("/attempt"), world.status("/restarts")), (json!(2), json!(0)));
    assert_eq!(world.events(), ["Started", "Running", "Suspended", "Resumed", "Running"]);
    let server = world.api.store().get(&key("apps", "statefulsets", "ctr-2-server")).unwrap();
    assert_eq!(server["spec"]["template"]["spec"]["containers"][0]["image"], "zagros:2");
}

/// Every attempt has the same output folder, so the next one finds checkpoints.
#[tokio::test(start_paused = true)]
async fn the_job_file_of_an_attempt_never_changes_and_the_next_one_continues_from_the_last_checkpoint() {
    let (world, _operator) = ClusterWorld::with_operator().await;
    let config = |seed: i64| {
        let text = format!("[data]\nformat = \"criteo\"\ntrain = \"/data/train.txt\"\n[train]\nseed = {seed}\n");
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}, "data": {"job.toml": text}})
    };
    world.write(&key("", "configmaps", "mine"), config(1));
    world.create(|job| job["spec"]["job"] = json!({"configMap": {"name": "mine"}}));
    world.until_running().await;
    world.write(&key("", "configmaps", "mine"), config(2));
    world.advance(120).await;
    assert_eq!((world.phase().as_str(), world.status("/attempt")), ("Running", json!(1)));
    let pod = world.pods().iter().find(|pod| pod.contains("-coord-")).unwrap().clone();
    world.ends(&pod, 4);
    world.until("second attempt", |world| world.status("/attempt") == 2 && world.phase() == "Running").await;
    let text = world.api.store().get(&key("", "configmaps", "ctr-2-job")).unwrap()["data"]["job.toml"].to_string();
    assert!(text.contains("seed = 2") && text.contains("folder = \\\"/output/ctr\\\""), "{text}");
    assert_eq!(world.status("/output"), "/output/ctr");
}
