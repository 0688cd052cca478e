//! Caches of the watched objects, by job, so that a look asks Kubernetes for no list.
//!
//! A cache may be some milliseconds old. An action that cannot be repeated without harm first asks Kubernetes itself
//! (`JobClient::has_workers`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
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

#[derive(Debug, Default)]
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

    #[must_use]
    pub fn objects_of_job(&self, job: &JobKey) -> JobObjects {
        JobObjects {
            jobs: self.jobs.objects_of(job),
            sets: self.sets.objects_of(job),
            pods: self.pods.objects_of(job),
            services: self.services.objects_of(job),
        }
    }
}

#[must_use]
pub fn scoped_api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

#[derive(Debug, Default)]
struct KindCache<K> {
    state: Mutex<CacheState<K>>,
    turns: watch::Sender<()>,
}

type ByJob<K> = HashMap<JobKey, BTreeMap<String, Arc<K>>>;

#[derive(Debug, Default)]
struct CacheState<K> {
    /// `None` before the first list.
    listed: Option<ByJob<K>>,
    arriving: ByJob<K>,
    /// Why the kind could not be listed or watched, and when that was.
    failure: Option<(Instant, Error)>,
}

impl<K> KindCache<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    async fn fill(&self, api: Api<K>, changed: UnboundedSender<JobKey>) {
        let ours = watcher::Config::default().labels(&format!("app.kubernetes.io/managed-by={MANAGER}"));
        let mut events = std::pin::pin!(watcher(api, ours).default_backoff());
        while let Some(event) = events.next().await {
            let keys = match event {
                Ok(event) => self.state().take(event),
                Err(error) => {
                    debug!(%error, kind = %K::plural(&()), "watch failed");
                    self.state().failure = failure::<K>(error).map(|error| (Instant::now(), error));
                    BTreeSet::new()
                }
            };
            self.turns.send_replace(());
            // Sending fails once the operator ends and no task receives.
            let _ = keys.into_iter().try_for_each(|key| changed.send(key));
        }
    }

    async fn wait_until_listed(&self) -> Result<(), Error> {
        let mut turns = self.turns.subscribe();
        let waited = timeout(TIMEOUT, async {
            loop {
                let verdict = self.state().verdict();
                if let Some(verdict) = verdict {
                    return verdict;
                }
                let _ = turns.changed().await;
            }
        });
        let unlisted = || Err(Error::Unlisted { kind: K::plural(&()).into_owned(), seconds: TIMEOUT.as_secs() });
        waited.await.unwrap_or_else(|_| unlisted())
    }

    fn objects_of(&self, job: &JobKey) -> Vec<Arc<K>> {
        let state = self.state();
        let found = state.listed.as_ref().and_then(|listed| listed.get(job));
        found.map(|objects| objects.values().cloned().collect()).unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, CacheState<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Resource<DynamicType = ()>> CacheState<K> {
    /// Applies an event. Returns the jobs that it concerns.
    fn take(&mut self, event: Event<K>) -> BTreeSet<JobKey> {
        match event {
            Event::Init => self.arriving.clear(),
            Event::InitApply(object) => {
                insert(&mut self.arriving, object);
            }
            Event::InitDone => {
                let now = std::mem::take(&mut self.arriving);
                // Includes jobs without any object left: their objects went while no watch was open.
                let previous = self.listed.replace(now).unwrap_or_default();
                self.failure = None;
                let now = self.listed.iter().flat_map(HashMap::keys);
                return previous.keys().chain(now).cloned().collect();
            }
            Event::Apply(object) => {
                self.failure = None;
                return insert(self.listed.get_or_insert_default(), object).into_iter().collect();
            }
            Event::Delete(object) => {
                self.failure = None;
                return remove(self.listed.get_or_insert_default(), &object).into_iter().collect();
            }
        }
        BTreeSet::new()
    }

    /// Whether the cache can be relied on; `None` while that is unknown.
    fn verdict(&self) -> Option<Result<(), Error>> {
        let refused = self
            .failure
            .as_ref()
            .filter(|(at, error)| error.needs_a_person() && (self.listed.is_none() || at.elapsed() < REFUSED));
        match refused {
            Some((_, error)) => Some(Err(error.clone())),
            None => self.listed.is_some().then_some(Ok(())),
        }
    }
}

fn key_of<K: Resource>(object: &K) -> Option<JobKey> {
    let name = object.labels().get(JOB_LABEL)?.clone();
    Some(JobKey { namespace: object.namespace()?, name })
}

fn insert<K: Resource>(objects: &mut ByJob<K>, mut object: K) -> Option<JobKey> {
    // Managed fields are half of an object, and never read.
    object.managed_fields_mut().clear();
    let key = key_of(&object)?;
    objects.entry(key.clone()).or_default().insert(object.name_any(), Arc::new(object));
    Some(key)
}

fn remove<K: Resource<DynamicType = ()>>(objects: &mut ByJob<K>, object: &K) -> Option<JobKey> {
    let key = key_of(object)?;
    if let Some(of_job) = objects.get_mut(&key) {
        of_job.remove(&object.name_any());
        if of_job.is_empty() {
            objects.remove(&key);
        }
    }
    Some(key)
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
        let labels = json!({JOB_LABEL: job});
        let metadata = json!({"name": name, "namespace": "ads", "labels": labels, "managedFields": [{}]});
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
        assert!(cache.state().verdict().is_none(), "not listed");
        let list = |services: &[(&str, &str)]| {
            assert!(cache.state().take(Event::Init).is_empty());
            for (job, name) in services {
                assert!(cache.state().take(Event::InitApply(service(job, name))).is_empty());
            }
            cache.state().take(Event::InitDone)
        };
        assert_eq!(list(&[("a", "a-1"), ("b", "b-1")]), [key("a"), key("b")].into());
        assert!(cache.state().verdict().is_some_and(|verdict| verdict.is_ok()));
        assert_eq!(list(&[("b", "b-1")]), [key("a"), key("b")].into());
        assert_eq!((names(&cache, "a"), names(&cache, "b")), (vec![], vec!["b-1".to_owned()]));
    }

    #[test]
    fn changes_are_kept_by_job() {
        let cache = KindCache::<Service>::default();
        cache.state().take(Event::InitDone);
        assert_eq!(cache.state().take(Event::Apply(service("a", "a-1"))), [key("a")].into());
        cache.state().take(Event::Apply(service("a", "a-2")));
        assert_eq!(names(&cache, "a"), ["a-1", "a-2"]);
        assert!(cache.objects_of(&key("a"))[0].managed_fields().is_empty());
        assert_eq!(cache.state().take(Event::Delete(service("a", "a-1"))), [key("a")].into());
        assert_eq!(names(&cache, "a"), ["a-2"]);
    }

    /// A cache whose watch is refused grows old. That is reported, and no longer once the watch works again.
    #[tokio::test(start_paused = true)]
    async fn a_refused_watch_is_reported_and_a_broken_one_is_not() {
        let cache = KindCache::<Service>::default();
        let refuse = |code: u16| {
            let status = kube::core::Status { code, ..kube::core::Status::default() };
            let error = failure::<Service>(watcher::Error::WatchError(Box::new(status)));
            cache.state().failure = error.map(|error| (Instant::now(), error));
        };
        refuse(403);
        assert!(cache.wait_until_listed().await.unwrap_err().needs_a_person());
        refuse(500);
        let unlisted = cache.wait_until_listed().await.unwrap_err().to_string();
        assert!(unlisted.starts_with("the services of the cluster are not listed"), "{unlisted}");
        cache.state().take(Event::InitDone);
        assert!(cache.wait_until_listed().await.is_ok());
        refuse(500);
        assert!(cache.wait_until_listed().await.is_ok());
        refuse(403);
        assert!(cache.wait_until_listed().await.is_err());
        tokio::time::advance(REFUSED).await;
        assert!(cache.wait_until_listed().await.is_ok());
    }
}
