//! The cluster's time: virtual, as in its tests.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Counts from when the cluster was made.
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

    pub(crate) fn time_after(self, seconds: i64) -> String {
        (self.now() + SignedDuration::from_secs(seconds)).to_string()
    }
}
