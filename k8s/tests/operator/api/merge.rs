//! Patches and label selectors.

use serde_json::{Map, Value};

/// Applies `patch` to `target`: maps are merged, everything else is replaced, null removes.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (key, value) in fields {
        if value.is_null() {
            target.as_object_mut().unwrap().shift_remove(key);
        } else {
            merge(&mut target[key.as_str()], value);
        }
    }
}

/// Removes the fields that a manager applied before and applies no more.
pub(crate) fn prune(target: &mut Value, before: &Value, now: &Value) {
    let (Some(fields), Some(before)) = (target.as_object_mut(), before.as_object()) else { return };
    for (key, old) in before {
        match now.get(key) {
            None => {
                fields.shift_remove(key);
            }
            Some(new) => {
                if let Some(field) = fields.get_mut(key) {
                    prune(field, old, new);
                }
            }
        }
    }
}

/// Applies a JSON patch. As in Kubernetes, a test for null holds if there is no value.
pub(crate) fn json_patch(target: &mut Value, patch: &Value) -> Result<(), String> {
    let operations: Vec<Value> = patch.as_array().cloned().unwrap_or_default();
    let holds = |operation: &Value| {
        let path = operation["path"].as_str().unwrap_or_default();
        operation["op"] == "test" && operation["value"].is_null() && target.pointer(path).is_none()
    };
    let rest: Vec<Value> = operations.into_iter().filter(|operation| !holds(operation)).collect();
    let patch: json_patch::Patch = serde_json::from_value(Value::Array(rest)).map_err(|error| error.to_string())?;
    json_patch::patch(target, &patch).map_err(|error| error.to_string())
}

#[test]
fn fields_that_are_no_longer_applied_go_and_those_of_others_stay() {
    let mut object = serde_json::json!({"a": {"mine": 1, "theirs": 2}, "list": [1, 2]});
    let (before, now) = (serde_json::json!({"a": {"mine": 1}}), serde_json::json!({"a": {"new": 3}, "list": [9]}));
    prune(&mut object, &before, &now);
    merge(&mut object, &now);
    assert_eq!(object, serde_json::json!({"a": {"theirs": 2, "new": 3}, "list": [9]}));
}

/// Whether an object has the labels: `a=b`, `a!=b`, `a`, joined by commas.
pub(crate) fn matches_selector(selector: &str, object: &Value) -> bool {
    let labels = &object["metadata"]["labels"];
    selector.split(',').filter(|term| !term.is_empty()).all(|term| {
        if let Some((key, value)) = term.split_once("!=") {
            labels[key] != value
        } else if let Some((key, value)) = term.split_once('=') {
            labels[key] == value
        } else {
            labels[term].is_string()
        }
    })
}

#[test]
fn selectors_have_the_meaning_that_kubernetes_gives_them() {
    let object = serde_json::json!({"metadata": {"labels": {"a": "1", "b/c": "2"}}});
    for (selector, expected) in [
        ("", true),
        ("a=1", true),
        ("a=1,b/c=2", true),
        ("a!=1", false),
        ("z!=1", true),
        ("a,a!=3", true),
        ("z", false),
    ] {
        assert_eq!(matches_selector(selector, &object), expected, "{selector}");
    }
}
