//! Facts about objects, by value.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;

/// The objects of attempt 1 with one pod.
fn objects(role: &str, status: &Value) -> JobObjects {
    let labels = json!({"zagros.dev/job": "ctr", "zagros.dev/attempt": "1", "zagros.dev/role": role});
    let metadata = json!({"name": format!("ctr-1-{role}-0"), "labels": labels});
    let object = json!({"metadata": metadata, "spec": {"containers": []}, "status": status});
    JobObjects { pods: vec![Arc::new(serde_json::from_value(object).unwrap())], ..JobObjects::default() }
}

fn pod_of(role: &str, status: &Value) -> PodState {
    ObservedObjects::new(1, &objects(role, status)).pods.remove(0)
}

fn pod(status: Value) -> PodState {
    pod_of("worker", &status)
}

fn container(state: Value, last: Value) -> Value {
    let (image, none) = ("zagros:1", "");
    json!({"containerStatuses": [{
        "name": "worker", "image": image, "imageID": none, "ready": false, "restartCount": 0,
        "state": state, "lastState": last,
    }]})
}

#[test]
fn an_end_is_a_code_and_the_last_line_of_the_log() {
    let ended = json!({"terminated": {
        "exitCode": 3, "reason": "Error", "message": "a\n  no such file /data/train.txt\n\n", "finishedAt": "2026-01-01T00:00:00Z",
    }});
    let exit = pod(container(ended, json!({}))).exit.unwrap();
    assert_eq!((exit.code, exit.message.as_str()), (3, "no such file /data/train.txt"));
    assert_eq!(exit.at, Some("2026-01-01T00:00:00Z".parse().unwrap()));
    let good = json!({"terminated": {"exitCode": 0}});
    assert_eq!(pod(container(good, json!({}))).exit, None);
    let killed = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
    let restarted = pod(container(json!({"running": {}}), killed));
    assert_eq!(restarted.exit.unwrap().reason, "OOMKilled");
}

/// The end of a log as a role writes it, and as the runtime cuts it.
#[test]
fn of_a_log_the_newest_error_counts_and_not_what_was_done_before() {
    let said = |log: &str| {
        let ended = json!({"terminated": {"exitCode": 137, "reason": "Error", "message": log}});
        pod(container(ended, json!({}))).exit.unwrap().message
    };
    let info = r#"{"timestamp":"t","level":"INFO","message":"waiting for the servers","target":"x"}"#;
    let error = r#"{"timestamp":"t","level":"ERROR","message":"cannot read train.txt: no such file","exit_code":3}"#;
    let older = r#"{"timestamp":"t","level":"ERROR","message":"older"}"#;
    assert_eq!(said(&format!("{older}\n{info}\n{error}\n{info}\n")), "cannot read train.txt: no such file");
    assert_eq!(said(&format!("{info}\n{info}\n")), "", "it was killed, and had no error");
    assert_eq!(said(&format!("{}\n{info}\n", &error[30..])), "", "the first line is the rest of one");
    assert_eq!(said(&format!("{info}\nthread 'main' panicked at a.rs:1\n")), "thread 'main' panicked at a.rs:1");
    assert_eq!(said(&format!("[W: a warning of torch]\n{info}\n")), "", "it went on after that");
}

/// A container was killed at 10 s, started again at 12 s and ready at 15 s. Minutes later its pod is no longer ready.
#[test]
fn an_end_before_the_pod_was_ready_again_is_of_no_consequence() {
    let time = |seconds: i64| Timestamp::from_second(seconds).unwrap().to_string();
    let seen = |is_ready: &str, turned: i64, role: &str, code: i32| {
        let killed = json!({"terminated": {"exitCode": code, "reason": "Error", "finishedAt": time(10)}});
        let mut status = container(json!({"running": {"startedAt": time(12)}}), killed);
        status["containerStatuses"][0]["name"] = json!(role);
        status["conditions"] = json!([{"type": "Ready", "status": is_ready, "lastTransitionTime": time(turned)}]);
        pod_of(role, &status).exit.map(|exit| exit.code)
    };
    assert_eq!(seen("False", 10, "server", 137), Some(137), "it is not ready yet");
    assert_eq!(seen("True", 15, "server", 137), None);
    assert_eq!(seen("False", 432, "server", 137), None, "not ready for another reason");
    assert_eq!(seen("False", 15, "coordinator", 4), Some(4), "the verdict of the run stays");
    assert_eq!(seen("True", 15, "coordinator", 137), None);
}

#[test]
fn the_reason_why_a_pod_does_not_start_is_in_the_kubelets_words() {
    let waiting =
        |reason: &str| container(json!({"waiting": {"reason": reason, "message": "no such image"}}), json!({}));
    let trouble = pod(waiting("ImagePullBackOff")).trouble.unwrap();
    assert_eq!((trouble.reason.as_str(), trouble.message.as_str()), ("ImagePullBackOff", "no such image"));
    assert_eq!(pod(waiting("ContainerCreating")).trouble, None);
    // A fake kubelet may still report the pod as ready.
    let mut misnamed = waiting("InvalidImageName");
    misnamed["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    let misnamed = pod(misnamed);
    assert_eq!((misnamed.is_ready, misnamed.trouble.unwrap().reason.as_str()), (false, "InvalidImageName"));
    let unscheduled = json!({"conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "persistentvolumeclaim \"criteo\" not found",
    }]});
    assert!(pod(unscheduled).trouble.unwrap().message.contains("criteo"));
}

#[test]
fn a_sidecar_that_does_not_start_is_named() {
    let mut waiting = container(json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}}), json!({}));
    waiting["containerStatuses"][0]["name"] = json!("shipper");
    let of_worker = container(json!({"waiting": {"reason": "PodInitializing"}}), json!({}));
    let status = json!({
        "initContainerStatuses": waiting["containerStatuses"], "containerStatuses": of_worker["containerStatuses"],
    });
    let trouble = pod(status).trouble.unwrap();
    assert_eq!(trouble.reason.as_str(), "ErrImagePull");
    assert_eq!(trouble.message.as_str(), "container shipper: no such image");
}

fn job(attempt: &str, role: &str, conditions: &Value) -> Arc<Job> {
    let metadata = json!({"name": format!("ctr-{attempt}-{role}"), "labels": {"zagros.dev/attempt": attempt}});
    let done = if attempt == "2" { "0,2-4" } else { "1-3" };
    let status = json!({"ready": 1, "succeeded": 1, "completedIndexes": done, "conditions": conditions});
    Arc::new(serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap())
}

fn set(attempt: &str, role: &str) -> Arc<StatefulSet> {
    let metadata = json!({"name": format!("ctr-{attempt}-{role}"), "labels": {"zagros.dev/attempt": attempt}});
    Arc::new(serde_json::from_value(json!({ "metadata": metadata })).unwrap())
}

/// The coordinator's container is started again whenever it ends. Only 0 and 4 say how the run ended.
#[test]
fn the_coordinator_says_how_the_run_ended_by_its_exit_code() {
    let end = |state: Value, last: Value, is_ready: bool| {
        let mut status = container(state, last);
        status["containerStatuses"][0]["name"] = json!("coordinator");
        status["conditions"] = json!([{"type": "Ready", "status": if is_ready { "True" } else { "False" }}]);
        let sets = vec![set("1", "coord")];
        let observed = ObservedObjects::new(1, &JobObjects { sets, ..objects("coordinator", &status) });
        let coordinator = observed.coordinator.clone().unwrap();
        let end = match coordinator.end {
            None => "runs",
            Some(JobEnd::Complete { .. }) => "complete",
            Some(JobEnd::Failed { .. }) => "failed",
        };
        (end, observed.ready_count(PodRole::Coordinator), observed.pods[0].has_recovered())
    };
    let ended = |code: i32| json!({"terminated": {"exitCode": code}});
    let (runs, waits) = (json!({"running": {}}), json!({"waiting": {"reason": "CrashLoopBackOff"}}));
    assert_eq!(end(runs.clone(), json!({}), true), ("runs", 1, true));
    for code in [1, 7, 130, 134, 135, 137, 139, 143] {
        assert_eq!(end(ended(code), json!({}), false), ("runs", 0, false), "{code}");
        assert_eq!(end(runs.clone(), ended(code), true), ("runs", 1, true), "{code}");
    }
    // Started again after the end of the run, it may be ready for a moment.
    for (state, last, is_ready) in
        [(ended(0), json!({}), false), (waits.clone(), ended(0), false), (runs.clone(), ended(0), true)]
    {
        assert_eq!(end(state, last, is_ready), ("complete", 1, false));
    }
    for (state, last, is_ready) in [(ended(4), json!({}), false), (waits, ended(4), false), (runs, ended(4), true)] {
        assert_eq!(end(state, last, is_ready), ("failed", 0, false));
    }
}

fn seen(attempt: i32, jobs: &[Arc<Job>]) -> ObservedObjects {
    ObservedObjects::new(attempt, &JobObjects { jobs: jobs.to_vec(), ..JobObjects::default() })
}

#[test]
fn jobs_and_sets_are_those_of_the_attempt() {
    let failed = json!([{
        "type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "too often",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]);
    let none = json!([]);
    let jobs = [job("1", "worker", &none), job("2", "worker", &failed)];
    let sets = ["coord", "server"].map(|role| set("2", role));
    let objects = JobObjects { jobs: jobs.to_vec(), sets: sets.to_vec(), ..JobObjects::default() };
    let both = ObservedObjects::new(2, &objects);
    let owned: Vec<_> = both.owned.iter().map(|one| (one.kind, one.attempt, one.is_active)).collect();
    let workers = OwnedKind::Workers;
    let (coordinator, servers) = (OwnedKind::Coordinator, OwnedKind::Servers);
    let of_two = [(coordinator, Some(2), true), (servers, Some(2), true)];
    assert_eq!(owned[..2], [(workers, Some(1), true), (workers, Some(2), false)]);
    assert_eq!((&owned[2..], both.servers.is_some()), (&of_two[..], true));
    assert_eq!(both.ready_count(PodRole::Worker), 1, "those that ended well; no pod is ready");
    assert!(both.workers.as_ref().unwrap().first_is_done);
    assert!(!seen(1, &jobs).workers.unwrap().first_is_done);
    assert_eq!(both.coordinator.as_ref().and_then(|job| job.end.clone()), None);
    let Some(JobEnd::Failed { message, .. }) = both.workers.and_then(|job| job.end) else { panic!("failed") };
    assert_eq!(message, "BackoffLimitExceeded: too often");
    assert_eq!(seen(2, &[]), ObservedObjects::default());
    // If a pod is on a node that does not report, Kubernetes never adds the last condition.
    let mut target = failed;
    target[0]["type"] = json!("FailureTarget");
    let workers = seen(2, &[job("2", "worker", &target)]).workers.unwrap();
    assert!(matches!(workers.end, Some(JobEnd::Failed { .. })) && workers.is_ending);
}
