//! The time of the cluster: virtual, like that of its tests.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// From when a cluster was made.
#[derive(Clone, Copy)]
pub(crate) struct ClusterClock {
    started: Instant,
}

impl Default for ClusterClock {
    fn default() -> Self {
        Self { started: Instant::now() }
    }
}

impl ClusterClock {
    pub(crate) fn now(self) -> Timestamp {
        let start: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
        start + SignedDuration::try_from(self.started.elapsed()).unwrap()
    }

    pub(crate) fn after(self, seconds: i64) -> String {
        (self.now() + SignedDuration::from_secs(seconds)).to_string()
    }
}
