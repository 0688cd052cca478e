//! Asks the coordinator for other numbers of embedding servers and dense workers.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use zagros_coordinator_client::{ControlPlane, GrpcControlPlane};
use zagros_protocol::Refusal;
use zagros_protocol::control::ScaleRequest;
use zagros_transport::Credentials;

use crate::names::RunAttempt;

const TIMEOUT: Duration = Duration::from_secs(5);

/// Asks the coordinator of an attempt for these numbers, with the proof that this is allowed. A number that is 0 stays.
pub type CoordinatorScale = Arc<
    dyn Fn(RunAttempt, Credentials, ScaleRequest) -> Pin<Box<dyn Future<Output = Result<(), Refusal>> + Send>>
        + Send
        + Sync,
>;

/// Asks coordinators by the names of their Services.
#[must_use]
pub fn scale_by_coordinator() -> CoordinatorScale {
    Arc::new(|attempt: RunAttempt, credentials: Credentials, wanted: ScaleRequest| {
        Box::pin(async move { ask_for_scale(&attempt.coordinator_address(), &credentials, wanted).await })
    })
}

/// `address` is `host:port`. The same call again changes nothing.
pub async fn ask_for_scale(address: &str, credentials: &Credentials, wanted: ScaleRequest) -> Result<(), Refusal> {
    let control = GrpcControlPlane::connect(address, TIMEOUT, credentials);
    let control = control.map_err(|error| Refusal::invalid(error.to_string()))?;
    control.scale(wanted).await.map(|_| ())
}
