//! A request at this server: its deadline, and the rows that it names.

use std::borrow::Cow;
use std::time::Duration;

use zagros_plumbing::Deadline;
use zagros_plumbing::grpc::MAX_MESSAGE_BYTES;
use zagros_protocol::packed::{RequestBags, ids_of};
use zagros_protocol::{Refusal, RefusalKind, Segments};
use zagros_table::{RequestDeadline, RequestPart, TableError};

use crate::EmbeddingService;
use crate::tables::monotonic_nanos;

pub(crate) struct RequestRows<'a> {
    pub(super) segments: Segments,
    ids: Cow<'a, [u64]>,
    pub(super) bags: RequestBags<'a>,
}

impl<'a> RequestRows<'a> {
    /// Refuses lengths that disagree (invariant DP-2).
    pub(crate) fn unpack(segments: &[u8], ids: &'a [u8], bags: &'a [u8]) -> Result<Self, Refusal> {
        let segments = Segments::unpack(segments, ids)?;
        let bags = RequestBags::unpack(bags, &segments)?;
        Ok(Self { segments, ids: ids_of(ids), bags })
    }

    pub(crate) fn table_parts(&self) -> Vec<RequestPart<'_>> {
        let mut rest = &self.ids[..];
        let mut part = |table: u32, dim: u32, rows: usize| {
            let (ids, after) = rest.split_at(rows);
            rest = after;
            RequestPart { table, dim, ids }
        };
        self.segments.iter().map(|segment| part(segment.table.0, segment.dim, segment.rows as usize)).collect()
    }

    /// Of the answer, or of the gradients of a push. Refuses more values, here or of all rows, than fit into a message.
    pub(crate) fn value_count(&self, what: &str, values: usize, value_bytes: usize) -> Result<usize, Refusal> {
        if !self.bags.is_empty() {
            refuse_oversize("the rows of the bags", values, size_of::<f32>())?;
        }
        let wanted = self.bags.wanted_values(&self.segments)?;
        refuse_oversize(what, wanted, value_bytes)?;
        Ok(wanted)
    }
}

/// Refuses a message that exceeds the limit of the wire, before any memory is allocated for it.
pub(crate) fn refuse_oversize(what: &str, values: usize, value_bytes: usize) -> Result<(), Refusal> {
    match values.checked_mul(value_bytes) {
        Some(bytes) if bytes <= MAX_MESSAGE_BYTES => Ok(()),
        _ => Err(Refusal::invalid(format!(
            "{what} would be {values} values of {value_bytes} bytes, more than the {} MiB of a message; \
             use smaller batches or more servers",
            MAX_MESSAGE_BYTES >> 20
        ))),
    }
}

/// The server stops waiting before the sender gives up: by one part in this many of the sender's timeout, and by at most
/// [`MOST_SPARED`]. So the refusal arrives in time, and the sender learns what its request waited for.
const SPARED_SHARE: u32 = 8;
const MOST_SPARED: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTimes {
    arrived: u64,
    pub(crate) deadline: RequestDeadline,
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

    pub(crate) fn table_refusal(&self, service: &EmbeddingService, error: &TableError) -> Refusal {
        let TableError::Late { .. } = error else { return service.table_refusal(error) };
        let waited = Duration::from_nanos(monotonic_nanos().saturating_sub(self.arrived));
        let message = format!("embedding server {}: {error}; it came {waited:.1?} ago", service.server_index());
        Refusal::new(RefusalKind::Deadline, message)
    }
}

#[cfg(test)]
mod tests {
    use zagros_protocol::packed::encode_ids;
    use zagros_protocol::{RefusalKind, Segment, TableId};

    use super::*;

    #[test]
    fn parts_divide_the_ids_in_order() {
        let segment = |table, rows, dim| Segment { table: TableId(table), rows, dim };
        let segments = Segments::new(vec![segment(4, 2, 8), segment(1, 0, 3), segment(2, 1, 5)]).pack();
        let ids = encode_ids(&[7, 8, 9]);
        let rows = RequestRows::unpack(&segments, &ids, &[]).unwrap();
        let part = |table, dim, ids| RequestPart { table, dim, ids };
        assert_eq!(rows.table_parts(), [part(4, 8, &[7, 8]), part(1, 3, &[]), part(2, 5, &[9])]);
        assert_eq!(RequestRows::unpack(&segments, &ids[8..], &[]).err().unwrap().kind, RefusalKind::Invalid);
    }

    #[test]
    fn a_message_beyond_the_limit_is_refused_even_when_its_size_overflows() {
        assert_eq!(refuse_oversize("the answer", MAX_MESSAGE_BYTES / 4, 4), Ok(()));
        let refusal = refuse_oversize("the answer", MAX_MESSAGE_BYTES / 4 + 1, 4).unwrap_err();
        assert!(refusal.message.contains("the answer") && refusal.message.contains("256 MiB"), "{refusal}");
        assert!(refuse_oversize("the answer", usize::MAX, 4).is_err());
    }
}
