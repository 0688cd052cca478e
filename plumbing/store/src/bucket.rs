//! One bucket of an S3-compatible store, for threads that may block.
//!
//! Requests run on a runtime of the bucket. The callers are threads of pools, or `main` before it has a runtime.

use std::ffi::OsString;
use std::fmt;
use std::future::Future;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path as Key;
use object_store::{BackoffConfig, ClientOptions, RetryConfig};
use tokio::runtime::{Builder, Runtime};

use crate::error::{explain, no_answer};
use crate::{StoreError, StoreProblem};

/// How often a request is retried if a retry may help, within the timeout. Pauses last up to [`LONGEST_PAUSE`].
const RETRIES: usize = 8;
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Extra time after a request's deadline, in which the bucket's thread reports the end.
const GRACE: Duration = Duration::from_secs(5);

/// Names and values of the variables whose names begin with AWS_.
pub(crate) type Environment = [(String, String)];

/// The variables of this process whose names begin with AWS_.
pub(crate) fn environment() -> Vec<(String, String)> {
    let text_of = |(key, value): (OsString, OsString)| Some((key.into_string().ok()?, value.into_string().ok()?));
    std::env::vars_os().filter_map(text_of).filter(|(key, _)| key.starts_with("AWS_")).collect()
}

/// Variables with credentials, or that say where credentials are, or that none are needed.
const CREDENTIALS: [&str; 5] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
];

/// A bucket, and a connection with the settings of the environment.
pub(crate) struct S3Bucket {
    name: String,
    endpoint: String,
    /// Whether the environment has credentials. If not, the machine's own credentials are requested.
    has_key: bool,
    pub(crate) store: AmazonS3,
    /// Longest time of a request, with all retries.
    timeout: Duration,
    /// The runtime. `None` only while the bucket is dropped.
    runtime: Option<Runtime>,
}

/// A request in progress.
pub(crate) struct PendingRequest<T> {
    what: &'static str,
    key: Key,
    answer: Receiver<Result<T, (StoreProblem, String)>>,
}

impl S3Bucket {
    /// Opens a bucket with the endpoint, region and credentials of the environment. Makes no request.
    ///
    /// # Errors
    /// If the environment contradicts itself, or the machine has no thread or no root certificates.
    pub(crate) fn open(name: &str, timeout: Duration, environment: &Environment) -> Result<Self, StoreError> {
        let variable = |name: &str| environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let endpoint = variable("AWS_ENDPOINT_URL_S3").or_else(|| variable("AWS_ENDPOINT_URL"));
        let reported = endpoint.map_or_else(|| "AWS".to_owned(), without_user);
        let wrong = |reason: String| StoreError::Bucket {
            what: "open",
            place: format!("s3://{name}"),
            endpoint: reported.clone(),
            problem: StoreProblem::Environment,
            reason,
        };
        let http_allowed = variable("AWS_ALLOW_HTTP").is_some_and(|allow| ["true", "1"].contains(&allow));
        if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) && !http_allowed {
            return Err(wrong(
                "the endpoint uses http, which is not encrypted; use https, or set AWS_ALLOW_HTTP=true".to_owned(),
            ));
        }
        // An error means that a provider is installed already. Any provider works.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let options = ClientOptions::new()
            .with_allow_http(http_allowed)
            .with_timeout(timeout)
            .with_connect_timeout(CONNECT.min(timeout));
        let backoff = BackoffConfig { max_backoff: LONGEST_PAUSE, ..BackoffConfig::default() };
        let retry = RetryConfig { backoff, max_retries: RETRIES, retry_timeout: timeout };
        let mut builder = AmazonS3Builder::new();
        for (key, value) in environment {
            // Other AWS_… variables belong to other programs.
            if let Ok(key) = key.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
                builder = builder.with_config(key, value);
            }
        }
        // Not every store supports deletion of several objects in one request.
        let builder = builder.with_bucket_name(name).with_disable_bulk_delete(true);
        let builder = builder.with_client_options(options).with_retry(retry);
        let store = builder.build().map_err(|error| wrong(explain(&error).1))?;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().thread_name("store").build();
        let runtime = runtime.map_err(|error| wrong(format!("cannot start a thread: {error}")))?;
        let has_key = CREDENTIALS.iter().any(|name| variable(name).is_some());
        Ok(Self { name: name.to_owned(), endpoint: reported, has_key, store, timeout, runtime: Some(runtime) })
    }

    /// Starts a request.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        what: &'static str,
        key: &Key,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> PendingRequest<T> {
        let (tell, answer) = channel();
        let timeout = self.timeout;
        let bounded = async move {
            let answer = match tokio::time::timeout(timeout, request).await {
                Ok(answer) => answer.map_err(|error| explain(&error)),
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
    ///
    /// # Errors
    /// The error of the store, with the name of the object.
    pub(crate) fn wait<T>(&self, pending: PendingRequest<T>) -> Result<T, StoreError> {
        let PendingRequest { what, key, answer } = pending;
        let answer = answer.recv_timeout(self.timeout + GRACE).unwrap_or_else(|_| Err(no_answer(self.timeout)));
        answer.map_err(|(problem, reason)| self.error(what, &key, problem, reason))
    }

    /// Starts a request and waits for it.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub(crate) fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        key: &Key,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.wait(self.begin(what, key, request))
    }

    pub(crate) fn error(&self, what: &'static str, key: &Key, problem: StoreProblem, reason: String) -> StoreError {
        let problem = if problem == StoreProblem::Away && !self.has_key { StoreProblem::Keyless } else { problem };
        StoreError::Bucket { what, place: self.place(key), endpoint: self.endpoint.clone(), problem, reason }
    }

    /// The name of the bucket.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The name of an object, `s3://bucket/key`.
    pub(crate) fn place(&self, key: &Key) -> String {
        format!("s3://{}/{key}", self.name)
    }
}

impl fmt::Debug for S3Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The other fields contain credentials.
        f.debug_struct("Bucket").field("name", &self.name).field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Drop for S3Bucket {
    fn drop(&mut self) {
        // The last owner may be an async task, which must not wait for threads.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// An address without user and password.
fn without_user(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let address = rest.split_once('@').map_or(rest, |(_, address)| address);
    if scheme.is_empty() { address.to_owned() } else { format!("{scheme}://{address}") }
}

#[cfg(test)]
mod tests {
    use super::without_user;

    #[test]
    fn passwords_in_an_endpoint_are_not_reported() {
        assert_eq!(without_user("https://user:secret@s3.example:9000/x"), "https://s3.example:9000/x");
        assert_eq!(without_user("http://127.0.0.1:9000"), "http://127.0.0.1:9000");
    }
}
