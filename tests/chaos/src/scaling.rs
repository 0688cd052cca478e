//! Changes the numbers of servers and workers of a round, as `zagros scale` and `zagros up` do.

use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;
use zagros_coordinator_client::{ControlPlane, GrpcControlPlane};
use zagros_job::Job;
use zagros_protocol::Refusal;
use zagros_protocol::control::{ScaleRequest, ScaleStatus, StatusRequest};
use zagros_shell::Announcement;
use zagros_shell::launch::{RoleName, WantedRoles};
use zagros_transport::Credentials;

const PERIOD: Duration = Duration::from_millis(300);

pub(crate) struct RoundScaling<'a> {
    pub(crate) run: &'a Path,
    pub(crate) job: &'a Job,
    pub(crate) credentials: Credentials,
    pub(crate) wanted: watch::Sender<WantedRoles>,
}

impl RoundScaling<'_> {
    /// The run gets as many more workers, if it takes so many. Does not wait until it has them.
    pub(crate) async fn scale_to(&self, servers: u32) -> Result<(), Refusal> {
        let workers = workers_beside(self.job, servers);
        self.coordinator()?.scale(ScaleRequest { servers, workers }).await?;
        Ok(())
    }

    /// Tells the supervisor again and again what the coordinator says that there is to be.
    pub(crate) async fn follow(&self) -> Infallible {
        loop {
            tokio::time::sleep(PERIOD).await;
            let Ok(control) = self.coordinator() else { continue };
            // A coordinator that was killed comes back.
            let status = control.status(StatusRequest {}).await.ok();
            if let Some(roles) = status.as_ref().and_then(WantedRoles::from_status) {
                self.wanted.send_replace(roles);
            }
        }
    }

    /// How far the moves are; `None` if nothing moves, or the coordinator is away.
    pub(crate) async fn status(&self) -> Option<ScaleStatus> {
        self.coordinator().ok()?.status(StatusRequest {}).await.ok()?.scale
    }

    fn coordinator(&self) -> Result<GrpcControlPlane, Refusal> {
        let announced = Announcement::read(&RoleName::Coordinator.announcement_file(self.run));
        let address = announced.map(|announced| announced.address).unwrap_or_default();
        GrpcControlPlane::connect(&address, self.job.cluster.timeout, &self.credentials)
            .map_err(|error| Refusal::invalid(error.to_string()))
    }
}

/// 0 leaves their number as it is. It never falls below the first, so that the others can be killed at any time.
fn workers_beside(job: &Job, servers: u32) -> u32 {
    let cluster = &job.cluster;
    let more = servers.saturating_sub(cluster.servers);
    if cluster.most_workers() == cluster.workers { 0 } else { (cluster.workers + more).min(cluster.most_workers()) }
}

#[cfg(test)]
mod tests {
    use zagros_job::Overrides;

    use super::*;

    #[test]
    fn workers_come_and_go_with_servers_as_far_as_the_job_takes_them() {
        let job = |cluster: &str| {
            let text =
                format!("[data]\nformat = 'criteo'\ntrain = 'a'\n[cluster]\nservers = 2\nworkers = 2\n{cluster}\n");
            Job::parse(&text, Path::new("job.toml"), &Overrides::sets(["name=test"])).unwrap()
        };
        let workers_of = |cluster: &str| [2, 3, 4].map(|servers| workers_beside(&job(cluster), servers));
        assert_eq!(workers_of(""), [0, 0, 0]);
        assert_eq!(workers_of("max_workers = 3"), [2, 3, 3]);
        assert_eq!(workers_of("max_workers = 9"), [2, 3, 4]);
    }
}
