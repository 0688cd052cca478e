//! The definition: the file equals the types, its defaults are the types', and its rules refuse what they should.

mod admission;
mod cost;
mod structural;

use std::path::Path;
use std::sync::LazyLock;

use serde_json::{Value, json};
use zagros_operator::crd::{HybridJob, KUBERNETES_FIELDS, definition_yaml, resource_definition};

pub(crate) use admission::admission_refusals;

pub(crate) static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let definition = serde_json::to_value(resource_definition()).unwrap();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
});

fn schema() -> Value {
    SCHEMA.clone()
}

fn job() -> Value {
    json!({
        "apiVersion": "zagros.dev/v1alpha1",
        "kind": "HybridJob",
        "metadata": { "name": "ctr" },
        "spec": {
            "job": { "inline": "[data]\n" },
            "image": "zagros:1",
            "embeddingServers": { "replicas": 3 },
            "denseWorkers": { "replicas": 2 },
        },
    })
}

#[track_caller]
fn assert_admitted(object: &Value, old: Option<&Value>, what: &str) {
    assert_eq!(admission_refusals(object, old), Vec::<String>::new(), "{what}");
}

fn running() -> Value {
    let mut object = job();
    object["status"] = json!({"phase": "Running", "attempt": 1});
    object
}

fn changed(pointer: &str, value: Value) -> Value {
    let mut object = job();
    set(&mut object, pointer, value);
    object
}

fn set(object: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let mut place = &mut *object;
    for part in parent.split('/').skip(1) {
        place = &mut place[part];
    }
    place[key] = value;
}

#[test]
fn the_committed_definition_is_the_generated_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("crd/hybridjobs.yaml");
    let generated = definition_yaml().unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == generated, "run UPDATE_DOCS=1 cargo test --release -p zagros-operator --test operator");
    // A larger definition could not be applied by a client that keeps it in an annotation.
    assert!(serde_json::to_string(&resource_definition()).unwrap().len() < 262_144);
}

/// The API server takes defaults from the schema. The types have the same ones.
#[test]
fn schema_and_types_have_the_same_defaults() {
    let filled = kube_cel::apply_defaults(&schema(), &job());
    let by_types = serde_json::from_value::<HybridJob>(job()).unwrap();
    let by_schema = serde_json::from_value::<HybridJob>(filled.clone()).unwrap();
    assert_eq!(by_types, by_schema);
    assert_eq!(filled["spec"]["runPolicy"]["backoffLimit"], 3);
    assert_eq!(filled["spec"]["networkPolicy"], true);
}

#[test]
fn an_impossible_spec_is_refused_with_the_reason() {
    let volume = |path: &str| json!({"mountPath": path, "source": {"claimName": "c"}});
    for (pointer, value, reason) in [
        ("/spec/job", json!({}), "exactly one of job.inline and job.configMap"),
        ("/spec/job", json!({"inline": "x", "configMap": {"name": "y"}}), "exactly one of job.inline"),
        ("/spec/elasticity", json!({"minWorkers": 4, "maxWorkers": 3}), "minWorkers is above maxWorkers"),
        ("/spec/elasticity", json!({"minWorkers": 3, "maxWorkers": 4}), "must lie within"),
        ("/spec/volumes", json!([volume("data")]), "absolute path"),
        ("/spec/volumes", json!([volume("/a/../b")]), "absolute path"),
        ("/spec/volumes", json!([volume("/a:b")]), "without a colon"),
        ("/spec/volumes", json!([volume("/a"), volume("/a")]), "two volumes"),
        ("/spec/volumes", json!([{"mountPath": "/a", "source": {}}]), "exactly one of claimName"),
        ("/spec/volumes", json!([{"mountPath": "/a", "source": {"emptyDir": {}}}]), "set readOnly to false"),
        ("/metadata/name", json!("9-lives"), "starting with a letter"),
        ("/metadata/name", json!("a".repeat(41)), "at most 40"),
    ] {
        let found = admission_refusals(&changed(pointer, value.clone()), None);
        assert!(found.iter().any(|message| message.contains(reason)), "{pointer} = {value}: {found:?}");
    }
    for path in ["/a..b", "/a/..b", "/data/x"] {
        assert_admitted(&changed("/spec/volumes", json!([volume(path)])), None, path);
    }
}

/// A value that Kubernetes would refuse in a pod is refused when the HybridJob is written, with the name of its field.
#[test]
fn a_value_that_a_pod_cannot_have_is_refused_with_its_field() {
    let cases = [
        ("nodeSelector", json!({"disk": "very fast"}), "nodeSelector.disk: is \"very fast\""),
        ("nodeSelector", json!({"a b": "x"}), "nodeSelector: a key of nodeSelector is a name"),
        ("nodeSelector", json!({"example.com/": "x"}), "a key of nodeSelector is a name"),
        ("labels", json!({"team": "-x"}), "labels.team: is \"-x\""),
        ("labels", json!({"team": "x".repeat(64)}), "labels.team: has 64 characters"),
        ("labels", json!({"zagros.dev/job": "x"}), "labels: labels of zagros.dev/"),
        ("annotations", json!({"a b": "x"}), "annotations: a key of annotations is a name"),
        ("env", json!([{"name": "9LIVES"}]), "env[0].name: is \"9LIVES\""),
        ("env", json!([{"name": "A=B"}]), "env[0].name: is \"A=B\""),
        ("env", json!([{"name": "ZAGROS__TRAIN__SEED"}]), "env: ZAGROS__"),
        ("env", json!([{"name": "POD_INDEX"}]), "POD_INDEX is the operator's"),
        ("env", json!([{"name": "A"}, {"name": "A"}]), "env[1]: repeats the name of an earlier item"),
        ("resources", json!({"requests": {"memory": "8GB"}}), "resources.requests.memory: is \"8GB\""),
        ("resources", json!({"limits": {"cpu": "-1"}}), "resources.limits.cpu: is \"-1\""),
        ("resources", json!({"limits": {"gpu": "1"}}), "resources.limits: a resource is cpu"),
        ("resources", json!({"requests": {"cpu": "3"}, "limits": {"cpu": "2500m"}}), "a request is above its limit"),
        ("sharedMemory", json!("8 Gi"), "sharedMemory: is \"8 Gi\""),
        ("priorityClassName", json!("High"), "priorityClassName: is \"High\""),
        ("runtimeClassName", json!("g visor"), "runtimeClassName: is \"g visor\""),
        ("terminationGracePeriodSeconds", json!(0), "terminationGracePeriodSeconds: is 0, expected at least 1"),
        ("image", json!("zagros 1"), "pod.image: is \"zagros 1\""),
        ("sidecars", json!([{"name": "worker", "image": "x"}]), "sidecars[0].name: the name of a role's container"),
        ("sidecars", json!([{"name": "A", "image": "x"}]), "sidecars[0].name: is \"A\""),
        ("sidecars", json!([{"name": "a", "image": "x", "env": [{"name": "-=-"}]}]), "sidecars[0].env[0].name: is"),
    ];
    for (field, value, reason) in cases {
        for role in ["coordinator", "embeddingServers", "denseWorkers"] {
            let mut object = job();
            object["spec"][role]["pod"][field] = value.clone();
            let found = admission_refusals(&object, None);
            let place = format!("spec.{role}.pod");
            assert!(found.iter().any(|one| one.starts_with(&place) && one.contains(reason)), "{field}: {found:?}");
        }
    }
    for (pointer, value) in [
        ("/spec/serviceAccountName", json!("A b")),
        ("/spec/image", json!("zagros :1")),
        ("/spec/imagePullSecrets", json!(["Registry"])),
        ("/spec/output", json!({"claimName": "Models"})),
        ("/spec/output", json!({"claimName": "models", "subPath": "../x"})),
        ("/spec/volumes", json!([{"mountPath": "/a", "source": {"secretName": "a_b"}}])),
        ("/spec/volumes", json!([{"mountPath": "/a", "subPath": "/b", "source": {"secretName": "a"}}])),
        ("/spec/job", json!({"configMap": {"name": "Job"}})),
        ("/spec/scheduling", json!({"schedulerName": "My scheduler"})),
    ] {
        let found = admission_refusals(&changed(pointer, value), None);
        let place = pointer[1..].replace('/', ".");
        assert!(found.len() == 1 && found[0].starts_with(&place), "{pointer}: {found:?}");
    }
    let mut object = job();
    object["spec"]["embeddingServers"]["storage"] = json!({"size": "many"});
    assert!(admission_refusals(&object, None)[0].starts_with("spec.embeddingServers.storage.size: is \"many\""));
}

/// Numbers as amounts, and everything else that Kubernetes accepts, are accepted.
#[test]
fn a_value_that_a_pod_may_have_is_accepted() {
    let pod = json!({
        "nodeSelector": {"node.example/kind": "high-memory", "plain": ""},
        "labels": {"team": "ads"},
        "env": [{"name": "ZAGROS_LOG", "value": "debug"}, {"name": "a.b-c_d"}],
        "resources": {"requests": {"cpu": 2, "memory": "1.5Gi"}, "limits": {"cpu": "2000m", "nvidia.com/gpu": 1}},
        "sharedMemory": "8Gi",
        "runtimeClassName": "nvidia",
        "topologySpreadConstraints":
            [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        "containerSecurityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "sidecars": [{"name": "log-shipper", "image": "registry.example/shipper:1", "args": ["--follow"]}],
        "terminationGracePeriodSeconds": 1,
    });
    for role in ["coordinator", "embeddingServers", "denseWorkers"] {
        let mut object = job();
        object["spec"][role]["pod"] = pod.clone();
        object["spec"]["podSecurityContext"] = json!({});
        object["spec"]["volumes"] = json!([
            {"mountPath": "/scratch", "readOnly": false, "source": {"ephemeral": {"size": "100Gi"}}},
            {"mountPath": "/hot", "readOnly": false, "source": {"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}},
            {"mountPath": "/nodes", "source": {"hostPath": {"path": "/mnt/data"}}},
            {"mountPath": "/nfs", "source": {"nfs": {"server": "nas", "path": "/ads"}}},
            {"mountPath": "/bucket", "source": {"csi": {"driver": "s3.csi.example.com"}}},
        ]);
        assert_eq!(admission_refusals(&object, None), Vec::<String>::new(), "{role}");
    }
}

/// Each edit with the field that the refusal names.
#[test]
fn fields_that_pods_depend_on_change_only_while_nothing_runs() {
    for (pointer, value, field) in [
        ("/spec/job", json!({"inline": "[data] # other\n"}), "spec.job"),
        ("/spec/image", json!("zagros:2"), "spec.image"),
        ("/spec/imagePullPolicy", json!("Always"), "spec.imagePullPolicy"),
        ("/spec/imagePullSecrets", json!(["registry"]), "spec.imagePullSecrets"),
        ("/spec/coordinator", json!({"pod": {"env": [{"name": "A", "value": "b"}]}}), "spec.coordinator"),
        ("/spec/embeddingServers/storage", json!({"size": "9Gi"}), "spec.embeddingServers.storage"),
        ("/spec/embeddingServers/pod", json!({"priorityClassName": "high"}), "spec.embeddingServers.pod"),
        ("/spec/denseWorkers/pod", json!({"priorityClassName": "high"}), "spec.denseWorkers.pod"),
        ("/spec/denseWorkers/replicas", json!(3), "spec.denseWorkers.replicas"),
        ("/spec/volumes", json!([{"mountPath": "/a", "source": {"claimName": "c"}}]), "spec.volumes"),
        ("/spec/output", json!({"claimName": "models"}), "spec.output"),
        ("/spec/scheduling", json!({"schedulerName": "mine"}), "spec.scheduling"),
        ("/spec/serviceAccountName", json!("trainer"), "spec.serviceAccountName"),
        ("/spec/podSecurityContext", json!({}), "spec.podSecurityContext"),
        ("/spec/runPolicy", json!({"backoffLimit": 7}), "spec.runPolicy.backoffLimit"),
        ("/spec/runPolicy", json!({"exitCodes": {"retryable": [1]}}), "spec.runPolicy.exitCodes"),
        ("/spec/elasticity", json!({"minWorkers": 1, "maxWorkers": 4}), "spec.elasticity"),
    ] {
        let updated = changed(pointer, value);
        let found = admission_refusals(&updated, Some(&running()));
        let message = format!("{field}: {field} is fixed while the run is not suspended: ");
        assert!(found.len() == 1 && found[0].starts_with(&message), "{pointer}: {found:?}");
        // Removing a given value is an edit too.
        let mut earlier = updated.clone();
        earlier["status"] = running()["status"].clone();
        assert_eq!(admission_refusals(&job(), Some(&earlier)).len(), 1, "{pointer}");

        let mut suspended = running();
        suspended["spec"]["runPolicy"] = json!({"suspend": true});
        let mut invalid = running();
        invalid["status"]["phase"] = json!("Invalid");
        let mut reported = job();
        reported["status"] = json!({"attempt": 0, "message": "cannot list pods"});
        for earlier in [suspended, invalid, reported, job()] {
            assert_eq!(admission_refusals(&updated, Some(&earlier)), Vec::<String>::new(), "{pointer} after {earlier}");
        }
    }
}

/// Servers with a log come back with their rows, so their pods are restarted one by one.
#[test]
fn pods_of_servers_with_a_log_may_change_while_the_run_trains() {
    let updated = changed("/spec/embeddingServers/pod", json!({"image": "zagros-server:2"}));
    for (recovery, is_admitted) in [("Log", true), ("Checkpoint", false)] {
        let mut earlier = running();
        earlier["status"]["recovery"] = json!(recovery);
        assert_eq!(admission_refusals(&updated, Some(&earlier)).is_empty(), is_admitted, "{recovery}");
    }
}

#[test]
fn an_elastic_run_is_scaled_within_its_bounds() {
    let scaled = |replicas: i32, most: i32| {
        let mut object = running();
        object["spec"]["elasticity"] = json!({"minWorkers": 1, "maxWorkers": most});
        set(&mut object, "/spec/denseWorkers/replicas", json!(replicas));
        object
    };
    assert_eq!(admission_refusals(&scaled(4, 4), Some(&scaled(2, 4))), Vec::<String>::new());
    assert_admitted(&scaled(5, 8), Some(&scaled(2, 4)), "the upper bound is that of the rule alone");
    assert_eq!(admission_refusals(&scaled(5, 4), Some(&scaled(2, 4))).len(), 1);
}

#[test]
fn fields_that_need_no_new_pod_may_change_at_any_time() {
    for (pointer, value) in [
        ("/spec/runPolicy", json!({"suspend": true, "ttlSecondsAfterFinished": 60, "cleanPodPolicy": "All"})),
        ("/spec/runPolicy", json!({"activeDeadlineSeconds": 60})),
        ("/spec/networkPolicy", json!(false)),
        ("/spec/disruptionBudget", json!(false)),
        // Rows move between servers.
        ("/spec/embeddingServers/replicas", json!(4)),
        ("/spec/monitoring", json!({"podMonitor": true})),
        ("/metadata/labels", json!({"team": "ads"})),
    ] {
        assert_eq!(admission_refusals(&changed(pointer, value), Some(&running())), Vec::<String>::new(), "{pointer}");
    }
}

#[test]
fn the_definition_has_columns_status_and_scale() {
    let definition = serde_json::to_value(resource_definition()).unwrap();
    let version = &definition["spec"]["versions"][0];
    let columns = version["additionalPrinterColumns"].as_array().unwrap().iter();
    let columns: Vec<&str> = columns.map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(columns, ["Phase", "Servers", "Workers", "Step", "AUC", "Checkpoint", "Attempt", "Age", "Message"]);
    let scale = &version["subresources"]["scale"];
    for (key, path) in [("specReplicasPath", "/spec/denseWorkers/replicas"), ("statusReplicasPath", "/status/workers")]
    {
        assert_eq!(scale[key].as_str().unwrap().replace('.', "/"), path);
        let places = path.split('/').skip(1).map(|part| format!("/properties/{part}")).collect::<String>();
        assert_eq!(schema().pointer(&places).unwrap()["type"], "integer", "{places}");
    }
    assert!(version["subresources"]["status"].is_object());
}

/// `kubectl explain` describes every field.
#[test]
fn every_field_of_ours_is_described() {
    let mut places = vec![(String::new(), schema())];
    let mut seen = 0;
    while let Some((path, place)) = places.pop() {
        for (name, property) in place["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            let foreign = KUBERNETES_FIELDS.contains(&name.as_str());
            let root = [".metadata", ".apiVersion", ".kind", ".spec", ".status"].contains(&path.as_str());
            assert!(root || property["description"].is_string(), "{path}");
            seen += 1;
            if !foreign {
                places.push((path, property.clone()));
            }
        }
    }
    assert!(seen > 60, "{seen}");
}
