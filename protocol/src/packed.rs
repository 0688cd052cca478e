//! Flat payloads: the number of rows per table, and ids and values as little-endian bytes. The long fields of the data path's messages
//! are taken out with their field numbers, and sent without a copy.

mod bags;
mod buffers;
mod numbers;

pub use bags::{RequestBags, SegmentBags, pack_bags};
pub use buffers::{PayloadValues, ValueBuffer, ValueBuffers};
pub use numbers::{decode_ids, decode_values, encode_ids, encode_values, ids_as_bytes, ids_of, value_bytes};

use bytes::Bytes;

use crate::TableId;
use crate::datapath::{HintRequest, LookupRequest, LookupResponse, PushRequest};
use numbers::words_of;

/// Consecutive rows of one table in a flat payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub table: TableId,
    pub rows: u32,
    /// Values per row. The receiver checks it (invariant DP-2).
    pub dim: u32,
}

/// A payload whose shape contradicts its message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    #[error("{what}: expected {expected} bytes, found {found}")]
    Length {
        what: &'static str,
        /// Bytes that the rest of the message calls for.
        expected: usize,
        found: usize,
    },
    #[error("unknown value encoding {0}")]
    Encoding(i32),
    #[error("{0} is too large")]
    TooLarge(&'static str),
    #[error("{what} {found} is out of range, expected less than {below}")]
    Range { what: &'static str, found: u32, below: usize },
    /// The entries of a list are not in ascending order.
    #[error("{what} {found} comes after {after}, but the order must be ascending")]
    Order { what: &'static str, found: u32, after: u32 },
}

/// The checked segments of one message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segments(Vec<Segment>);

impl Segments {
    pub fn new(segments: Vec<Segment>) -> Self {
        Self(segments)
    }

    /// The segments in the form of the wire: three u32 each.
    pub fn pack(&self) -> Vec<u8> {
        self.0
            .iter()
            .flat_map(|segment| [segment.table.0, segment.rows, segment.dim])
            .flat_map(u32::to_le_bytes)
            .collect()
    }

    /// Checks the length of the id payload. After an error the message must not be used.
    pub fn unpack(segments: &[u8], ids: &[u8]) -> Result<Self, PackError> {
        expect_length("segments", Some(segments.len().next_multiple_of(12)), segments.len())?;
        let segment = |[table, rows, dim]: &[u32; 3]| Segment { table: TableId(*table), rows: *rows, dim: *dim };
        let segments = Self(words_of(segments).as_chunks::<3>().0.iter().map(segment).collect());
        expect_length("ids", segments.total_rows()?.checked_mul(8), ids.len())?;
        Ok(segments)
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Segment> {
        self.0.iter()
    }

    pub fn total_rows(&self) -> Result<usize, PackError> {
        let sum = self.0.iter().try_fold(0_usize, |sum, segment| sum.checked_add(segment.rows as usize));
        sum.ok_or(PackError::TooLarge("row count"))
    }
}

/// `expected` is `None` if its computation overflowed.
pub fn expect_length(what: &'static str, expected: Option<usize>, found: usize) -> Result<(), PackError> {
    match expected {
        None => Err(PackError::TooLarge(what)),
        Some(expected) if expected != found => Err(PackError::Length { what, expected, found }),
        Some(_) => Ok(()),
    }
}

impl LookupRequest {
    pub fn take_payloads(&mut self) -> [(u32, Bytes); 2] {
        [(3, std::mem::take(&mut self.ids)), (6, std::mem::take(&mut self.bags))]
    }
}

impl HintRequest {
    pub fn take_payloads(&mut self) -> [(u32, Bytes); 1] {
        [(3, std::mem::take(&mut self.ids))]
    }
}

impl LookupResponse {
    pub fn take_payloads(&mut self) -> [(u32, Bytes); 1] {
        [(1, std::mem::take(&mut self.rows))]
    }
}

impl PushRequest {
    pub fn take_payloads(&mut self) -> [(u32, Bytes); 3] {
        let take = std::mem::take;
        [(6, take(&mut self.ids)), (7, take(&mut self.gradients)), (9, take(&mut self.bags))]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    fn segment() -> impl Strategy<Value = Segment> {
        let parts = (any::<u32>(), 0_u32..50, 1_u32..130);
        parts.prop_map(|(table, rows, dim)| Segment { table: TableId(table), rows, dim })
    }

    proptest! {
        #[test]
        fn segments_survive_the_wire(list in prop::collection::vec(segment(), 0..20)) {
            let segments = Segments::new(list);
            let ids = vec![0; segments.total_rows().unwrap() * 8];
            prop_assert_eq!(Segments::unpack(&segments.pack(), &ids), Ok(segments));
        }

        #[test]
        fn any_bytes_are_refused_or_read_but_never_panic(bytes: Vec<u8>, ids: Vec<u8>) {
            if let Ok(segments) = Segments::unpack(&bytes, &ids) {
                prop_assert_eq!(segments.total_rows().unwrap() * 8, ids.len());
            }
        }
    }

    /// Invariant DP-2.
    #[test]
    fn a_missing_id_is_refused() {
        let segments = Segments::new(vec![Segment { table: TableId(0), rows: 2, dim: 4 }]);
        let refused = Segments::unpack(&segments.pack(), &encode_ids(&[1]));
        assert_eq!(refused, Err(PackError::Length { what: "ids", expected: 16, found: 8 }));
    }

    /// The bytes of head and payloads in the form of the wire.
    fn joined(head: &impl Message, payloads: &[(u32, Bytes)]) -> Vec<u8> {
        let mut bytes = head.encode_to_vec();
        for (number, payload) in payloads {
            prost::encode_length_delimiter((*number as usize) << 3 | 2, &mut bytes).unwrap();
            prost::encode_length_delimiter(payload.len(), &mut bytes).unwrap();
            bytes.extend_from_slice(payload);
        }
        bytes
    }

    #[test]
    fn a_payload_is_found_in_its_field() {
        let (ids, bags, rows) = (Bytes::from_static(b"ids"), Bytes::from_static(b"bags"), Bytes::from_static(b"rows"));
        macro_rules! check {
            ($message:expr, $of:ident: $($field:ident)+) => {
                let message = $message;
                let mut head = message.clone();
                let payloads = head.take_payloads();
                $(assert!(head.$field.is_empty());)+
                assert_eq!($of::decode(&joined(&head, &payloads)[..]).unwrap(), message);
            };
        }
        let lookup = LookupRequest { generation: 4, ids: ids.clone(), bags: bags.clone(), ..Default::default() };
        check!(lookup, LookupRequest: ids bags);
        check!(HintRequest { generation: 4, ids: ids.clone(), ..Default::default() }, HintRequest: ids);
        let push = PushRequest { seq: 3, ids, gradients: rows.clone(), bags, ..Default::default() };
        check!(push, PushRequest: ids gradients bags);
        check!(LookupResponse { rows, encoding: 1, created: 2, late: 3 }, LookupResponse: rows);
    }
}
