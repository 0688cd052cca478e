//! One bucket of an object store, for threads that may block.
//!
//! Requests run on a runtime of the bucket. The callers are threads of pools, or `main` before it has a runtime.

use std::ffi::OsString;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use futures::TryStreamExt;
use object_store::path::Path as Key;
use object_store::{BackoffConfig, ClientOptions, ObjectMeta, ObjectStore, RetryConfig};
use tokio::runtime::{Builder, Runtime};

use crate::error::{explain_error, no_answer};
use crate::stores::{Environment, OpenStore, StoreKind};
use crate::{StoreError, StoreProblem, hide_secrets};

/// How often a request is retried if a retry may help, within the timeout. Pauses last up to [`LONGEST_PAUSE`].
const RETRIES: usize = 8;
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
const CONNECT: Duration = Duration::from_secs(5);
/// Extra time after a request's deadline, in which the bucket's thread reports the end.
const GRACE: Duration = Duration::from_secs(5);

pub(crate) fn store_variables() -> Vec<(String, String)> {
    let text_of = |(key, value): (OsString, OsString)| Some((key.into_string().ok()?, value.into_string().ok()?));
    std::env::vars_os().filter_map(text_of).filter(|(key, _)| StoreKind::is_variable(key)).collect()
}

/// A bucket, and a connection with the settings of the environment.
pub(crate) struct ObjectBucket {
    name: String,
    endpoint: String,
    /// Whether the environment has credentials. If not, the machine's own credentials are requested.
    has_key: bool,
    store: Arc<dyn ObjectStore>,
    /// Longest time of a request, with all retries.
    timeout: Duration,
    /// The runtime. `None` only while the bucket is dropped.
    runtime: Option<Runtime>,
}

pub(crate) struct PendingRequest<T> {
    what: &'static str,
    key: Key,
    answer: Receiver<Result<T, (StoreProblem, String)>>,
}

impl ObjectBucket {
    /// Opens a bucket with the endpoint, region and credentials of the environment, by its root: `s3://bucket`,
    /// `https://host` and so on. Makes no request.
    pub(crate) fn open(root: &str, timeout: Duration, environment: &Environment) -> Result<Self, StoreError> {
        let name = hide_secrets(root);
        // The query of a URL may hold a signature.
        let name = name.split('?').next().unwrap_or_default();
        let wrong = |(endpoint, reason): (String, String)| StoreError::Bucket {
            what: "open",
            place: name.to_owned(),
            endpoint,
            problem: StoreProblem::Environment,
            reason,
        };
        // An error means that a provider is installed already. Any provider works.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let options = ClientOptions::new().with_timeout(timeout).with_connect_timeout(CONNECT.min(timeout));
        let backoff = BackoffConfig { max_backoff: LONGEST_PAUSE, ..BackoffConfig::default() };
        let retry = RetryConfig { backoff, max_retries: RETRIES, retry_timeout: timeout };
        let OpenStore { store, endpoint, has_key } =
            OpenStore::open(root, environment, options, retry).map_err(wrong)?;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().thread_name("store").build();
        let runtime = runtime.map_err(|error| wrong((endpoint.clone(), format!("cannot start a thread: {error}"))))?;
        Ok(Self { name: name.to_owned(), endpoint, has_key, store, timeout, runtime: Some(runtime) })
    }

    /// `request` makes the request to the store for the object of this key.
    pub(crate) fn begin_request<T: Send + 'static, F: Future<Output = object_store::Result<T>> + Send + 'static>(
        &self,
        what: &'static str,
        key: &Key,
        request: impl FnOnce(Arc<dyn ObjectStore>, Key) -> F,
    ) -> PendingRequest<T> {
        let (tell, answer) = channel();
        let (timeout, request) = (self.timeout, request(Arc::clone(&self.store), key.clone()));
        let bounded = async move {
            let answer = match tokio::time::timeout(timeout, request).await {
                Ok(answer) => answer.map_err(|error| explain_error(&error)),
                Err(_) => Err(no_answer(timeout)),
            };
            // The caller may have stopped waiting.
            let _ = tell.send(answer);
        };
        if let Some(runtime) = &self.runtime {
            runtime.spawn(bounded);
        }
        PendingRequest { what, key: key.clone(), answer }
    }

    /// Waits for a request until its deadline (invariant WT-1).
    pub(crate) fn await_answer<T>(&self, pending: PendingRequest<T>) -> Result<T, StoreError> {
        let PendingRequest { what, key, answer } = pending;
        let answer = answer.recv_timeout(self.timeout + GRACE).unwrap_or_else(|_| Err(no_answer(self.timeout)));
        answer.map_err(|(problem, reason)| self.object_error(what, &key, problem, reason))
    }

    pub(crate) fn run_request<T: Send + 'static, F: Future<Output = object_store::Result<T>> + Send + 'static>(
        &self,
        what: &'static str,
        key: &Key,
        request: impl FnOnce(Arc<dyn ObjectStore>, Key) -> F,
    ) -> Result<T, StoreError> {
        self.await_answer(self.begin_request(what, key, request))
    }

    pub(crate) fn list_all(&self, prefix: &Key) -> Result<Vec<ObjectMeta>, StoreError> {
        self.run_request("list", prefix, |store, key| async move { store.list(Some(&key)).try_collect().await })
    }

    pub(crate) fn object_error(
        &self,
        what: &'static str,
        key: &Key,
        problem: StoreProblem,
        reason: String,
    ) -> StoreError {
        let problem = if problem == StoreProblem::Away && !self.has_key { StoreProblem::Keyless } else { problem };
        StoreError::Bucket { what, place: self.object_place(key), endpoint: self.endpoint.clone(), problem, reason }
    }

    /// Its root, without the query of a URL.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The name of an object, such as `s3://bucket/key`.
    pub(crate) fn object_place(&self, key: &Key) -> String {
        format!("{}/{key}", self.name)
    }
}

impl fmt::Debug for ObjectBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The other fields contain credentials.
        f.debug_struct("Bucket").field("name", &self.name).field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Drop for ObjectBucket {
    fn drop(&mut self) {
        // The last owner may be an async task, which must not wait for threads.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
