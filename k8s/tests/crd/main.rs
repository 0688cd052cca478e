//! The definition: the file is what the types say, its defaults hold, and its rules refuse what they should.

use std::path::Path;

use kube_cel::Validator;
use serde_json::{Value, json};
use zagros_operator::crd::{HybridJob, definition, definition_yaml};

fn schema() -> Value {
    let definition = serde_json::to_value(definition()).unwrap();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
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

/// What the rules say to a new object, or to a change of an old one.
fn refusals(object: &Value, old: Option<&Value>) -> Vec<String> {
    let found = Validator::new().validate(&schema(), object, old);
    found.err().map(|errors| errors.iter().map(|error| error.message.clone()).collect()).unwrap_or_default()
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
    assert!(committed == generated, "run UPDATE_DOCS=1 cargo test --release -p zagros-operator --test crd");
}

/// A larger one could not be applied by a client that keeps it in an annotation.
#[test]
fn the_definition_fits_an_annotation() {
    assert!(serde_json::to_string(&definition()).unwrap().len() < 262_144);
}

#[test]
fn a_plain_job_is_accepted() {
    assert_eq!(refusals(&job(), None), Vec::<String>::new());
    assert_eq!(refusals(&job(), Some(&job())), Vec::<String>::new());
}

/// The API server fills in defaults from the schema; the types would fill in the same.
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
fn what_cannot_be_is_refused_with_the_reason() {
    let volume = |path: &str| json!({"mountPath": path, "source": {"claimName": "c"}});
    for (pointer, value, reason) in [
        ("/spec/job", json!({}), "exactly one of job.inline and job.configMap"),
        ("/spec/job", json!({"inline": "x", "configMap": {"name": "y"}}), "exactly one of job.inline"),
        ("/spec/elasticity", json!({"minWorkers": 4, "maxWorkers": 3}), "minWorkers is above maxWorkers"),
        ("/spec/elasticity", json!({"minWorkers": 3, "maxWorkers": 4}), "must lie within"),
        ("/spec/volumes", json!([volume("data")]), "absolute path"),
        ("/spec/volumes", json!([volume("/a/../b")]), "absolute path"),
        ("/spec/volumes", json!([volume("/a"), volume("/a")]), "two volumes"),
        ("/spec/volumes", json!([{"mountPath": "/a", "source": {}}]), "exactly one of claimName"),
        ("/metadata/name", json!("9-lives"), "starting with a letter"),
        ("/metadata/name", json!("a".repeat(41)), "at most 40"),
    ] {
        let found = refusals(&changed(pointer, value.clone()), None);
        assert!(found.iter().any(|message| message.contains(reason)), "{pointer} = {value}: {found:?}");
    }
}

#[test]
fn what_a_run_is_made_from_changes_only_while_it_is_suspended() {
    let changes = [
        ("/spec/job", json!({"inline": "[data] # other\n"}), "job is fixed"),
        ("/spec/image", json!("zagros:2"), "image is fixed"),
        ("/spec/embeddingServers", json!({"replicas": 4}), "embeddingServers is fixed"),
        ("/spec/denseWorkers/pod", json!({"priorityClassName": "high"}), "denseWorkers.pod is fixed"),
        ("/spec/denseWorkers/replicas", json!(3), "only with elasticity"),
    ];
    let suspended = changed("/spec/runPolicy", json!({"suspend": true}));
    for (pointer, value, reason) in changes {
        let after = changed(pointer, value);
        let found = refusals(&after, Some(&job()));
        assert!(found.len() == 1 && found[0].contains(reason), "{pointer}: {found:?}");
        assert_eq!(refusals(&after, Some(&suspended)), Vec::<String>::new(), "{pointer}");
    }
}

#[test]
fn an_elastic_run_is_scaled_within_its_bounds() {
    let of = |replicas: i32| {
        let mut object = changed("/spec/elasticity", json!({"minWorkers": 1, "maxWorkers": 4}));
        set(&mut object, "/spec/denseWorkers/replicas", json!(replicas));
        object
    };
    assert_eq!(refusals(&of(4), Some(&of(2))), Vec::<String>::new());
    assert_eq!(refusals(&of(5), Some(&of(2))).len(), 1);
}

#[test]
fn policies_may_change_at_any_time() {
    let after = changed("/spec/runPolicy", json!({"suspend": true, "ttlSecondsAfterFinished": 60, "backoffLimit": 9}));
    assert_eq!(refusals(&after, Some(&job())), Vec::<String>::new());
}

#[test]
fn the_definition_has_columns_status_and_scale() {
    let definition = serde_json::to_value(definition()).unwrap();
    let version = &definition["spec"]["versions"][0];
    let columns: Vec<&str> = version["additionalPrinterColumns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
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

/// `kubectl explain` answers for every field.
#[test]
fn every_field_of_ours_is_described() {
    let mut places = vec![(String::new(), schema())];
    let mut seen = 0;
    while let Some((path, place)) = places.pop() {
        for (name, property) in place["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            let foreign = ["affinity", "resources", "tolerations", "env"].contains(&name.as_str());
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
