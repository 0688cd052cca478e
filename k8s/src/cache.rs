//! Caches of the watched objects: a reflector's store for each kind, so that a look asks Kubernetes for no list.
//!
//! A store may be some milliseconds old. An action that cannot be repeated without harm first asks Kubernetes itself
//! (`JobClient::has_workers`). A list drops objects that went while no watch was open, and no event says whose they were: so
//! the jobs of all objects before and after it are reported. A store whose watch is refused grows old and does not say so:
//! so the refusal is kept beside it.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::debug;

use crate::error::Error;
use crate::names::{JOB_LABEL, MANAGER};

const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a refused watch counts as a fault of its cache. A watch that is tried again fails at least this often.
const REFUSED: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey {
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug, Default)]
pub struct JobObjects {
    pub jobs: Vec<Arc<Job>>,
    pub sets: Vec<Arc<StatefulSet>>,
    pub pods: Vec<Arc<Pod>>,
    pub services: Vec<Arc<Service>>,
}

#[derive(Default)]
pub struct ObjectCaches {
    jobs: KindCache<Job>,
    sets: KindCache<StatefulSet>,
    pods: KindCache<Pod>,
    services: KindCache<Service>,
}

impl ObjectCaches {
    /// Fills the caches for ever, and reports each job whose objects changed.
    pub async fn fill(&self, client: &Client, namespace: Option<&str>, changed: UnboundedSender<JobKey>) {
        futures::join!(
            self.jobs.fill(scoped_api(client, namespace), changed.clone()),
            self.sets.fill(scoped_api(client, namespace), changed.clone()),
            self.pods.fill(scoped_api(client, namespace), changed.clone()),
            self.services.fill(scoped_api(client, namespace), changed),
        );
    }

    /// Fails when that takes too long, or Kubernetes refuses to list or to watch a kind.
    pub async fn wait_until_listed(&self) -> Result<(), Error> {
        let (jobs, sets) = futures::join!(self.jobs.wait_until_listed(), self.sets.wait_until_listed());
        let (pods, services) = futures::join!(self.pods.wait_until_listed(), self.services.wait_until_listed());
        jobs.and(sets).and(pods).and(services)
    }

    pub fn objects_of_job(&self, job: &JobKey) -> JobObjects {
        JobObjects {
            jobs: self.jobs.objects_of(job),
            sets: self.sets.objects_of(job),
            pods: self.pods.objects_of(job),
            services: self.services.objects_of(job),
        }
    }
}

pub fn scoped_api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

#[derive(Default)]
struct KindCache<K: Resource<DynamicType = ()> + Clone + 'static> {
    store: Mutex<Writer<K>>,
    /// Why the kind could not be listed or watched, and when that was.
    failure: watch::Sender<Option<(Instant, Error)>>,
}

impl<K> KindCache<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    async fn fill(&self, api: Api<K>, changed: UnboundedSender<JobKey>) {
        let ours = watcher::Config::default().labels(&format!("app.kubernetes.io/managed-by={MANAGER}"));
        // Managed fields are half of an object, and never read.
        let shorten = |object: &mut K| object.managed_fields_mut().clear();
        let mut events = std::pin::pin!(watcher(api, ours).default_backoff().modify(shorten));
        while let Some(event) = events.next().await {
            match event {
                // Sending fails once the operator ends and no task receives.
                Ok(event) => drop(self.take(&event).into_iter().try_for_each(|key| changed.send(key))),
                Err(error) => {
                    debug!(%error, kind = %K::plural(&()), "watch failed");
                    self.failure.send_replace(failure::<K>(error).map(|error| (Instant::now(), error)));
                }
            }
        }
    }

    /// Applies an event. Returns the jobs that it concerns.
    fn take(&self, event: &Event<K>) -> BTreeSet<JobKey> {
        let mut writer = self.store();
        let store = writer.as_reader();
        let listed_jobs = || store.state().into_iter().filter_map(|object| key_of(object.as_ref()));
        let mut concerned: BTreeSet<JobKey> = match event {
            Event::Init | Event::InitApply(_) => BTreeSet::new(),
            Event::Apply(object) | Event::Delete(object) => key_of(object).into_iter().collect(),
            Event::InitDone => listed_jobs().collect(),
        };
        writer.apply_watcher_event(event);
        if matches!(event, Event::InitDone) {
            concerned.extend(listed_jobs());
        }
        if !matches!(event, Event::Init | Event::InitApply(_)) {
            self.failure.send_replace(None);
        }
        concerned
    }

    async fn wait_until_listed(&self) -> Result<(), Error> {
        let (store, mut failures) = (self.store().as_reader(), self.failure.subscribe());
        let refused = async {
            let is_refused = |(since, error): &(Instant, Error)| error.needs_a_person() && since.elapsed() < REFUSED;
            let failed = failures.wait_for(|failure| failure.as_ref().is_some_and(is_refused)).await;
            failed.ok().and_then(|failure| failure.as_ref().map(|(_, error)| error.clone()))
        };
        tokio::select! {
            biased;
            Some(error) = refused => Err(error),
            Ok(()) = store.wait_until_ready() => Ok(()),
            () = sleep(TIMEOUT) => {
                Err(Error::Unlisted { kind: K::plural(&()).into_owned(), seconds: TIMEOUT.as_secs() })
            }
        }
    }

    /// In the order of their names.
    fn objects_of(&self, job: &JobKey) -> Vec<Arc<K>> {
        let is_ours = |object: &K| {
            object.meta().namespace.as_ref() == Some(&job.namespace)
                && object.labels().get(JOB_LABEL) == Some(&job.name)
        };
        let mut found = self.store().as_reader().state_filter(is_ours);
        found.sort_by_cached_key(|object| object.name_any());
        found
    }

    fn store(&self) -> MutexGuard<'_, Writer<K>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key_of<K: Resource>(object: &K) -> Option<JobKey> {
    let name = object.labels().get(JOB_LABEL)?.clone();
    Some(JobKey { namespace: object.namespace()?, name })
}

fn failure<K: Resource<DynamicType = ()>>(error: watcher::Error) -> Option<Error> {
    let (what, error) = match error {
        watcher::Error::InitialListFailed(error) => ("list", error),
        watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => ("watch", error),
        watcher::Error::WatchError(status) => ("watch", kube::Error::Api(status)),
        watcher::Error::NoResourceVersion => return None,
    };
    Some(Error::failed_to(format!("{what} {}", K::plural(&())))(error))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(job: &str, name: &str) -> Service {
        let metadata = json!({"name": name, "namespace": "ads", "labels": {JOB_LABEL: job}});
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    fn names(cache: &KindCache<Service>, job: &str) -> Vec<String> {
        cache.objects_of(&key(job)).iter().map(|service| service.name_any()).collect()
    }

    fn key(job: &str) -> JobKey {
        JobKey { namespace: "ads".to_owned(), name: job.to_owned() }
    }

    #[test]
    fn a_list_drops_objects_that_went_while_nobody_watched_and_reports_their_job() {
        let cache = KindCache::<Service>::default();
        let list = |services: &[(&str, &str)]| {
            assert!(cache.take(&Event::Init).is_empty());
            for (job, name) in services {
                assert!(cache.take(&Event::InitApply(service(job, name))).is_empty());
            }
            cache.take(&Event::InitDone)
        };
        assert_eq!(list(&[("a", "a-1"), ("b", "b-1")]), [key("a"), key("b")].into());
        assert_eq!(list(&[("b", "b-1")]), [key("a"), key("b")].into());
        assert_eq!((names(&cache, "a"), names(&cache, "b")), (vec![], vec!["b-1".to_owned()]));
    }

    #[test]
    fn changes_are_kept_by_job() {
        let cache = KindCache::<Service>::default();
        cache.take(&Event::InitDone);
        assert_eq!(cache.take(&Event::Apply(service("a", "a-2"))), [key("a")].into());
        // A user changes the label.
        assert_eq!(cache.take(&Event::Apply(service("b", "a-2"))), [key("b")].into());
        assert_eq!((names(&cache, "a"), names(&cache, "b")), (vec![], vec!["a-2".to_owned()]));
    }

    /// A cache whose watch is refused grows old. That is reported, and no longer once the watch works again.
    #[tokio::test(start_paused = true)]
    async fn a_refused_watch_is_reported_and_a_broken_one_is_not() {
        let cache = KindCache::<Service>::default();
        let refuse = |code: u16| {
            let status = kube::core::Status { code, ..kube::core::Status::default() };
            let error = failure::<Service>(watcher::Error::WatchError(Box::new(status)));
            cache.failure.send_replace(error.map(|error| (Instant::now(), error)));
        };
        refuse(403);
        assert!(cache.wait_until_listed().await.unwrap_err().needs_a_person());
        refuse(500);
        let unlisted = cache.wait_until_listed().await.unwrap_err().to_string();
        assert!(unlisted.starts_with("the services of the cluster are not listed"), "{unlisted}");
        cache.take(&Event::InitDone);
        assert!(cache.wait_until_listed().await.is_ok());
        refuse(500);
        assert!(cache.wait_until_listed().await.is_ok());
        refuse(403);
        assert!(cache.wait_until_listed().await.is_err());
        tokio::time::advance(REFUSED).await;
        assert!(cache.wait_until_listed().await.is_ok());
    }
}
