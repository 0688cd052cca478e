//! Objects, by value.

mod access;
mod volumes;

use std::collections::BTreeMap;

use zagros_zip::ZipEq;

use super::*;
use crate::fixture::{attempt, hybrid_job};
use crate::validate::{JobText, validate_job};

fn built(change: impl FnOnce(&mut HybridJob), stage: BuildStage) -> Vec<(String, Value)> {
    let mut owner = hybrid_job();
    change(&mut owner);
    let text = owner.spec.job.inline.clone().unwrap();
    let attempt = attempt(3);
    let job = validate_job(&owner, &JobText::OfSpec(text), &attempt).unwrap();
    let run = ObservedObjects::default();
    let plan = BuildPlan { owner: &owner, job: &job, attempt: &attempt, run: &run, alive: None };
    let objects = build(&plan, stage);
    objects.iter().map(|one| (one.title(), serde_json::to_value(&one.object).unwrap())).collect()
}

fn all(change: impl FnOnce(&mut HybridJob)) -> impl Fn(&str) -> Value {
    let objects: BTreeMap<String, Value> = built(change, BuildStage::Everything).into_iter().collect();
    move |title| objects.get(title).unwrap_or_else(|| panic!("no {title} among {:?}", objects.keys())).clone()
}

const VOLATILE: &str =
    "[data]\nformat = \"criteo\"\ntrain = \"/data/train.txt\"\n[cluster]\ndurability = \"checkpoint\"\n";

const POD_OWNERS: [&str; 3] = ["StatefulSet ctr-3-coord", "StatefulSet ctr-3-server", "Job ctr-3-worker"];

#[test]
fn a_run_is_made_of_these() {
    let titles: Vec<String> = built(|_| (), BuildStage::Everything).into_iter().map(|one| one.0).collect();
    let expected = [
        "ConfigMap ctr-3-job",
        "Service ctr-3-coordinator",
        "Service ctr-3-server",
        "Service ctr-3-worker",
        "NetworkPolicy ctr",
        "NetworkPolicy ctr.workers",
        "PodDisruptionBudget ctr",
        "StatefulSet ctr-3-coord",
        "StatefulSet ctr-3-server",
        "Job ctr-3-worker",
    ];
    assert_eq!(titles, expected);
    let early: Vec<String> = built(|_| (), BuildStage::Servers).into_iter().map(|one| one.0).collect();
    assert_eq!(early, expected[..9]);
}

#[test]
fn every_image_starts_by_its_entrypoint_and_a_role_may_have_its_own() {
    let own = |job: &mut HybridJob| job.spec.embedding_servers.pod.image = Some("zagros-server:1".to_owned());
    let object = all(own);
    let container = |title: &str| object(title)["spec"]["template"]["spec"]["containers"][0].clone();
    let [server, worker] = ["StatefulSet ctr-3-server", "Job ctr-3-worker"].map(container);
    assert_eq!((&server["image"], &server["command"]), (&json!("zagros-server:1"), &Value::Null));
    assert_eq!(server["args"][0], "embedding-server");
    assert_eq!((&worker["image"], &worker["command"]), (&json!("registry.example/zagros:1.0"), &Value::Null));
}

#[test]
fn every_object_is_owned_labelled_and_in_the_jobs_namespace() {
    for (title, object) in built(|_| (), BuildStage::Everything) {
        let metadata = &object["metadata"];
        assert_eq!(metadata["namespace"], "ads", "{title}");
        assert_eq!(metadata["labels"]["zagros.dev/job"], "ctr", "{title}");
        let owner = &metadata["ownerReferences"][0];
        assert_eq!((&owner["kind"], &owner["controller"]), (&json!("HybridJob"), &json!(true)), "{title}");
        assert_eq!(object["immutable"] == true, title == "ConfigMap ctr-3-job", "{title}");
        assert!(object["kind"].is_string() && object["apiVersion"].is_string() && object.get("status").is_none());
    }
}

#[test]
fn each_role_starts_with_its_command_line() {
    let object = all(|_| ());
    let container = |title: &str| object(title)["spec"]["template"]["spec"]["containers"][0].clone();
    let job = ["--config", "/zagros/job.toml"];
    let journal = ["--set", "cluster.coordinator=0.0.0.0:7700", "--journal", "/var/lib/zagros/journal", "--one-run"];
    let restart = ["--on-stop", "restart", "--log-json"];
    let coordinator = [&["coordinator"][..], &job, &journal, &restart].concat();
    assert_eq!(container(POD_OWNERS[0])["args"], json!(coordinator));
    let member = |role: &str, word: &str, port: u16, end: &[&str]| {
        let advertised = format!("ctr-3-{word}-$(POD_INDEX).ctr-3-{word}.ads.svc:{port}");
        let index = ["--index", "$(POD_INDEX)", "--advertise", &advertised];
        json!([&[role][..], &job, &index, end].concat())
    };
    assert_eq!(container(POD_OWNERS[1])["args"], member("embedding-server", "server", 7701, &restart));
    assert_eq!(container(POD_OWNERS[2])["args"], member("dense-worker", "worker", 7702, &restart));
    // A Job that fails with its first pod: a worker that leaves must not end it.
    let once = all(|job| job.spec.run_policy.backoff_limit = 0);
    let args = once(POD_OWNERS[2])["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    assert!(!args.contains("--on-stop"), "{args}");
    // Without a log, a server that ends takes its rows along: then the run is drained.
    let volatile = all(spec_of(json!({"job": {"inline": VOLATILE}})));
    for title in &POD_OWNERS[..2] {
        let args = volatile(title)["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
        assert!(!args.contains("--on-stop"), "{args}");
        assert_eq!(args.contains("--one-run"), *title == POD_OWNERS[0]);
    }
    for title in &POD_OWNERS[1..] {
        assert_eq!(container(title)["env"][0]["name"], "POD_INDEX");
    }
}

/// Services and host names make the addresses that pods advertise.
#[test]
fn names_that_are_advertised_resolve() {
    let object = all(|_| ());
    for (word, port) in [("coordinator", 7700), ("server", 7701), ("worker", 7702)] {
        let service = object(&format!("Service ctr-3-{word}"));
        assert_eq!(service["spec"]["clusterIP"], "None");
        assert_eq!(service["spec"]["publishNotReadyAddresses"], true);
        assert_eq!(service["spec"]["ports"][0]["port"], port);
    }
    let servers = object(POD_OWNERS[1]);
    assert_eq!(servers["spec"]["serviceName"], "ctr-3-server");
    for (title, word) in POD_OWNERS.iter().zip_eq(["coordinator", "server", "worker"]) {
        let template = &object(title)["spec"]["template"];
        assert_eq!(template["spec"]["subdomain"], format!("ctr-3-{word}"));
        let selector = &object(&format!("Service ctr-3-{word}"))["spec"]["selector"];
        for (key, value) in selector.as_object().unwrap() {
            assert_eq!(&template["metadata"]["labels"][key], value, "{title}");
        }
    }
}

#[test]
fn every_pod_is_restricted_probed_and_bounded() {
    let object = all(|_| ());
    for title in POD_OWNERS {
        let owner = object(title);
        let pod = &owner["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{title}");
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        assert_eq!(pod["automountServiceAccountToken"], false);
        let expected = json!({
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true,
            "capabilities": { "drop": ["ALL"] },
        });
        assert_eq!(container["securityContext"], expected, "{title}");
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            assert_eq!(container[probe]["httpGet"]["port"], "http", "{title}");
        }
        for (kind, resource) in [("requests", "cpu"), ("requests", "memory"), ("limits", "cpu"), ("limits", "memory")] {
            assert!(container["resources"][kind][resource].is_string(), "{title} {kind} {resource}");
        }
        // Every path that a role writes to has a volume, because the root is read-only.
        for path in ["/tmp", "/output", "/var/lib/zagros"] {
            let mounts = container["volumeMounts"].as_array().unwrap();
            let mount = mounts.iter().find(|mount| mount["mountPath"] == path).unwrap();
            let volumes = pod["volumes"].as_array().unwrap();
            let is_claimed = owner["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] == mount["name"];
            assert!(is_claimed || volumes.iter().any(|volume| volume["name"] == mount["name"]), "{title} {path}");
        }
    }
}

/// A worker's pod ends with its container, because a worker that has finished must not train again.
#[test]
fn coordinator_and_servers_are_started_again_in_their_pods_and_workers_are_not() {
    let object = all(|_| ());
    for (title, policy) in POD_OWNERS.iter().zip_eq(["Always", "Always", "Never"]) {
        assert_eq!(object(title)["spec"]["template"]["spec"]["restartPolicy"], policy, "{title}");
    }
    let workers = object(POD_OWNERS[2]);
    assert_eq!((&workers["spec"]["completionMode"], &workers["spec"]["parallelism"]), (&json!("Indexed"), &json!(2)));
    for title in &POD_OWNERS[..2] {
        assert_eq!(object(title)["spec"]["podManagementPolicy"], "Parallel");
    }
    assert_eq!(object(POD_OWNERS[0])["spec"]["replicas"], 1);
}

/// If the others wait for a lost worker (invariant RK-3), its Job replaces it; otherwise no worker is replaced.
#[test]
fn a_lost_worker_is_replaced_where_the_others_wait_for_it() {
    let spec = |change: fn(&mut HybridJob)| all(change)(POD_OWNERS[2])["spec"].clone();
    let hybrid = spec(|job| job.spec.run_policy.backoff_limit = 5);
    assert_eq!((&hybrid["backoffLimitPerIndex"], &hybrid["maxFailedIndexes"]), (&json!(5), &json!(0)));
    assert!(hybrid["backoffLimit"].is_null(), "it would bound all workers together: {hybrid}");
    let hopeless =
        json!({"containerName": "worker", "operator": "NotIn", "values": [1, 4, 7, 130, 134, 135, 137, 139, 143]});
    let evicted = json!([{"type": "DisruptionTarget", "status": "True"}]);
    let rules = json!([
        {"action": "FailJob", "onExitCodes": hopeless},
        {"action": "Ignore", "onPodConditions": evicted},
    ]);
    assert_eq!(hybrid["podFailurePolicy"]["rules"], rules);

    let elastic = spec(|job| {
        job.spec.elasticity = Some(crate::crd::ElasticitySpec { min_workers: 1, max_workers: 4 });
        job.spec.dense_workers.replicas = 4;
    });
    assert_eq!(elastic["maxFailedIndexes"], 3);

    fn mode(job: &mut HybridJob, mode: &str) {
        let text = job.spec.job.inline.as_mut().unwrap();
        *text = format!("{text}mode = \"{mode}\"\n");
    }
    let asynchronous = spec(|job| mode(job, "async"));
    assert_eq!(asynchronous["podFailurePolicy"], hybrid["podFailurePolicy"]);
    let changes: [fn(&mut HybridJob); 4] = [
        |job| mode(job, "sync"),
        |job| job.spec.dense_workers.replicas = 1,
        |job| job.spec.run_policy.backoff_limit = 0,
        |job| job.spec.run_policy.exit_codes.retryable.clear(),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let spec = all(change)(POD_OWNERS[2])["spec"].clone();
        assert_eq!(spec["backoffLimit"], 0, "{index}");
        assert!(spec["backoffLimitPerIndex"].is_null() && spec["podFailurePolicy"].is_null(), "{index}: {spec}");
    }
}

#[test]
fn servers_have_the_memory_that_the_job_gives_their_rows() {
    let memory = |change: fn(&mut HybridJob)| {
        let pod = all(change)(POD_OWNERS[1])["spec"]["template"]["spec"]["containers"][0].clone();
        (pod["resources"]["requests"]["memory"].clone(), pod["resources"]["limits"]["memory"].clone())
    };
    assert_eq!(memory(|_| ()), (json!("4Gi"), json!("4Gi")));
    let sized = memory(|job| job.spec.job.inline.as_mut().unwrap().push_str("[cluster]\nmemory = '8GiB'\n"));
    assert_eq!(sized, (json!("10752Mi"), json!("10752Mi")));
    let resources = |value: Value| serde_json::from_value(value).unwrap();
    let given =
        all(|job| job.spec.embedding_servers.pod.resources = resources(json!({"requests": {"memory": "64Gi"}})));
    let given = given(POD_OWNERS[1])["spec"]["template"]["spec"]["containers"][0]["resources"].clone();
    let expected = json!({"requests": {"memory": "64Gi", "cpu": "2"}, "limits": {"memory": "64Gi", "cpu": "2"}});
    assert_eq!(given, expected);
}

#[test]
fn gangs_count_every_pod_and_mark_each() {
    let gang = |scheduler: &str| {
        let gang = json!({"scheduler": scheduler, "queue": "ads", "scheduleTimeoutSeconds": 60});
        all(move |job| job.spec.scheduling.gang = serde_json::from_value(gang).unwrap())
    };
    let volcano = gang("Volcano");
    let group = volcano("PodGroup ctr-3");
    assert_eq!(group["apiVersion"], "scheduling.volcano.sh/v1beta1");
    let expected = json!({
        "minMember": 6, "minTaskMember": {"coordinator": 1, "server": 3, "worker": 2}, "queue": "ads",
    });
    assert_eq!(group["spec"], expected);
    let coscheduling = gang("Coscheduling");
    assert_eq!(coscheduling("PodGroup ctr-3")["spec"], json!({"minMember": 6, "scheduleTimeoutSeconds": 60}));
    for title in POD_OWNERS {
        let template = &volcano(title)["spec"]["template"];
        assert_eq!(template["metadata"]["annotations"]["scheduling.k8s.io/group-name"], "ctr-3");
        assert_eq!(template["spec"]["schedulerName"], "volcano");
        let template = &coscheduling(title)["spec"]["template"];
        assert_eq!(template["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"], "ctr-3");
        assert!(template["spec"].get("schedulerName").is_none());
    }
}

fn spec_of(value: Value) -> impl FnOnce(&mut HybridJob) {
    move |job| {
        let mut spec = serde_json::to_value(&job.spec).unwrap();
        crate::fixture::merge(&mut spec, &value);
        job.spec = serde_json::from_value(spec).unwrap();
    }
}

/// A role without a `pod` block has as much time as one with it.
#[test]
fn every_role_gets_the_time_that_its_end_takes() {
    let grace = |change: Value| {
        let object = all(spec_of(change));
        POD_OWNERS.map(|title| object(title)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"].clone())
    };
    // 300 s for an answer, 4 GiB twice at 20 MiB/s, and 60 s.
    assert_eq!(grace(json!({})), [60, 60, 770]);
    let text = format!("{}[cluster]\ntimeout_seconds = 1200.0\nmemory = '64GiB'\n", crate::fixture::JOB_TEXT);
    // 64 GiB in memory and as many beyond it, or what the disk has room for.
    let text = json!({"inline": text});
    assert_eq!(grace(json!({"job": text})), [60, 60, 14_368]);
    let disk = json!({"storage": {"size": "384Gi"}});
    assert_eq!(grace(json!({"job": text, "embeddingServers": disk})), [60, 60, 34_028]);
    let pod = json!({"resources": {"limits": {"memory": "1Gi"}}});
    assert_eq!(grace(json!({"embeddingServers": {"pod": pod}})), [60, 60, 463]);
    // Without a log they serve until the workers have saved.
    assert_eq!(grace(json!({"job": {"inline": VOLATILE}})), [830, 830, 770]);
    assert_eq!(grace(json!({"denseWorkers": {"pod": {"terminationGracePeriodSeconds": 5}}})), [60, 60, 5]);
    assert_eq!(grace(json!({"coordinator": {"pod": {"labels": {"a": "b"}}}})), [60, 60, 770]);
}

#[test]
fn users_and_groups_may_come_from_the_platform() {
    let security = |change: Value| {
        let object = all(spec_of(change));
        let pods = POD_OWNERS.map(|title| object(title)["spec"]["template"]["spec"].clone());
        assert!(pods.iter().all(|pod| pod["securityContext"] == pods[0]["securityContext"]));
        (pods[0]["securityContext"].clone(), pods[2]["containers"][0]["securityContext"].clone())
    };
    let fixed = json!({"runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532});
    let profile = json!({
        "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}, "fsGroupChangePolicy": "OnRootMismatch",
    });
    let both = |more: &Value| {
        let mut both = profile.clone();
        crate::fixture::merge(&mut both, more);
        both
    };
    assert_eq!(security(json!({})).0, both(&fixed));
    // What OpenShift's restricted-v2 admits: no value that it chooses itself.
    assert_eq!(security(json!({"podSecurityContext": {}})).0, profile);
    let given = json!({"runAsUser": 1000, "fsGroupChangePolicy": "Always", "supplementalGroups": [7]});
    assert_eq!(security(json!({"podSecurityContext": given})).0, both(&given));

    let restricted = json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true,
        "capabilities": {"drop": ["ALL"]},
    });
    let container = |given: Value| security(json!({"denseWorkers": {"pod": {"containerSecurityContext": given}}})).1;
    let mut rdma = restricted.clone();
    rdma["capabilities"]["add"] = json!(["IPC_LOCK"]);
    assert_eq!(container(json!({"capabilities": {"add": ["IPC_LOCK"]}})), rdma);
    assert_eq!(container(json!({"privileged": true}))["allowPrivilegeEscalation"], true);
    assert_eq!(container(json!({"readOnlyRootFilesystem": false}))["readOnlyRootFilesystem"], false);
    let root = security(json!({"podSecurityContext": {"runAsNonRoot": false, "runAsUser": 0}}));
    assert_eq!((&root.0["runAsNonRoot"], &root.1["runAsNonRoot"]), (&json!(false), &json!(false)));
}

#[test]
fn pods_have_the_placement_and_size_that_the_user_gives() {
    let constraint = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"});
    let mut own = constraint.clone();
    own["labelSelector"] = json!({"matchLabels": {"team": "ads"}});
    let object = all(spec_of(json!({"denseWorkers": {"pod": {
        "runtimeClassName": "nvidia", "sharedMemory": "8Gi", "topologySpreadConstraints": [constraint, own],
    }}})));
    let pod = object(POD_OWNERS[2])["spec"]["template"]["spec"].clone();
    assert_eq!(pod["runtimeClassName"], "nvidia");
    let labels = pod["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"].clone();
    assert_eq!(labels, object(POD_OWNERS[2])["spec"]["template"]["metadata"]["labels"]);
    assert_eq!(pod["topologySpreadConstraints"][1], own);
    let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
    let shared = mounts.iter().find(|mount| mount["mountPath"] == "/dev/shm").unwrap();
    let volumes = pod["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|volume| volume["name"] == shared["name"]).unwrap();
    assert_eq!(volume["emptyDir"], json!({"medium": "Memory", "sizeLimit": "8Gi"}));
    let server = object(POD_OWNERS[1])["spec"]["template"]["spec"].clone();
    for field in ["runtimeClassName", "topologySpreadConstraints"] {
        assert!(server[field].is_null(), "{field}");
    }
    assert!(server["volumes"].as_array().unwrap().iter().all(|volume| volume["name"] != shared["name"]));
}

/// A Job ends with its role's container. A sidecar is an init container that always restarts, and Kubernetes ends it.
#[test]
fn sidecars_run_beside_the_role_and_do_not_delay_its_end() {
    let sidecar = json!({
        "name": "shipper", "image": "shipper:1", "imagePullPolicy": "Never", "command": ["ship"], "args": ["--follow"],
        "env": [{"name": "TO", "value": "logs"}], "envFrom": [{"secretName": "keys"}],
        "resources": {"limits": {"memory": "64Mi"}},
    });
    let object = all(spec_of(json!({"denseWorkers": {"pod": {"sidecars": [sidecar]}}})));
    let pod = object(POD_OWNERS[2])["spec"]["template"]["spec"].clone();
    let made = &pod["initContainers"][0];
    assert_eq!((&made["name"], &made["restartPolicy"]), (&json!("shipper"), &json!("Always")));
    assert_eq!((&made["command"], &made["args"]), (&json!(["ship"]), &json!(["--follow"])));
    assert_eq!((&made["env"], &made["imagePullPolicy"]), (&sidecar["env"], &json!("Never")));
    assert_eq!(made["envFrom"], json!([{"secretRef": {"name": "keys"}}]));
    assert_eq!(made["resources"], sidecar["resources"]);
    assert_eq!(made["securityContext"], pod["containers"][0]["securityContext"]);
    // All but the key of the role.
    let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
    assert_eq!((&mounts[0]["name"], &made["volumeMounts"]), (&json!("run-secret"), &json!(mounts[1..])));
    assert_eq!(pod["containers"].as_array().unwrap().len(), 1);
    assert!(object(POD_OWNERS[0])["spec"]["template"]["spec"]["initContainers"].is_null());
}
