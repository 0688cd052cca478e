//! Requests to Kubernetes, one function each; what they ask for is decided elsewhere.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tracing::{info, warn};

use crate::build::{JOB_KEY, Manifest, Shared, group_resource};
use crate::crd::{GangScheduler, HybridJob, JobSource};
use crate::error::Error;
use crate::names::{ATTEMPT_LABEL, Attempt, JOB_LABEL, MANAGER, job_labels};
use crate::observe::Observed;

/// Which objects of a job go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Those of every attempt but this.
    Others(i32),
    /// Those of all attempts.
    All,
    /// The servers of all attempts, which never end by themselves.
    Servers,
    /// Servers, and the Jobs with their ended pods.
    Pods,
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Others(attempt) => write!(f, "those of every attempt but {attempt}"),
            Self::All => f.write_str("those of all attempts"),
            Self::Servers => f.write_str("the servers"),
            Self::Pods => f.write_str("the servers, and the workers' Jobs with their pods"),
        }
    }
}

/// One job's namespace.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    namespace: String,
    job: String,
    gang: Option<GangScheduler>,
}

impl Cluster {
    /// Of this job.
    #[must_use]
    pub fn new(client: Client, namespace: &str, job: &str) -> Self {
        Self { client, namespace: namespace.to_owned(), job: job.to_owned(), gang: None }
    }

    /// The same, with the scheduler whose groups of pods the job has.
    #[must_use]
    pub fn with_gang(&self, gang: Option<GangScheduler>) -> Self {
        Self { gang, ..self.clone() }
    }

    /// The HybridJobs of the namespace.
    #[must_use]
    pub fn jobs(&self) -> Api<HybridJob> {
        self.api()
    }

    /// The same without a type, for an object that cannot be read.
    #[must_use]
    pub fn raw(&self) -> Api<kube::api::DynamicObject> {
        let resource = kube::api::ApiResource::erase::<HybridJob>(&());
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    /// The HybridJob as it is now; what a watch has told may be old.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn current(&self) -> Result<Option<HybridJob>, Error> {
        self.jobs().get_opt(&self.job).await.map_err(Error::of(format!("read HybridJob {}", self.job)))
    }

    /// The text of the job file: that of the attempt, once it has begun, else what the spec names. `None` when the
    /// ConfigMap or its key is missing.
    ///
    /// # Errors
    /// When a request fails.
    pub async fn text(&self, attempt: &Attempt, source: &JobSource) -> Result<Option<String>, Error> {
        if let Some(text) = self.config(&attempt.config(), JOB_KEY).await? {
            return Ok(Some(text));
        }
        match (&source.inline, &source.config_map) {
            (Some(text), _) => Ok(Some(text.clone())),
            (None, Some(place)) => self.config(&place.name, &place.key).await,
            (None, None) => Ok(Some(String::new())),
        }
    }

    async fn config(&self, name: &str, key: &str) -> Result<Option<String>, Error> {
        let api: Api<ConfigMap> = self.api();
        let found = api.get_opt(name).await.map_err(Error::of(format!("read ConfigMap {name}")))?;
        Ok(found.and_then(|map| map.data?.remove(key)))
    }

    /// What there is of the job.
    ///
    /// # Errors
    /// When a request fails.
    pub async fn observe(&self, attempt: i32) -> Result<Observed, Error> {
        let (jobs, sets, pods) = tokio::try_join!(self.list::<Job>(), self.list::<StatefulSet>(), self.list::<Pod>())?;
        Ok(Observed::new(attempt, &jobs, &sets, &pods))
    }

    async fn list<K>(&self) -> Result<Vec<K>, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        let ours = ListParams::default().labels(&format!("{JOB_LABEL}={}", self.job));
        let listed = self.api::<K>().list(&ours).await;
        Ok(listed.map_err(Error::of(format!("list {} of {}", K::plural(&()), self.job)))?.items)
    }

    /// Applies an object, taking its fields from whoever changed them.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn apply(&self, manifest: &Manifest) -> Result<(), Error> {
        let api: Api<kube::api::DynamicObject> =
            Api::namespaced_with(self.client.clone(), &self.namespace, &manifest.resource);
        let parameters = PatchParams::apply(MANAGER).force();
        let applied = api.patch(&manifest.object.name_any(), &parameters, &Patch::Apply(&manifest.object)).await;
        match applied.map_err(Error::of(format!("apply {}", manifest.title()))) {
            // The template of a Job and most of a StatefulSet never change: one that an older operator made stays.
            Err(error) if error.is_refused() && self.exists(&api, manifest).await? => {
                warn!(object = manifest.title(), %error, "object stays as it was made");
                Ok(())
            }
            applied => applied.map(|_| ()),
        }
    }

    async fn exists(&self, api: &Api<kube::api::DynamicObject>, manifest: &Manifest) -> Result<bool, Error> {
        let found = api.get_metadata_opt(&manifest.object.name_any()).await;
        Ok(found.map_err(Error::of(format!("read {}", manifest.title())))?.is_some())
    }

    /// Deletes what the attempts of this job share, where it is there. Another's of the same name stays.
    ///
    /// # Errors
    /// When a request fails.
    pub async fn withdraw(&self, shared: Shared) -> Result<(), Error> {
        let (resource, name) = (shared.resource(), shared.name(&self.job));
        let title = format!("{} {name}", resource.kind);
        let api: Api<kube::api::DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        // Without the definition of its kind there is none either.
        let found = api.get_metadata_opt(&name).await.map_err(Error::of(format!("read {title}")))?;
        let ours = job_labels(&self.job);
        let is_ours =
            |labels: &BTreeMap<String, String>| ours.iter().all(|(key, value)| labels.get(key) == Some(value));
        let Some(found) = found.filter(|found| is_ours(found.labels())) else { return Ok(()) };
        info!(job = self.job, object = title, "object is removed");
        let this = Preconditions { uid: found.uid(), resource_version: None };
        let deleted = api.delete(&name, &DeleteParams::background().preconditions(this)).await;
        match deleted.map_err(Error::of(format!("delete {title}"))) {
            Err(error) if error.is_missing() => Ok(()),
            deleted => deleted.map(|_| ()),
        }
    }

    /// Removes objects. Those whose presence shows that there is something to remove go last.
    ///
    /// # Errors
    /// When a request fails.
    pub async fn sweep(&self, sweep: Sweep) -> Result<(), Error> {
        let all = format!("{JOB_LABEL}={},{ATTEMPT_LABEL}", self.job);
        let selector = match sweep {
            Sweep::Others(attempt) => format!("{all},{ATTEMPT_LABEL}!={attempt}"),
            Sweep::All | Sweep::Servers | Sweep::Pods => all,
        };
        info!(job = self.job, what = %sweep, "objects are removed");
        if matches!(sweep, Sweep::Others(_) | Sweep::All) {
            self.remove::<Service>(&selector).await?;
            self.remove::<ConfigMap>(&selector).await?;
            self.remove_groups(&selector).await?;
        }
        // Workers before servers: they may still have gradients to push.
        if sweep != Sweep::Servers {
            self.remove::<Job>(&selector).await?;
        }
        self.remove::<StatefulSet>(&selector).await
    }

    async fn remove<K>(&self, selector: &str) -> Result<(), Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        let which = ListParams::default().labels(selector);
        let removed = self.api::<K>().delete_collection(&DeleteParams::background(), &which).await;
        removed.map(|_| ()).map_err(Error::of(format!("delete {} of {}", K::plural(&()), self.job)))
    }

    /// A group without pods would keep its place in the queue.
    async fn remove_groups(&self, selector: &str) -> Result<(), Error> {
        let Some(gang) = self.gang else { return Ok(()) };
        let resource = group_resource(gang);
        let api: Api<kube::api::DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        let which = ListParams::default().labels(selector);
        let removed = api.delete_collection(&DeleteParams::background(), &which).await;
        match removed.map_err(Error::of(format!("delete podgroups of {}", self.job))) {
            // Without the definition there is no group either.
            Err(error) if error.is_missing() => Ok(()),
            removed => removed.map(|_| ()),
        }
    }

    /// Records a status. Refused when the job was changed since it was read.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn record(&self, object: &HybridJob) -> Result<HybridJob, Error> {
        let recorded = self.jobs().replace_status(&self.job, &PostParams::default(), object).await;
        recorded.map_err(Error::of(format!("record the status of HybridJob {}", self.job)))
    }

    /// Deletes the job itself, unless another has its name by now.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn delete(&self, object: &HybridJob) -> Result<(), Error> {
        let this = Preconditions { uid: object.uid(), resource_version: None };
        let deleted = self.jobs().delete(&self.job, &DeleteParams::background().preconditions(this)).await;
        match deleted.map_err(Error::of(format!("delete HybridJob {}", self.job))) {
            Err(error) if error.is_missing() => Ok(()),
            deleted => deleted.map(|_| ()),
        }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}
