//! Checks of HybridJobs, by value.

use serde_json::{Value, json};

use super::*;
use crate::fixture::{JOB_TEXT, attempt, hybrid_job, merge};

fn of_spec(text: &str) -> JobText {
    JobText::OfSpec(text.to_owned())
}

fn problems(change: impl FnOnce(&mut HybridJob)) -> Vec<String> {
    let mut object = hybrid_job();
    change(&mut object);
    let text = object.spec.job.inline.clone().unwrap_or_default();
    let found = validate_job(&object, &JobText::OfSpec(text), &attempt(1)).map(|_| ()).err().unwrap_or_default();
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn the_rendered_file_is_the_users_with_the_clusters_addresses() {
    let valid = validate_job(&hybrid_job(), &of_spec(JOB_TEXT), &attempt(2)).unwrap();
    let cluster = &valid.job.cluster;
    assert_eq!((cluster.servers, cluster.workers), (3, 2));
    assert_eq!(cluster.coordinator, "ctr-2-coordinator.ads.svc:7700");
    assert_eq!(cluster.server_addresses, ["0.0.0.0:7701"]);
    assert_eq!(cluster.timeout.as_secs_f64(), TIMEOUT_SECONDS);
    assert_eq!(cluster.durability, zagros_job::DurabilityLevel::Process);
    assert!(valid.is_durable());
    assert_eq!(valid.job.output.folder, Path::new("/output/ctr"));
    assert_eq!(valid.job.name, "ctr");
    assert_eq!(valid.job.train.seed, 7);
    assert!(valid.rendered.contains("# What the user wrote stays."));
    let text = format!("{JOB_TEXT}[cluster]\ntimeout_seconds = 40.0\nservers = 9\n");
    let cluster = validate_job(&hybrid_job(), &of_spec(&text), &attempt(1)).unwrap().job.cluster;
    assert_eq!((cluster.timeout.as_secs(), cluster.servers), (40, 3));
}

/// A lone worker that others may join is replaced as one of several is: Kubernetes keeps the rules of a Job for good.
#[test]
fn a_hybrid_run_has_the_bounds_of_elasticity() {
    let own = format!("{JOB_TEXT}[cluster]\nmin_workers = 3\nmax_workers = 6\n");
    let sync = format!("{JOB_TEXT}mode = \"sync\"\n");
    for (text, workers, is_elastic, bounds, rejoins) in [
        (JOB_TEXT, 4, true, (Some(1), Some(8)), [true, true]),
        (JOB_TEXT, 1, true, (Some(1), Some(8)), [true, true]),
        (JOB_TEXT, 1, false, (None, None), [false, false]),
        (own.as_str(), 4, true, (Some(3), Some(6)), [true, true]),
        (sync.as_str(), 1, true, (None, None), [false, false]),
    ] {
        let mut object = hybrid_job();
        object.spec.dense_workers.replicas = workers;
        object.spec.elasticity = is_elastic.then_some(crate::crd::ElasticitySpec { min_workers: 1, max_workers: 8 });
        let valid = validate_job(&object, &of_spec(text), &attempt(1)).unwrap();
        let row = format!("{text} with {workers} workers, elastic: {is_elastic}");
        assert_eq!((valid.job.cluster.min_workers, valid.job.cluster.max_workers), bounds, "{row}");
        assert_eq!([valid.workers_rejoin(), valid.with_numbers(3, 8).workers_rejoin()], rejoins, "{row}");
    }
}

#[test]
fn keys_in_epochs_need_the_steps_of_one() {
    let find_problems = |more: &str| {
        let text = format!("{JOB_TEXT}evaluate_every = {{ epochs = 0.5 }}\n{more}");
        problems(|object| object.spec.job.inline = Some(text))
    };
    let found = find_problems("");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("train.evaluate_every is in epochs: set train.epoch_steps"), "{found:?}");
    assert_eq!(find_problems("epoch_steps = 100\n"), [""; 0]);
}

/// A run is found by its name and its parent folder. Other settings may change since a checkpoint.
#[test]
fn an_attempt_finds_the_checkpoints_of_earlier_ones_and_may_continue_from_them() {
    let text = format!("{JOB_TEXT}[checkpoint]\nfolder = \"s3://models/ads\"\n");
    let validated = |number, workers| {
        let mut object = hybrid_job();
        object.spec.dense_workers.replicas = workers;
        validate_job(&object, &of_spec(&text), &attempt(number)).unwrap().job
    };
    let (first, second) = (validated(1, 2), validated(2, 4));
    // Roles do not compare addresses and folders, so the pods of one attempt agree.
    assert_eq!(first.fingerprint(), validated(2, 2).fingerprint());
    assert_eq!((&first.name, &first.output.folder), (&second.name, &second.output.folder));
    assert_eq!(first.checkpoint.folder, second.checkpoint.folder);
    let changed = second.changes_since(&first);
    assert!(!changed.is_empty() && !changed.iter().any(zagros_job::KeyChange::is_learning), "{changed:?}");
}

#[test]
fn a_wrong_job_file_is_reported_by_its_own_lines() {
    let found = problems(|object| object.spec.job.inline = Some(JOB_TEXT.replace("seed", "sede")));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("spec.job.inline: ") && found[0].contains("sede"), "{found:?}");
    assert!(found[0].contains("job.toml:8:1") && found[0].contains("seed"), "{found:?}");
    let found = problems(|object| object.spec.job.inline = Some("data = [".to_owned()));
    assert!(found[0].contains("job.toml:1:"), "{found:?}");
    let found = problems(|object| object.spec.job.inline = Some(format!("cluster = 3\n{JOB_TEXT}")));
    assert!(found[0].contains("cluster"), "{found:?}");
}

/// Paths in a job file start at its folder, so `../data` is mounted at `/data`.
#[test]
fn a_path_with_dots_is_found_where_it_leads() {
    let problems_of_path =
        |path: &str| problems(|object| object.spec.job.inline = Some(JOB_TEXT.replace("/data/train.txt", path)));
    for path in ["../data/train.txt", "/data/../data/./train.txt", "../data/a/../train.txt", "../output/x"] {
        assert_eq!(problems_of_path(path), Vec::<String>::new(), "{path}");
    }
    for (path, plain) in [("train.txt", "/zagros/train.txt"), ("/data/../etc/passwd", "/etc/passwd"), ("../x", "/x")] {
        let found = problems_of_path(path);
        assert!(found.len() == 1 && found[0].contains(&format!("the job file reads {plain}")), "{path}: {found:?}");
    }
}

/// Refused now, and not by a pod that has trained up to its first checkpoint.
#[test]
fn a_folder_that_pods_cannot_write_is_named() {
    let problems_of_keys = |keys: &str| problems(|object| object.spec.job.inline = Some(format!("{JOB_TEXT}{keys}")));
    for (keys, key) in [
        ("[checkpoint]\nfolder = \"checkpoints\"\n", "checkpoint.folder is \"checkpoints\""),
        ("[checkpoint]\nfolder = \"/data/checkpoints\"\n", "checkpoint.folder"),
        ("[output]\nmodel_folder = \"/output/../models\"\n", "output.model_folder"),
        ("[cluster]\ncold_folder = \"/var/lib/rows\"\n", "cluster.cold_folder"),
        ("[cluster]\nlog_folder = \"/var/lib/rows\"\n", "cluster.log_folder"),
        // What goes with the pod is no place for rows that must outlive it.
        ("[cluster]\ncold_folder = \"/tmp/rows\"\n", "cluster.cold_folder"),
        ("[cluster]\nlog_folder = \"/tmp/rows\"\n", "cluster.log_folder"),
        ("[cluster]\nlog_folder = \"/output/rows\"\n", "cluster.log_folder"),
    ] {
        let found = problems_of_keys(keys);
        assert!(found.len() == 1 && found[0].starts_with(&format!("spec.job.inline: {key}")), "{keys}: {found:?}");
    }
    for keys in [
        "[checkpoint]\nfolder = \"s3://models/ads\"\n",
        "[checkpoint]\nfolder = \"/output/checkpoints\"\n",
        "[cluster]\ndurability = \"checkpoint\"\ncold_folder = \"/tmp/rows\"\n",
    ] {
        assert_eq!(problems_of_keys(keys), Vec::<String>::new(), "{keys}");
    }
    let shared = problems(|object| {
        object.spec.volumes[0].read_only = false;
        object.spec.job.inline = Some(format!("{JOB_TEXT}[checkpoint]\nfolder = \"/data/checkpoints\"\n"));
    });
    assert_eq!(shared, Vec::<String>::new());
}

#[test]
fn everything_is_reported_at_once() {
    let found = problems(|object| {
        object.spec.volumes.push(object.spec.volumes[0].clone());
        object.spec.job.inline = Some("[data]".to_owned());
    });
    let fields: Vec<&str> = found.iter().filter_map(|text| text.split(": ").next()).collect();
    assert_eq!(fields, ["spec.volumes[1].mountPath", "spec.job.inline"]);
}

/// The roles use folders of their own. No spelling of a path may hide one.
#[test]
fn no_volume_hides_a_folder_of_the_roles() {
    for path in ["/output", "/tmp/", "/zagros", "/dev/shm", "/var/lib/zagros/", "/var/./lib/zagros", "/data"] {
        let found = problems(|object| {
            let volume = object.spec.volumes[0].clone();
            object.spec.volumes.push(crate::crd::MountedVolume { mount_path: path.to_owned(), ..volume });
        });
        assert!(found.iter().any(|one| one.contains(&format!("\"{path}\" is taken"))), "{path}: {found:?}");
    }
}

/// The job file of an attempt is immutable, and a run that was scaled has other numbers than it.
#[test]
fn the_file_of_an_attempt_keeps_its_numbers_whatever_the_spec_says() {
    let mut object = hybrid_job();
    let first = validate_job(&object, &of_spec(JOB_TEXT), &attempt(1)).unwrap();
    object.spec.embedding_servers.replicas = 5;
    object.spec.dense_workers.replicas = 1;
    object.spec.elasticity = Some(crate::crd::ElasticitySpec { min_workers: 1, max_workers: 8 });
    let running = validate_job(&object, &JobText::OfAttempt(first.rendered.clone()), &attempt(1)).unwrap();
    assert_eq!(running.rendered, first.rendered);
    assert_eq!((running.job.cluster.servers, running.job.cluster.workers), (3, 2));
    let next = validate_job(&object, &of_spec(JOB_TEXT), &attempt(2)).unwrap().job.cluster;
    assert_eq!((next.servers, next.workers), (5, 1));
}

fn fields(change: &Value) -> Vec<String> {
    let mut spec = serde_json::to_value(hybrid_job().spec).unwrap();
    merge(&mut spec, change);
    host_access(&serde_json::from_value(spec).unwrap()).into_iter().map(|problem| problem.field).collect()
}

#[test]
fn folders_of_nodes_and_privileged_containers_are_refused_by_their_field() {
    assert_eq!(fields(&json!({})), Vec::<String>::new());
    let volumes = json!([
        {"mountPath": "/data", "source": {"claimName": "criteo"}},
        {"mountPath": "/node", "source": {"hostPath": {"path": "/"}}},
    ]);
    assert_eq!(fields(&json!({ "volumes": volumes })), ["spec.volumes[1].source.hostPath"]);
    let adds = |name: &str| json!({"containerSecurityContext": {"capabilities": {"add": [name]}}});
    let sidecar = json!({"name": "s", "image": "i", "securityContext": {"privileged": true}});
    for (role, pod, field) in [
        ("coordinator", json!({"containerSecurityContext": {"privileged": true}}), "containerSecurityContext"),
        ("embeddingServers", adds("SYS_ADMIN"), "containerSecurityContext"),
        ("embeddingServers", adds("ALL"), "containerSecurityContext"),
        ("denseWorkers", json!({ "sidecars": [sidecar] }), "sidecars[0].securityContext"),
    ] {
        assert_eq!(fields(&json!({role: {"pod": pod}})), [format!("spec.{role}.pod.{field}")]);
    }
    // The capability that RDMA needs gives a container no access to the node.
    assert_eq!(fields(&json!({"denseWorkers": {"pod": adds("IPC_LOCK")}})), Vec::<String>::new());
}

#[test]
fn an_allowed_one_is_valid_and_a_refused_one_has_its_other_problems_too() {
    let mut spec = hybrid_job().spec;
    spec.volumes[0].source = serde_json::from_value(json!({"hostPath": {"path": "/mnt"}})).unwrap();
    assert_eq!(refuse_host_access(&spec, true, Ok(())), Ok(()));
    assert_eq!(refuse_host_access(&spec, false, Ok(())).unwrap_err().len(), 1);
    let other = Err::<(), _>(vec![problem("spec.image", "is missing")]);
    assert_eq!(refuse_host_access(&spec, false, other).unwrap_err().len(), 2);
}
