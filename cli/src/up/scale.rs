//! What the run is to have: `zagros scale` tells the coordinator, and `up` starts what is missing and ends what is left over.

use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::watch;
use zagros_coordinator_client::{ControlPlane, GrpcControlPlane};
use zagros_launch::WantedRoles;
use zagros_protocol::control::StatusRequest;
use zagros_shell::{Exit, Failure};
use zagros_transport::Credentials;

const PERIOD: Duration = Duration::from_secs(1);

/// Tells `wanted` again and again what the run is to have, once a scale request has asked for other numbers. Ends with the task
/// that awaits it.
pub(super) async fn follow(
    coordinator: &str,
    credentials: &Credentials,
    timeout: Duration,
    wanted: &watch::Sender<WantedRoles>,
) -> Result<Infallible, Failure> {
    let control = GrpcControlPlane::connect(coordinator, timeout, credentials);
    let control = control.map_err(|error| Failure::from_error(Exit::Internal, error))?;
    loop {
        tokio::time::sleep(PERIOD).await;
        // A coordinator that is away for a moment comes back.
        let status = control.status(StatusRequest {}).await.ok();
        if let Some(roles) = status.as_ref().and_then(WantedRoles::from_status) {
            wanted.send_replace(roles);
        }
    }
}
