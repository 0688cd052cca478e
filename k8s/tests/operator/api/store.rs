//! Objects by key, their versions, and their events in order. Patches and label selectors.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::ClusterClock;
use crate::crd::{SCHEMA, admission_refusals};

/// Fields of a Job's spec that never change (ValidateJobSpecUpdate of Kubernetes). `completions` has a rule of its own.
const IMMUTABLE_OF_JOBS: &str =
    "template completionMode selector backoffLimitPerIndex podFailurePolicy managedBy successPolicy";
/// Fields of a StatefulSet's spec that may change. Kubernetes refuses a change of any other.
const MUTABLE_OF_SETS: &str = "replicas ordinals template updateStrategy revisionHistoryLimit \
                               persistentVolumeClaimRetentionPolicy minReadySeconds";

/// Kinds whose objects have a generation: each edit of the spec is counted. Services have none.
const COUNTED: [&str; 7] =
    ["hybridjobs", "statefulsets", "jobs", "networkpolicies", "poddisruptionbudgets", "podgroups", "podmonitors"];

fn has_generation(plural: &str) -> bool {
    COUNTED.contains(&plural)
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectKey {
    pub(crate) group: String,
    pub(crate) plural: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

#[derive(Clone, Debug)]
pub(crate) struct ApiEvent {
    pub(crate) version: u64,
    pub(crate) what: &'static str,
    pub(crate) key: ObjectKey,
    pub(crate) object: Value,
}

/// Why a request is refused.
#[derive(Debug)]
pub(crate) struct ApiRefusal {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

pub(crate) fn refusal(code: u16, reason: &'static str, message: impl Into<String>) -> ApiRefusal {
    ApiRefusal { code, reason, message: message.into() }
}

#[derive(Default)]
pub(crate) struct ObjectStore {
    pub(crate) version: u64,
    objects: BTreeMap<ObjectKey, Value>,
    /// What each manager applied last.
    applied: BTreeMap<(ObjectKey, String), Value>,
    pub(crate) log: Vec<ApiEvent>,
    /// Verbs on plurals that are forbidden: `patch services`.
    pub(crate) denied: BTreeSet<String>,
    /// Requests so far, as `verb plural`.
    pub(crate) requests: Vec<String>,
    /// Writes so far that changed something, as `verb plural name`.
    pub(crate) writes: Vec<String>,
    /// After this many writes, no request is answered any more.
    pub(crate) dies_after: Option<usize>,
    pub(crate) installed: BTreeSet<String>,
    pub(crate) missing: BTreeSet<String>,
    /// Whether the installed definition is an older one without rules.
    pub(crate) has_old_definition: bool,
    /// The kinds of which a quota admits no more in the namespace.
    pub(crate) exceeded: BTreeSet<String>,
    pub(crate) terminating: BTreeSet<String>,
    pub(crate) clock: ClusterClock,
}

impl ObjectStore {
    pub(crate) fn is_dead(&self) -> bool {
        self.dies_after.is_some_and(|most| self.writes.len() >= most)
    }

    pub(crate) fn get(&self, key: &ObjectKey) -> Result<Value, ApiRefusal> {
        let found = self.objects.get(key).cloned();
        let resource = if key.group.is_empty() { key.plural.clone() } else { format!("{}.{}", key.plural, key.group) };
        found.ok_or_else(|| refusal(404, "NotFound", format!("{resource} \"{}\" not found", key.name)))
    }

    pub(crate) fn list(&self, group: &str, plural: &str, namespace: Option<&str>, labels: &str) -> Vec<Value> {
        let is_there = |key: &ObjectKey| namespace.is_none_or(|namespace| key.namespace == namespace);
        let of_kind =
            self.from(group, plural, "", "").take_while(|(key, _)| key.group == group && key.plural == plural);
        let found = of_kind.filter(|(key, object)| is_there(key) && matches_selector(labels, object));
        found.map(|(_, object)| object.clone()).collect()
    }

    /// Objects of a kind in a namespace whose names begin alike.
    pub(crate) fn prefixed(&self, group: &str, plural: &str, namespace: &str, prefix: &str) -> Vec<Value> {
        let is_one =
            |key: &ObjectKey| key.plural == plural && key.namespace == namespace && key.name.starts_with(prefix);
        let found = self.from(group, plural, namespace, prefix).take_while(|(key, _)| is_one(key));
        found.map(|(_, object)| object.clone()).collect()
    }

    pub(crate) fn keys(&self, namespace: &str) -> Vec<ObjectKey> {
        self.objects.keys().filter(|key| key.namespace == namespace).cloned().collect()
    }

    fn from(
        &self,
        group: &str,
        plural: &str,
        namespace: &str,
        name: &str,
    ) -> impl Iterator<Item = (&ObjectKey, &Value)> {
        let [group, plural, namespace, name] = [group, plural, namespace, name].map(str::to_owned);
        self.objects.range(ObjectKey { group, plural, namespace, name }..)
    }

    /// Puts an object in place of none or of an older one. Spec and status are written separately if there is a status.
    pub(crate) fn put(&mut self, key: &ObjectKey, mut object: Value, part: ObjectPart) -> Result<Value, ApiRefusal> {
        let old = self.objects.get(key).cloned();
        if let Some(old) = &old {
            let expected = &object["metadata"]["resourceVersion"];
            if expected.is_string() && *expected != old["metadata"]["resourceVersion"] {
                let message = format!("{} \"{}\": the object has been modified", key.plural, key.name);
                return Err(refusal(409, "Conflict", message));
            }
        }
        if old.is_none() && self.exceeded.contains(&key.plural) {
            let message = format!("{} \"{}\" is forbidden: exceeded quota: ads", key.plural, key.name);
            return Err(refusal(403, "Forbidden", message));
        }
        if old.is_none() && self.terminating.contains(&key.namespace) {
            let ObjectKey { plural, name, namespace, .. } = key;
            let because =
                format!("unable to create new content in namespace {namespace} because it is being terminated");
            return Err(refusal(403, "Forbidden", format!("{plural} \"{name}\" is forbidden: {because}")));
        }
        object = keep_part(object, old.as_ref(), part);
        if !self.has_old_definition {
            admit(key, &mut object, old.as_ref())?;
        }
        self.stamp(&mut object, old.as_ref(), key);
        if old.as_ref().is_some_and(|old| same(old, &object)) {
            return Ok(old.unwrap_or_default());
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        // A running pod stays until its kubelet has ended it.
        let is_ended = object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0;
        let is_gone = object["metadata"]["deletionTimestamp"].is_string() && finalizers(&object) == 0 && is_ended;
        let what = if old.is_none() { "ADDED" } else { "MODIFIED" };
        self.note(what, key, &object);
        self.objects.insert(key.clone(), object.clone());
        if is_gone {
            self.erase(key);
        }
        Ok(object)
    }

    fn stamp(&mut self, object: &mut Value, old: Option<&Value>, key: &ObjectKey) {
        let generation = old.map_or(1, |old| {
            let generation = old["metadata"]["generation"].as_i64().unwrap_or(1);
            let is_deleted = old["metadata"]["deletionTimestamp"] != object["metadata"]["deletionTimestamp"];
            generation + i64::from(old["spec"] != object["spec"] || is_deleted)
        });
        let uid = old.map_or_else(|| json!(format!("uid-{}", self.version + 1)), |old| old["metadata"]["uid"].clone());
        let created = old.map(|old| old["metadata"]["creationTimestamp"].clone());
        let metadata = &mut object["metadata"];
        metadata["uid"] = uid;
        if has_generation(&key.plural) {
            metadata["generation"] = json!(generation);
        }
        metadata["creationTimestamp"] = created.unwrap_or_else(|| json!("2026-01-01T00:00:00Z"));
        metadata["name"] = json!(key.name);
        metadata["namespace"] = json!(key.namespace);
    }

    /// Applies the fields that a manager sets. Other fields stay.
    pub(crate) fn apply(
        &mut self,
        key: &ObjectKey,
        manager: &str,
        wanted: &Value,
        part: ObjectPart,
    ) -> Result<Value, ApiRefusal> {
        let owner = (key.clone(), manager.to_owned());
        let mut object = self.objects.get(key).cloned().unwrap_or_else(|| wanted.clone());
        if let Some(before) = self.applied.get(&owner) {
            prune(&mut object, before, wanted);
        }
        merge(&mut object, wanted);
        let put = self.put(key, object, part)?;
        self.applied.insert(owner, wanted.clone());
        Ok(put)
    }

    /// Deletes an object. An object with finalizers, and a pod that has not ended, is only marked.
    pub(crate) fn delete(&mut self, key: &ObjectKey) -> Result<Value, ApiRefusal> {
        self.delete_within(key, None)
    }

    /// The same with another grace period than the pod's own.
    pub(crate) fn delete_within(&mut self, key: &ObjectKey, seconds: Option<i64>) -> Result<Value, ApiRefusal> {
        let mut object = self.get(key)?;
        let has_ended = ["Succeeded", "Failed"].iter().any(|phase| object["status"]["phase"] == *phase);
        let own = object["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(0);
        let grace = if key.plural != "pods" || has_ended { 0 } else { seconds.unwrap_or(own) };
        if finalizers(&object) > 0 || grace > 0 {
            let is_new = object["metadata"]["deletionTimestamp"].is_null();
            if is_new || seconds == Some(0) {
                object["metadata"]["deletionTimestamp"] = json!(self.clock.time_after(grace));
                object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
            }
            return self.put(key, object, ObjectPart::Main);
        }
        self.erase(key);
        Ok(object)
    }

    fn erase(&mut self, key: &ObjectKey) {
        let Some(object) = self.objects.remove(key) else { return };
        self.applied.retain(|(place, _), _| place != key);
        self.version += 1;
        self.note("DELETED", key, &object);
        let uid = &object["metadata"]["uid"];
        let owned = |child: &Value| {
            child["metadata"]["ownerReferences"]
                .as_array()
                .is_some_and(|owners| owners.iter().any(|one| one["uid"] == *uid))
        };
        let orphans: Vec<ObjectKey> =
            self.objects.iter().filter(|(_, child)| owned(child)).map(|(key, _)| key.clone()).collect();
        for orphan in orphans {
            // A finalizer may hold the object; then it is only marked.
            let deleted = self.delete(&orphan);
            assert!(deleted.is_ok(), "{deleted:?}");
        }
    }

    fn note(&mut self, what: &'static str, key: &ObjectKey, object: &Value) {
        let (version, key, mut object) = (self.version, key.clone(), object.clone());
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        self.log.push(ApiEvent { version, what, key, object });
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectPart {
    Main,
    Status,
    /// Everything: the fake controllers write this.
    Whole,
}

fn keep_part(object: Value, old: Option<&Value>, part: ObjectPart) -> Value {
    let mut kept = match (part, old) {
        (ObjectPart::Status, Some(old)) => {
            let mut kept = old.clone();
            kept["status"] = object["status"].clone();
            kept
        }
        (ObjectPart::Main, old) => {
            let mut kept = object;
            kept["status"] = old.map(|old| old["status"].clone()).unwrap_or_default();
            kept
        }
        (ObjectPart::Whole, _) | (ObjectPart::Status, None) => object,
    };
    if kept["status"].is_null() {
        kept.as_object_mut().unwrap().shift_remove("status");
    }
    kept
}

fn same(old: &Value, new: &Value) -> bool {
    let plain = |object: &Value| {
        let mut object = object.clone();
        object["metadata"]["resourceVersion"] = Value::Null;
        object
    };
    plain(old) == plain(new)
}

fn finalizers(object: &Value) -> usize {
    object["metadata"]["finalizers"].as_array().map_or(0, Vec::len)
}

/// The checks that Kubernetes makes before it admits an object: the definition's rules, and fields that never change.
fn admit(key: &ObjectKey, object: &mut Value, old: Option<&Value>) -> Result<(), ApiRefusal> {
    let invalid =
        |message: String| refusal(422, "Invalid", format!("{} \"{}\" is invalid: {message}", key.plural, key.name));
    if key.plural == "hybridjobs" {
        let schema: &Value = &SCHEMA;
        *object = kube_cel::apply_defaults(schema, object);
        let is_same = old.is_some_and(|old| kube_cel::apply_defaults(schema, old)["spec"] == object["spec"]);
        let refusals = if is_same { Vec::new() } else { admission_refusals(object, old) };
        return if refusals.is_empty() { Ok(()) } else { Err(invalid(refusals.join("; "))) };
    }
    let spec = &object["spec"];
    if key.plural == "jobs"
        && !spec["podFailurePolicy"].is_null()
        && spec["podReplacementPolicy"] == "TerminatingOrFailed"
    {
        return Err(invalid("spec.podReplacementPolicy: must be Failed with a podFailurePolicy".to_owned()));
    }
    if key.plural == "jobs" {
        completions_fit(spec, old.map(|old| &old["spec"])).map_err(invalid)?;
    }
    let Some(old) = old else { return Ok(()) };
    if key.plural == "jobs"
        && let Some(field) = IMMUTABLE_OF_JOBS.split(' ').find(|field| old["spec"][*field] != spec[*field])
    {
        return Err(invalid(format!("spec.{field}: field is immutable")));
    }
    if key.plural == "statefulsets" {
        let fixed = |spec: &Value| {
            let mut fields = spec.as_object().cloned().unwrap_or_default();
            fields.retain(|field, _| !MUTABLE_OF_SETS.split(' ').any(|mutable| mutable == field));
            fields
        };
        if fixed(&old["spec"]) != fixed(spec) {
            let allowed = "'replicas', 'ordinals', 'template', 'updateStrategy', …";
            return Err(invalid(format!(
                "spec: updates to statefulset spec for fields other than {allowed} are forbidden"
            )));
        }
    }
    if key.plural == "configmaps" && old["immutable"] == true && old["data"] != object["data"] {
        return Err(invalid("data: field is immutable when `immutable` is set".to_owned()));
    }
    Ok(())
}

/// Kubernetes' rules about how many indices a Job has. Those of an indexed Job change together with its parallelism.
fn completions_fit(spec: &Value, old: Option<&Value>) -> Result<(), String> {
    let completions = &spec["completions"];
    if spec["maxFailedIndexes"].as_i64() > completions.as_i64().or(Some(i64::MAX)) {
        return Err("spec.maxFailedIndexes: must be less than or equal to completions".to_owned());
    }
    if old.is_none_or(|old| old["completions"] == *completions) {
        return Ok(());
    }
    if spec["completionMode"] != "Indexed" {
        return Err("spec.completions: field is immutable".to_owned());
    }
    if spec["parallelism"] != *completions {
        return Err("spec.completions: can only be modified in tandem with spec.parallelism".to_owned());
    }
    Ok(())
}

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
