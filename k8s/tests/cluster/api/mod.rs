//! A stand-in for Kubernetes' API server: keeps objects, versions and watches; runs the definition's rules; collects
//! what has lost its owner. Fields of other managers survive an apply, lists are replaced whole.

mod http;
mod merge;
mod selector;
mod store;

use std::sync::{Arc, Mutex, MutexGuard};

use ::http::{Request, Response};
use kube::Client;
use kube::client::Body;
use tokio::sync::watch;

pub(crate) use store::{Key, Part, Store};

/// The server. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Api {
    store: Arc<Mutex<Store>>,
    changed: watch::Sender<u64>,
}

impl Api {
    pub(crate) fn new() -> Self {
        Self { store: Arc::default(), changed: watch::Sender::new(0) }
    }

    /// What it holds, to look at and to change as other controllers and users do.
    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }

    /// Tells watches that something changed.
    pub(crate) fn announce(&self) {
        let version = self.store().version;
        self.changed.send_if_modified(|told| std::mem::replace(told, version) != version);
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(Server(self.clone()), "default")
    }
}

/// As a service that a client sends requests to.
#[derive(Clone)]
struct Server(Api);

impl tower_service::Service<Request<Body>> for Server {
    type Response = Response<http::Answer>;
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
