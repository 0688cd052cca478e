//! The deadline of a request at this server.

use std::time::Duration;

use zagros_plumbing::Deadline;
use zagros_protocol::{Refusal, RefusalKind};
use zagros_table::{RequestDeadline, TableError};

use crate::EmbeddingService;
use crate::tables::monotonic_nanos;

/// The server stops waiting before the sender gives up: by one part in this many of the sender's timeout, and by at most
/// [`MOST_SPARED`]. So the refusal arrives in time, and the sender learns what its request waited for.
const SPARED_SHARE: u32 = 8;
const MOST_SPARED: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTimes {
    arrived: u64,
    deadline: RequestDeadline,
}

impl RequestTimes {
    /// The times of a request that arrives now and whose sender waits until `deadline`.
    pub(crate) fn new(deadline: Deadline) -> Self {
        let (arrived, left) = (monotonic_nanos(), deadline.time_left());
        let waits = left - MOST_SPARED.min(left / SPARED_SHARE);
        let end = arrived.saturating_add(u64::try_from(waits.as_nanos()).unwrap_or(u64::MAX));
        Self { arrived, deadline: RequestDeadline::new(end) }
    }

    /// How much longer the server waits for what the request needs.
    pub(crate) fn server_deadline(&self, deadline: Deadline) -> Deadline {
        let left = deadline.time_left();
        Deadline::from_now(left - MOST_SPARED.min(left / SPARED_SHARE))
    }

    pub(crate) fn table_deadline(&self) -> RequestDeadline {
        self.deadline
    }

    pub(crate) fn table_refusal(&self, service: &EmbeddingService, error: &TableError) -> Refusal {
        let TableError::Late { .. } = error else { return service.table_refusal(error) };
        let waited = Duration::from_nanos(monotonic_nanos().saturating_sub(self.arrived));
        let message = format!("embedding server {}: {error}; it came {waited:.1?} ago", service.server_index());
        Refusal::new(RefusalKind::Deadline, message)
    }
}
