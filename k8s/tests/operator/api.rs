//! A fake API server of Kubernetes: objects, versions, watches, the definition's rules, and the deletion of objects
//! without an owner. An apply keeps the fields of other managers, and replaces lists whole. Time is virtual.

mod http;
mod store;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ::http::{Request, Response};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::client::Body;
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) use store::{ObjectKey, ObjectPart, ObjectStore};

#[derive(Clone, Default)]
pub(crate) struct FakeApi {
    store: Arc<Mutex<ObjectStore>>,
    changed: watch::Sender<u64>,
    load: Arc<ApiLoad>,
}

#[derive(Default)]
pub(crate) struct ApiLoad {
    /// Virtual time that each request takes.
    millis: AtomicU64,
    now: AtomicUsize,
    most: AtomicUsize,
}

impl FakeApi {
    /// From now on each request takes this long, in virtual time.
    pub(crate) fn slow_down(&self, millis: u64) {
        self.load.millis.store(millis, Ordering::Relaxed);
    }

    /// The largest number of requests that were in progress at once.
    pub(crate) fn most_at_once(&self) -> usize {
        self.load.most.load(Ordering::Relaxed)
    }

    async fn delay(&self) {
        let now = self.load.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.load.most.fetch_max(now, Ordering::Relaxed);
        let millis = self.load.millis.load(Ordering::Relaxed);
        if millis > 0 {
            tokio::time::sleep(Duration::from_millis(millis)).await;
        }
        self.load.now.fetch_sub(1, Ordering::Relaxed);
    }

    /// The store, which tests read and change as other controllers and users would.
    pub(crate) fn store(&self) -> MutexGuard<'_, ObjectStore> {
        self.store.lock().unwrap()
    }

    pub(crate) fn announce(&self) {
        let version = self.store().version;
        self.changed.send_if_modified(|message| std::mem::replace(message, version) != version);
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(ApiService(self.clone()), "default")
    }
}

#[derive(Clone)]
struct ApiService(FakeApi);

impl tower_service::Service<Request<Body>> for ApiService {
    type Response = Response<http::ApiBody>;
    type Error = std::convert::Infallible;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let api = self.0.clone();
        Box::pin(async move { Ok(http::answer(&api, request).await) })
    }
}

/// Counts from when the cluster was made.
#[derive(Clone, Copy)]
pub(crate) struct ClusterClock {
    started: Instant,
}

impl Default for ClusterClock {
    fn default() -> Self {
        Self { started: Instant::now() }
    }
}

impl ClusterClock {
    pub(crate) fn now(self) -> Timestamp {
        let start: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
        start + SignedDuration::try_from(self.started.elapsed()).unwrap()
    }

    pub(crate) fn time_after(self, seconds: i64) -> String {
        (self.now() + SignedDuration::from_secs(seconds)).to_string()
    }
}
