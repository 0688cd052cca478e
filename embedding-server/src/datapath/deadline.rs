//! Until when a request waits at this server.

use std::time::Duration;

use zagros_plumbing::Deadline;
use zagros_protocol::{Refusal, RefusalKind};
use zagros_table::{RequestDeadline, TableError};

use crate::EmbeddingService;
use crate::tables::nanos;

/// Of the time that the sender waits, the server leaves one part in this many, and no more than [`MOST_SPARED`], for the
/// refusal on its way: the sender then hears what its request waited for.
const SPARED_SHARE: u32 = 8;
const MOST_SPARED: Duration = Duration::from_secs(1);

/// When a request came, and when the server stops waiting for whatever the request waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTimes {
    arrived: u64,
    deadline: RequestDeadline,
}

impl RequestTimes {
    /// Of a request that comes now, whose sender waits until `deadline`.
    pub(crate) fn of(deadline: Deadline) -> Self {
        let (arrived, left) = (nanos(), deadline.left());
        let waits = left - MOST_SPARED.min(left / SPARED_SHARE);
        let end = arrived.saturating_add(u64::try_from(waits.as_nanos()).unwrap_or(u64::MAX));
        Self { arrived, deadline: RequestDeadline::at(end) }
    }

    /// For the tables.
    pub(crate) fn deadline(&self) -> RequestDeadline {
        self.deadline
    }

    /// What a table refused, for the sender.
    pub(crate) fn refuse(&self, service: &EmbeddingService, error: &TableError) -> Refusal {
        let TableError::Late { .. } = error else { return service.refuse(error) };
        let waited = Duration::from_nanos(nanos().saturating_sub(self.arrived));
        let message = format!("embedding server {}: {error}; it came {waited:.1?} ago", service.index());
        Refusal::new(RefusalKind::Deadline, message)
    }
}
