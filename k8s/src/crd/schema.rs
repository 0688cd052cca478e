//! The definition as it is installed, with Kubernetes' own rules for nested types: a pod with a wrong label or amount
//! would only be refused when the Job is made, long after the HybridJob was admitted.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};

use super::{HybridJob, rules};

/// Their descriptions are shortened to the first sentence: with the whole ones, the definition would be too large for
/// the annotation in which `kubectl apply` keeps it.
pub const KUBERNETES_FIELDS: [&str; 11] = [
    "affinity",
    "containerSecurityContext",
    "csi",
    "env",
    "hostPath",
    "nfs",
    "podSecurityContext",
    "resources",
    "securityContext",
    "tolerations",
    "topologySpreadConstraints",
];

pub fn resource_definition() -> CustomResourceDefinition {
    let made = HybridJob::crd();
    let Ok(mut definition) = serde_json::to_value(&made) else { return made };
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    if let Some(spec) = definition.pointer_mut(spec) {
        tighten(spec);
        shorten(spec);
    }
    serde_json::from_value(definition).unwrap_or(made)
}

/// As YAML, with a line that says where it comes from.
pub fn definition_yaml() -> Result<String, serde_saphyr::ser::Error> {
    let yaml = serde_saphyr::to_string(&resource_definition())?;
    Ok(format!(
        "# Generated from k8s/src/crd: `UPDATE_DOCS=1 cargo test --release -p zagros-operator --test operator`.\n{yaml}"
    ))
}

fn tighten(spec: &mut Value) {
    for role in ["coordinator", "embeddingServers", "denseWorkers"] {
        let Some(pod) = spec.pointer_mut(&format!("/{role}/properties/pod/properties")) else { continue };
        extend(pod, "/nodeSelector", labels());
        extend(pod, "/labels", labels());
        rule(
            pod,
            "labels",
            "self.all(key, !key.startsWith('zagros.dev/') && !key.startsWith('app.kubernetes.io/'))",
            "labels of zagros.dev/ and app.kubernetes.io/ are the operator's: rename it",
        );
        extend(pod, "/annotations", json!({ "maxProperties": 64 }));
        for field in ["nodeSelector", "labels", "annotations"] {
            let message = format!(
                "a key of {field} is a name of letters, digits, -, _ and ., after a prefix such as example.com/ or \
                 without"
            );
            rule(pod, field, &format!("self.all(key, key.matches(r'{}'))", rules::LABEL_KEY), &message);
        }
        extend(pod, "/sharedMemory", amount());
        containers(pod);
        rule(
            pod,
            "env",
            "self.all(one, !one.name.startsWith('ZAGROS__') && one.name != 'POD_INDEX')",
            "ZAGROS__… would change the job for this role alone (put it into the job file), and POD_INDEX is the operator's",
        );
        extend(pod, "/sidecars", by_name());
        if let Some(sidecar) = pod.pointer_mut("/sidecars/items/properties") {
            containers(sidecar);
        }
    }
    for role in ["coordinator", "embeddingServers"] {
        extend(spec, &format!("/{role}/properties/storage/properties/size"), amount());
    }
    extend(spec, "/volumes/items/properties/source/properties/emptyDir/properties/sizeLimit", amount());
    extend(spec, "/volumes/items/properties/source/properties/ephemeral/properties/size", amount());
}

fn containers(place: &mut Value) {
    extend(place, "/env", by_name());
    extend(place, "/env/items/properties/name", json!({ "maxLength": 253, "pattern": rules::VARIABLE }));
    for list in ["requests", "limits"] {
        extend(place, &format!("/resources/properties/{list}"), json!({ "maxProperties": 16 }));
        extend(place, &format!("/resources/properties/{list}/additionalProperties"), amount());
        let known = "self.all(key, key in ['cpu', 'memory', 'ephemeral-storage'] || key.startsWith('hugepages-') || \
                     key.contains('/'))";
        let message = "a resource is cpu, memory, ephemeral-storage, hugepages-SIZE or has a prefix: nvidia.com/gpu";
        if let Some(resources) = place.pointer_mut("/resources/properties") {
            rule(resources, list, known, message);
        }
    }
    let requests_fit = "!has(self.requests) || !has(self.limits) || self.requests.all(key, !(key in self.limits) || \
                  quantity(string(self.requests[key])).compareTo(quantity(string(self.limits[key]))) <= 0)";
    rule(place, "resources", requests_fit, "a request is above its limit");
}

fn labels() -> Value {
    json!({
        "maxProperties": 64,
        "additionalProperties": { "type": "string", "maxLength": 63, "pattern": rules::LABEL_VALUE },
    })
}

fn amount() -> Value {
    json!({ "maxLength": 32, "pattern": rules::AMOUNT })
}

fn by_name() -> Value {
    json!({ "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"] })
}

fn extend(place: &mut Value, path: &str, more: Value) {
    if let (Some(Value::Object(schema)), Value::Object(more)) = (place.pointer_mut(path), more) {
        schema.extend(more);
    }
}

fn rule(place: &mut Value, field: &str, holds: &str, message: &str) {
    if let Some(schema) = place.get_mut(field).and_then(Value::as_object_mut) {
        let rules = schema.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
        if let Some(rules) = rules.as_array_mut() {
            rules.push(json!({ "rule": holds, "message": message }));
        }
    }
}

fn shorten(fields: &mut Value) {
    for (name, schema) in fields.as_object_mut().into_iter().flatten() {
        match schema {
            Value::Object(schema) if KUBERNETES_FIELDS.contains(&name.as_str()) => {
                schema.iter_mut().filter(|(key, _)| *key != "description").for_each(|(_, below)| shorten_all(below));
            }
            schema => shorten(schema),
        }
    }
}

fn shorten_all(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(text) if key == "description" => *text = first_sentence(text),
                    value => shorten_all(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(shorten_all),
        _ => {}
    }
}

fn first_sentence(text: &str) -> String {
    const MOST: usize = 160;
    let line = text.split("\n").next().unwrap_or_default();
    let sentence = line.split_once(". ").map_or(line, |(sentence, _)| sentence).trim_end_matches('.');
    if sentence.chars().count() <= MOST {
        return format!("{sentence}.");
    }
    sentence.chars().take(MOST).chain("…".chars()).collect()
}
