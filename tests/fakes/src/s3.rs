//! An S3-compatible object store for tests, in memory and on a loopback address. It supports put, get with range, head,
//! list (version 2), delete and uploads in parts. Tests can inject faults.
//!
//! It identifies a request by its access key and does not check signatures.

mod answers;
mod objects;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use objects::StoredObjects;

/// The only accepted access key.
pub const KEY: &str = "test-key";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum S3Fault {
    /// It gets status 500, `InternalError`.
    Fails,
    /// It gets status 403, `AccessDenied`.
    Denies,
    /// It gets no answer.
    Hangs,
    /// Its connection is closed without an answer.
    Breaks,
    /// It is carried out, and its connection is closed without an answer.
    LosesAnswer,
    /// It gets half of the answer, then the connection is closed.
    BreaksHalfway,
    /// It gets its answer after this time.
    Late(Duration),
}

/// What a store refuses of uploads in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct S3Limits {
    /// Largest number of a part.
    pub parts: u32,
    /// Fewest bytes of a part that is not the last.
    pub smallest_part: usize,
    /// Most bytes of a part.
    pub largest_part: usize,
    /// Whether all parts but the last must have one size, as for R2.
    pub equal_parts: bool,
}

impl Default for S3Limits {
    /// Those of Amazon, but for the smallest part: many tests have smaller ones.
    fn default() -> Self {
        Self { parts: 10_000, smallest_part: 0, largest_part: 5 << 30, equal_parts: false }
    }
}

/// A store with one bucket. Dropping it ends it.
#[derive(Debug)]
pub struct FakeS3 {
    address: SocketAddr,
    shared: Arc<ServerState>,
    runtime: Option<Runtime>,
}

#[derive(Debug, Default)]
struct ServerState {
    bucket: String,
    /// Whether credentials are not checked.
    is_open: bool,
    objects: Mutex<StoredObjects>,
    fault: Mutex<Option<InjectedFaults>>,
    /// Method and path of each accepted request.
    requests: Mutex<Vec<String>>,
}

#[derive(Clone, Debug)]
struct InjectedFaults {
    fault: S3Fault,
    /// The beginning of `METHOD /bucket/key?query`.
    matching: String,
    /// How many more requests it applies to.
    times: usize,
}

impl FakeS3 {
    /// Starts a store with an empty bucket.
    pub fn start(bucket: &str) -> Self {
        Self::start_with(bucket, false)
    }

    /// Starts a server that everyone may read, as a web server.
    pub fn start_open(bucket: &str) -> Self {
        Self::start_with(bucket, true)
    }

    fn start_with(bucket: &str, is_open: bool) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a thread");
        // Binds without waiting, because the test may run on a runtime of its own.
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        listener.set_nonblocking(true).expect("a port that does not block");
        let address = listener.local_addr().expect("a bound port");
        let shared = Arc::new(ServerState { bucket: bucket.to_owned(), is_open, ..ServerState::default() });
        let service: axum::Router = axum::Router::new().fallback(answers::answer).with_state(Arc::clone(&shared));
        // The task ends with the runtime.
        runtime.spawn(async move { axum::serve(TcpListener::from_std(listener)?, service).await });
        Self { address, shared, runtime: Some(runtime) }
    }

    /// The environment variables with which a process uses this store.
    pub fn environment_variables(&self) -> Vec<(String, String)> {
        let variables = [
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "test-secret".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
        ];
        variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The environment variables with which a process uses this store as Google's and as Azure's.
    pub fn environment_of_others(&self) -> Vec<(String, String)> {
        let variables = [
            ("GOOGLE_BASE_URL", self.base_url()),
            ("GOOGLE_BEARER_TOKEN", KEY.to_owned()),
            ("GOOGLE_ALLOW_HTTP", "true".to_owned()),
            ("AZURE_STORAGE_ENDPOINT", self.base_url()),
            ("AZURE_STORAGE_ACCOUNT_NAME", KEY.to_owned()),
            ("AZURE_STORAGE_ACCOUNT_KEY", "dGVzdC1zZWNyZXQ=".to_owned()),
            ("AZURE_ALLOW_HTTP", "true".to_owned()),
        ];
        variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Injects a fault into the next `times` requests whose `METHOD /bucket/key?query` starts with `matching`.
    pub fn inject_fault(&self, fault: S3Fault, matching: &str, times: usize) {
        *self.shared.fault.lock() = Some(InjectedFaults { fault, matching: matching.to_owned(), times });
    }

    /// From now on, uploads in parts must keep to these limits.
    pub fn set_limits(&self, limits: S3Limits) {
        self.shared.objects.lock().limits = limits;
    }

    pub fn clear_faults(&self) {
        *self.shared.fault.lock() = None;
    }

    pub fn object_keys(&self) -> Vec<String> {
        self.shared.objects.lock().whole.keys().cloned().collect()
    }

    pub fn object_content(&self, key: &str) -> Option<Vec<u8>> {
        self.shared.objects.lock().get(key).map(|object| object.to_vec())
    }

    /// Puts an object, as another program would.
    pub fn put_object(&self, key: &str, content: impl Into<Vec<u8>>) {
        self.shared.objects.lock().put(key, content.into());
    }

    /// Deletes an object, as another program would.
    pub fn remove_object(&self, key: &str) {
        self.shared.objects.lock().delete(key);
    }

    /// Uploads in parts that were neither completed nor aborted.
    pub fn open_uploads(&self) -> usize {
        self.shared.objects.lock().uploads.len()
    }

    /// `METHOD /bucket/key` of every request with the right access key, in order.
    pub fn request_log(&self) -> Vec<String> {
        self.shared.requests.lock().clone()
    }
}

impl Drop for FakeS3 {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
