//! How many embedding servers the run is to have: `zagros scale` tells the coordinator, and `up` starts what is missing.

use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::watch;
use zagros_coordinator_client::{ControlPlane, GrpcControlPlane};
use zagros_protocol::control::{StatusRequest, StatusResponse};
use zagros_shell::{Exit, Failure};
use zagros_transport::Credentials;

/// How often the coordinator is asked.
const PERIOD: Duration = Duration::from_secs(1);

/// Tells `servers` the number again and again, once somebody has asked for another one. Ends with the task that awaits it.
///
/// # Errors
/// When the address of the coordinator does not parse.
pub(super) async fn follow(
    coordinator: &str,
    credentials: &Credentials,
    timeout: Duration,
    servers: &watch::Sender<u32>,
) -> Result<Infallible, Failure> {
    let control = GrpcControlPlane::connect(coordinator, timeout, credentials);
    let control = control.map_err(|error| Failure::from_error(Exit::Internal, error))?;
    loop {
        tokio::time::sleep(PERIOD).await;
        // A coordinator that is away for a moment comes back.
        let wanted = control.status(StatusRequest {}).await.ok().and_then(|status| wanted(&status));
        if let Some(wanted) = wanted {
            servers.send_replace(wanted);
        }
    }
}

/// The number that was asked for. A run that ends needs no more servers.
fn wanted(status: &StatusResponse) -> Option<u32> {
    status.scale.as_ref().filter(|_| status.state == "training").map(|scale| scale.wanted)
}

#[cfg(test)]
mod tests {
    use zagros_protocol::control::ScaleStatus;

    use super::*;

    #[test]
    fn servers_are_started_for_a_run_that_trains_and_was_scaled() {
        let scale = Some(ScaleStatus { servers: 2, wanted: 4, ..ScaleStatus::default() });
        let status =
            |state: &str, scale| StatusResponse { state: state.to_owned(), scale, ..StatusResponse::default() };
        assert_eq!(wanted(&status("training", scale.clone())), Some(4));
        assert_eq!(wanted(&status("finished", scale)), None);
        assert_eq!(wanted(&status("training", None)), None);
    }
}
