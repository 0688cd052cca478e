//! From a valid job to Kubernetes objects. Total, and without a client: the same job and attempt give the same objects.

mod network;
mod pod;
mod rollout;
mod shared;
mod volumes;
mod workloads;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::api::{ApiResource, DynamicObject, ObjectMeta};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use crate::crd::HybridJob;
use crate::names::{PodRole, RunAttempt, job_labels};
use crate::observe::ObservedObjects;
use crate::validate::ValidJob;

pub use shared::SharedObject;
pub(crate) use shared::group_resource;

pub const JOB_KEY: &str = "job.toml";

#[derive(Clone, Debug, PartialEq)]
pub struct ObjectManifest {
    pub resource: ApiResource,
    pub object: DynamicObject,
}

impl ObjectManifest {
    fn new(resource: ApiResource, metadata: ObjectMeta, mut data: Value) -> Self {
        remove_absent(&mut data);
        let object = DynamicObject { data, metadata, ..DynamicObject::new("", &resource) };
        Self { resource, object }
    }

    /// `Service ctr-1-server`.
    pub fn title(&self) -> String {
        format!("{} {}", self.resource.kind, self.object.name_any())
    }

    pub fn content_hash(&self) -> u64 {
        xxh3_64(serde_json::to_string(&self.object).unwrap_or_default().as_bytes())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildStage {
    /// All objects but the workers: a worker that starts before its servers may give up waiting for them.
    Servers,
    Everything,
}

#[derive(Clone, Debug)]
pub struct BuildPlan<'a> {
    pub owner: &'a HybridJob,
    pub job: &'a ValidJob,
    pub attempt: &'a RunAttempt,
    pub run: &'a ObservedObjects,
    /// How many servers the coordinator counts as alive, if it said so just now.
    pub alive: Option<i32>,
}

impl BuildPlan<'_> {
    /// Whether Kubernetes starts another pod for a worker that is lost, or that leaves although it is wanted.
    fn replaces_workers(&self) -> bool {
        let policy = &self.job.spec.run_policy;
        self.job.workers_rejoin() && policy.backoff_limit > 0 && !policy.exit_codes.retryable.is_empty()
    }

    fn metadata(&self, name: String) -> ObjectMeta {
        ObjectMeta { labels: Some(self.attempt.object_labels()), ..owned_metadata(self.owner, name) }
    }

    fn manifest<K: Resource<DynamicType = ()>>(&self, name: String, data: Value) -> ObjectManifest {
        ObjectManifest::new(ApiResource::erase::<K>(&()), self.metadata(name), data)
    }
}

/// Removes fields that have no value, and lists without items: an applied field is the operator's, even if it is empty.
fn remove_absent(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null() && field.as_array().is_none_or(|items| !items.is_empty()));
            fields.values_mut().for_each(remove_absent);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_absent),
        _ => {}
    }
}

/// Of an object that belongs to a HybridJob, and to none of its attempts.
pub(crate) fn owned_metadata(owner: &HybridJob, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: owner.namespace(),
        labels: Some(job_labels(&owner.name_any())),
        owner_references: owner.controller_owner_ref(&()).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

/// All objects of an attempt up to a stage, in the order in which they are applied.
pub fn build(plan: &BuildPlan<'_>, stage: BuildStage) -> Vec<ObjectManifest> {
    let attempt = plan.attempt;
    // The job file of the attempt never changes, so a restarted pod reads the same file.
    let config = json!({ "data": { JOB_KEY: plan.job.rendered }, "immutable": true });
    let mut objects = vec![plan.manifest::<ConfigMap>(attempt.config_name(), config)];
    objects.extend(PodRole::ALL.map(|role| {
        let service = json!({ "spec": network::service(plan, role) });
        plan.manifest::<Service>(attempt.service_name(role), service)
    }));
    objects.extend(SharedObject::ALL.into_iter().filter(|one| one.is_wanted(plan)).map(|one| one.manifest(plan)));
    if let Some(gang) = &plan.job.spec.scheduling.gang {
        objects.push(shared::pod_group(plan, gang));
    }
    let coordinator = workloads::stateful_set(plan, PodRole::Coordinator);
    objects.push(plan.manifest::<StatefulSet>(attempt.workload_name(PodRole::Coordinator), coordinator));
    objects.push(workloads::servers(plan));
    if stage == BuildStage::Everything {
        objects.push(workloads::workers(plan));
    }
    objects
}

#[cfg(test)]
mod tests;
