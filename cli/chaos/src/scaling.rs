//! Changes the number of embedding servers of a round, as `zagros scale` and `zagros up` do.

use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;
use zagros_coordinator_client::{ControlPlane, GrpcControlPlane};
use zagros_launch::RoleName;
use zagros_protocol::Refusal;
use zagros_protocol::control::{ScaleRequest, ScaleStatus, StatusRequest};
use zagros_shell::Announcement;
use zagros_transport::Credentials;

/// The coordinator of a round, and the supervisor that starts servers.
pub(crate) struct RoundScaling<'a> {
    pub(crate) run: &'a Path,
    pub(crate) credentials: Credentials,
    pub(crate) timeout: Duration,
    /// Tells the supervisor how many servers there are to be.
    pub(crate) servers: watch::Sender<u32>,
}

impl RoundScaling<'_> {
    /// Asks for so many servers. Does not wait until the run has them.
    ///
    /// # Errors
    /// If the coordinator refuses, or does not answer.
    pub(crate) async fn scale_to(&self, servers: u32) -> Result<(), Refusal> {
        self.coordinator()?.scale(ScaleRequest { servers, workers: 0 }).await?;
        self.servers.send_replace(servers);
        Ok(())
    }

    /// How far the moves are; `None` if nothing moves, or the coordinator is away.
    pub(crate) async fn status(&self) -> Option<ScaleStatus> {
        self.coordinator().ok()?.status(StatusRequest {}).await.ok()?.scale
    }

    fn coordinator(&self) -> Result<GrpcControlPlane, Refusal> {
        let announced = Announcement::read(&RoleName::Coordinator.announcement(self.run));
        let address = announced.map(|announced| announced.address).unwrap_or_default();
        GrpcControlPlane::connect(&address, self.timeout, &self.credentials)
            .map_err(|error| Refusal::invalid(error.to_string()))
    }
}
