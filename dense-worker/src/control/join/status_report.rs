//! Reports to the coordinator what holds a worker up, also while no step is made: slow servers, and its disk.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;
use zagros_coordinator_client::{Membership, Waits};
use zagros_embedding_client::{EmbeddingClient, UnansweredRequests};
use zagros_plumbing::metrics::DiskSpace;
use zagros_protocol::control::{Disk, ServerWait};

const PERIOD: Duration = Duration::from_millis(500);
/// Waits shorter than this are how it should be.
const WORTH_REPORTING: Duration = Duration::from_secs(1);

/// Reports while it lives.
#[derive(Debug)]
pub(crate) struct StatusReport {
    _task: AbortOnDropHandle<()>,
}

impl StatusReport {
    /// Of the servers of `client`, and of the disk below `folder`.
    pub(crate) fn start(
        client: &Arc<EmbeddingClient>,
        membership: &Arc<Membership>,
        waits: &Waits,
        folder: Option<PathBuf>,
    ) -> Self {
        // What these hold must not live as long as a task that sleeps.
        let (client, membership, waits) = (Arc::downgrade(client), Arc::downgrade(membership), waits.clone());
        let task = tokio::spawn(async move {
            loop {
                let (Some(client), Some(membership)) = (client.upgrade(), membership.upgrade()) else { return };
                let requests = worth_reporting(&client.unanswered_requests());
                waits.set_requests(requests.clone());
                membership.set_waits(requests);
                if let Some(Ok(DiskSpace { free, size })) = folder.as_deref().map(DiskSpace::measure) {
                    membership.set_disk(Disk { free_bytes: free, size_bytes: size });
                }
                drop((client, membership));
                tokio::time::sleep(PERIOD).await;
            }
        });
        Self { _task: AbortOnDropHandle::new(task) }
    }
}

fn worth_reporting(waiting: &[UnansweredRequests]) -> Vec<ServerWait> {
    let wait = |waiting: &UnansweredRequests| ServerWait {
        server: waiting.server,
        lookups: u32::try_from(waiting.lookups).unwrap_or(u32::MAX),
        pushes: u32::try_from(waiting.pushes).unwrap_or(u32::MAX),
        oldest_ms: u64::try_from(waiting.oldest.as_millis()).unwrap_or(u64::MAX),
    };
    waiting.iter().filter(|waiting| waiting.oldest >= WORTH_REPORTING).map(wait).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_reported_once_it_is_long() {
        let waiting = |server, millis| UnansweredRequests {
            server,
            lookups: 1,
            pushes: 2,
            oldest: Duration::from_millis(millis),
        };
        let reported = worth_reporting(&[waiting(0, 999), waiting(3, 1500)]);
        assert_eq!(reported, [ServerWait { server: 3, lookups: 1, pushes: 2, oldest_ms: 1500 }]);
    }
}
