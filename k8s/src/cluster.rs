//! Requests to Kubernetes, one function each. Other modules decide what to request.

use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::jiff::Timestamp;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions,
};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use tracing::{info, warn};

use crate::build::{ObjectManifest, group_resource};
use crate::cache::JobObjects;
use crate::crd::{GangScheduler, HybridJob};
use crate::error::Error;
use crate::names::{ATTEMPT_LABEL, FINALIZER, JOB_LABEL, MANAGER, RETAIN_LABEL};
use crate::observe::{ObservedObjects, OwnedKind, RemovalScope};
use crate::step::ObjectDeletion;

#[derive(Clone)]
pub struct JobClient {
    client: Client,
    namespace: String,
    job: String,
}

impl JobClient {
    pub fn new(client: Client, namespace: &str, job: &str) -> Self {
        Self { client, namespace: namespace.to_owned(), job: job.to_owned() }
    }

    /// Jobs without a type, for an object that cannot be parsed.
    pub fn untyped_jobs(&self) -> Api<DynamicObject> {
        self.untyped_api(&kind_resource::<HybridJob>())
    }

    /// As it is now: the state that a watch reported may be old.
    pub async fn read_job(&self) -> Result<Option<HybridJob>, Error> {
        if_there(self.api::<HybridJob>().get(&self.job).await, format!("read HybridJob {}", self.job))
    }

    /// `None` when the ConfigMap or its key is missing.
    pub async fn read_config(&self, name: &str, key: &str) -> Result<Option<String>, Error> {
        let api: Api<ConfigMap> = self.api();
        let found = if_there(api.get(name).await, format!("read ConfigMap {name}"))?;
        Ok(found.and_then(|map| map.data?.remove(key)))
    }

    /// Unknown, and so false, to an operator that may not read namespaces.
    pub async fn is_namespace_deleted(&self) -> Result<bool, Error> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let read = namespaces.get_metadata(&self.namespace).await;
        match if_there(read, format!("read Namespace {}", self.namespace)) {
            Err(error) if error.needs_a_person() => Ok(false),
            read => Ok(read?.is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_some())),
        }
    }

    /// Whether Kubernetes, not a cache, still has workers that must end before their servers may.
    pub async fn has_workers(&self, scope: RemovalScope, now: Timestamp) -> Result<bool, Error> {
        let (jobs, pods) = tokio::try_join!(self.list::<Job>(), self.list::<Pod>())?;
        let observed = ObservedObjects::new(0, &JobObjects { jobs, pods, ..JobObjects::default() });
        Ok(observed.has_workers(scope, now))
    }

    async fn list<K>(&self) -> Result<Vec<Arc<K>>, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        let ours = ListParams::default().labels(&format!("{JOB_LABEL}={}", self.job));
        let listed = self.api::<K>().list(&ours).await;
        let listed = listed.map_err(Error::failed_to(format!("list {} of {}", K::plural(&()), self.job)))?;
        Ok(listed.items.into_iter().map(Arc::new).collect())
    }

    /// Takes over fields that others changed. Returns the object's generation, if its kind has one.
    pub async fn apply(&self, manifest: &ObjectManifest) -> Result<Option<i64>, Error> {
        let (api, name, title) = (self.untyped_api(&manifest.resource), manifest.object.name_any(), manifest.title());
        let applied = api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&manifest.object)).await;
        let error = match applied.map_err(Error::failed_to(format!("apply {title}"))) {
            Err(error) if error.is_refused() => error,
            applied => return applied.map(|object| object.metadata.generation),
        };
        // The template of a Job and most of a StatefulSet never change. An object that was made otherwise stays.
        if_there(api.get_metadata(&name).await, format!("read {title}"))?.ok_or_else(|| error.clone())?;
        warn!(object = title, %error, "object stays as it was made");
        Ok(None)
    }

    pub async fn delete(&self, deletion: &ObjectDeletion) -> Result<(), Error> {
        match deletion {
            ObjectDeletion::Workload(kind, name) => {
                let resource = match kind {
                    OwnedKind::Workers => kind_resource::<Job>(),
                    OwnedKind::Coordinator | OwnedKind::Servers => kind_resource::<StatefulSet>(),
                    OwnedKind::Service => kind_resource::<Service>(),
                };
                self.delete_named(&resource, name).await
            }
            ObjectDeletion::Attempts(scope, gang) => self.delete_attempts(*scope, *gang).await,
            ObjectDeletion::Claims => self.delete_claims(RemovalScope::All).await,
            ObjectDeletion::Shared(shared) => {
                self.delete_named(&shared.api_resource(), &shared.object_name(&self.job)).await
            }
        }
    }

    pub async fn suspend(&self, job: &str) -> Result<(), Error> {
        info!(job = self.job, name = job, "pods are asked to end");
        let patch = Patch::Merge(json!({ "spec": { "suspend": true } }));
        let suspended = self.api::<Job>().patch(job, &PatchParams::default(), &patch).await;
        if_there(suspended, format!("suspend Job {job}")).map(drop)
    }

    /// Services go last: as long as one is there, something is left to remove.
    async fn delete_attempts(&self, scope: RemovalScope, gang: Option<GangScheduler>) -> Result<(), Error> {
        let which = self.in_scope(scope);
        info!(job = self.job, "services and claims are removed");
        if let Some(gang) = gang {
            // A group without pods would keep its place in the queue.
            self.delete_all(&group_resource(gang), &which).await?;
        }
        self.delete_all(&kind_resource::<ConfigMap>(), &which).await?;
        self.delete_claims(scope).await?;
        self.delete_all(&kind_resource::<Service>(), &which).await
    }

    /// Claims that the user wants to retain stay: they have no owner, and say so by a label.
    async fn delete_claims(&self, scope: RemovalScope) -> Result<(), Error> {
        let ListParams { label_selector, .. } = self.in_scope(scope);
        let selector = format!("{},{RETAIN_LABEL}!=true", label_selector.unwrap_or_default());
        self.delete_all(&kind_resource::<PersistentVolumeClaim>(), &ListParams::default().labels(&selector)).await
    }

    fn in_scope(&self, scope: RemovalScope) -> ListParams {
        let all = format!("{JOB_LABEL}={},{ATTEMPT_LABEL}", self.job);
        ListParams::default().labels(&match scope {
            RemovalScope::All => all,
            RemovalScope::Others(attempt) => format!("{all},{ATTEMPT_LABEL}!={attempt}"),
            RemovalScope::Only(attempt) => format!("{all},{ATTEMPT_LABEL}={attempt}"),
        })
    }

    /// The request is a deletion of a collection: an object of the same name without the job's label stays.
    async fn delete_named(&self, resource: &ApiResource, name: &str) -> Result<(), Error> {
        info!(job = self.job, kind = resource.kind, name, "object is removed");
        let ours = ListParams::default().labels(&format!("{JOB_LABEL}={}", self.job));
        self.delete_all(resource, &ours.fields(&format!("metadata.name={name}"))).await
    }

    /// If the definition of a kind is not installed, there is no object of it.
    async fn delete_all(&self, resource: &ApiResource, which: &ListParams) -> Result<(), Error> {
        let removed = self.untyped_api(resource).delete_collection(&DeleteParams::background(), which).await;
        if_there(removed, format!("delete {} of {}", resource.plural, self.job)).map(drop)
    }

    /// The pod counts as failed, so its Job makes another in its place, and it is deleted without its kubelet's
    /// confirmation, as on a node that is marked as out of service. If the old worker still lives, it was fenced long
    /// ago (invariant MB-1).
    pub async fn give_up(&self, pod: &str) -> Result<(), Error> {
        info!(job = self.job, pod, "pod is given up: its node does not report");
        let message = "its node does not report, and it should have ended long ago";
        let status = json!({ "status": { "phase": "Failed", "reason": "NodeLost", "message": message } });
        let api = self.api::<Pod>();
        let failed = api.patch_status(pod, &PatchParams::default(), &Patch::Merge(&status)).await;
        if_there(failed, format!("mark pod {pod} as failed"))?;
        let deleted = api.delete(pod, &DeleteParams::default().grace_period(0)).await;
        if_there(deleted, format!("delete pod {pod}")).map(drop)
    }

    /// Refused when the job was changed since it was read.
    pub async fn set_finalizer(&self, object: &HybridJob, is_held: bool) -> Result<HybridJob, Error> {
        let mut finalizers = object.finalizers().to_vec();
        finalizers.retain(|one| one != FINALIZER);
        if is_held {
            finalizers.push(FINALIZER.to_owned());
        }
        let metadata = json!({ "resourceVersion": object.resource_version(), "finalizers": finalizers });
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let held = self.api::<HybridJob>().patch(&self.job, &PatchParams::default(), &patch).await;
        held.map_err(Error::failed_to(format!("set the finalizer of HybridJob {}", self.job)))
    }

    /// Refused when the job was changed since it was read.
    pub async fn record_status(&self, object: &HybridJob) -> Result<HybridJob, Error> {
        let recorded = self.api::<HybridJob>().replace_status(&self.job, &PostParams::default(), object).await;
        recorded.map_err(Error::failed_to(format!("record the status of HybridJob {}", self.job)))
    }

    /// A job that has its name by now stays.
    pub async fn delete_job(&self, object: &HybridJob) -> Result<(), Error> {
        let this = Preconditions { uid: object.uid(), resource_version: None };
        let deleted = self.api::<HybridJob>().delete(&self.job, &DeleteParams::background().preconditions(this)).await;
        if_there(deleted, format!("delete HybridJob {}", self.job)).map(drop)
    }

    fn untyped_api(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, resource)
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

fn kind_resource<K: Resource<DynamicType = ()>>() -> ApiResource {
    ApiResource::erase::<K>(&())
}

/// For a kind of an unknown group the API server answers 404 in plain text, without the reason that `get_opt` looks
/// for.
fn if_there<T>(read: kube::Result<T>, what: String) -> Result<Option<T>, Error> {
    match read.map_err(Error::failed_to(what)) {
        Err(error) if error.is_missing() => Ok(None),
        read => read.map(Some),
    }
}
