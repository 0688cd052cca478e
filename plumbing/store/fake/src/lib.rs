//! An S3-compatible object store in memory, on loopback, for tests: put, get with range, head, list (version 2), delete
//! and uploads in parts. It can be made to fail.
//!
//! It knows a request by the access key that it names and does not check signatures.

mod answers;
mod objects;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use objects::Objects;

/// The one access key that is let in.
pub const KEY: &str = "test-key";

/// What requests meet with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Status 500, `InternalError`.
    Fails,
    /// Status 403, `AccessDenied`.
    Denies,
    /// No answer.
    Hangs,
    /// The connection is cut without an answer.
    Breaks,
    /// Half of what was asked for, then the connection is cut.
    BreaksHalfway,
    /// The answer comes after this time.
    Late(Duration),
}

/// A store of one bucket. It ends when it is dropped.
#[derive(Debug)]
pub struct FakeS3 {
    address: SocketAddr,
    shared: Arc<ServerState>,
    runtime: Option<Runtime>,
}

#[derive(Debug)]
struct ServerState {
    bucket: String,
    objects: Mutex<Objects>,
    fault: Mutex<Option<InjectedFaults>>,
    /// Method and path of each request that was let in.
    requests: Mutex<Vec<String>>,
}

/// A fault, and which requests meet it.
#[derive(Clone, Debug)]
struct InjectedFaults {
    fault: Fault,
    /// Start of the method, space, path.
    matching: String,
    /// How many more.
    times: usize,
}

impl FakeS3 {
    /// Starts one with an empty bucket.
    ///
    /// # Panics
    /// When the machine has no port or thread for it.
    #[must_use]
    pub fn start(bucket: &str) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a thread");
        // Not waited for: the test may run on a runtime of its own.
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        listener.set_nonblocking(true).expect("a port that does not block");
        let address = listener.local_addr().expect("a bound port");
        let shared = ServerState {
            bucket: bucket.to_owned(),
            objects: Mutex::default(),
            fault: Mutex::default(),
            requests: Mutex::default(),
        };
        let shared = Arc::new(shared);
        let service = answers::router(Arc::clone(&shared));
        // Ends with the runtime.
        runtime.spawn(async move { axum::serve(TcpListener::from_std(listener)?, service).await });
        Self { address, shared, runtime: Some(runtime) }
    }

    /// What a process needs in its environment to use it.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        let variables = [
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "test-secret".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
        ];
        variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The next `times` requests whose `METHOD /bucket/key` starts with `matching` meet this fault.
    pub fn inject(&self, fault: Fault, matching: &str, times: usize) {
        *self.shared.fault.lock() = Some(InjectedFaults { fault, matching: matching.to_owned(), times });
    }

    /// No more faults.
    pub fn heal(&self) {
        *self.shared.fault.lock() = None;
    }

    /// Keys of all objects, sorted.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.shared.objects.lock().keys()
    }

    /// An object's content.
    #[must_use]
    pub fn object(&self, key: &str) -> Option<Vec<u8>> {
        self.shared.objects.lock().get(key).map(|object| object.to_vec())
    }

    /// Puts an object there, as someone else would.
    pub fn put(&self, key: &str, content: impl Into<Vec<u8>>) {
        self.shared.objects.lock().put(key, content.into());
    }

    /// Takes an object away, as someone else would.
    pub fn remove(&self, key: &str) {
        self.shared.objects.lock().delete(key);
    }

    /// Uploads in parts that were neither completed nor taken back.
    #[must_use]
    pub fn open_uploads(&self) -> usize {
        self.shared.objects.lock().open_uploads()
    }

    /// `METHOD /bucket/key` of every request so far that named the right key.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
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
