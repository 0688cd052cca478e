//! The part that lookup and push requests share: which rows of which tables.

use std::borrow::Cow;

use zagros_plumbing::grpc::MAX_MESSAGE_BYTES;
use zagros_protocol::packed::ids_of;
use zagros_protocol::{Refusal, Segments};
use zagros_table::Part;

/// Segments and ids of a request, their lengths checked against each other.
pub(crate) struct Rows<'a> {
    segments: Segments,
    ids: Cow<'a, [u64]>,
}

impl<'a> Rows<'a> {
    /// Reads the payloads.
    ///
    /// # Errors
    /// When their lengths disagree (invariant DP-2).
    pub(crate) fn unpack(segments: &[u8], ids: &'a [u8]) -> Result<Self, Refusal> {
        Ok(Self { segments: Segments::unpack(segments, ids)?, ids: ids_of(ids) })
    }

    /// The ids table by table.
    pub(crate) fn parts(&self) -> Vec<Part<'_>> {
        let mut rest = &self.ids[..];
        let mut part = |table: u32, dim: u32, rows: usize| {
            let (ids, after) = rest.split_at(rows);
            rest = after;
            Part { table, dim, ids }
        };
        self.segments.iter().map(|segment| part(segment.table.0, segment.dim, segment.rows as usize)).collect()
    }
}

/// Refuses a message of more bytes than either end of the wire accepts, before memory is taken for it.
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
        let rows = Rows::unpack(&segments, &ids).unwrap();
        let part = |table, dim, ids| Part { table, dim, ids };
        assert_eq!(rows.parts(), [part(4, 8, &[7, 8]), part(1, 3, &[]), part(2, 5, &[9])]);
        assert_eq!(Rows::unpack(&segments, &ids[8..]).err().unwrap().kind, RefusalKind::Invalid);
    }

    #[test]
    fn a_message_beyond_the_limit_is_refused_even_when_its_size_overflows() {
        assert_eq!(refuse_oversize("the answer", MAX_MESSAGE_BYTES / 4, 4), Ok(()));
        let refusal = refuse_oversize("the answer", MAX_MESSAGE_BYTES / 4 + 1, 4).unwrap_err();
        assert!(refusal.message.contains("the answer") && refusal.message.contains("256 MiB"), "{refusal}");
        assert!(refuse_oversize("the answer", usize::MAX, 4).is_err());
    }
}
