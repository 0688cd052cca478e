//! Flat payloads: how many rows of which table, and ids and values in little-endian bytes.

mod bags;
mod buffers;
mod numbers;

pub use bags::{Bags, SegmentBags, pack_bags};
pub use buffers::{Buffer, Buffers, Values};
pub use numbers::{decode_ids, decode_values, encode_ids, encode_values, ids_as_bytes, ids_of, value_bytes};

use crate::TableId;

/// A run of rows of one table inside a flat payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The table the rows belong to.
    pub table: TableId,
    /// How many rows.
    pub rows: u32,
    /// Values per row, stated so that the receiver can check it (invariant DP-2).
    pub dim: u32,
}

/// A payload that does not have the shape it claims.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// Byte lengths disagree.
    #[error("{what}: expected {expected} bytes, found {found}")]
    Length {
        /// Which payload.
        what: &'static str,
        /// Bytes implied by the rest of the message.
        expected: usize,
        /// Bytes that came.
        found: usize,
    },
    /// The sender did not say how values are written.
    #[error("unknown value encoding {0}")]
    Encoding(i32),
    /// Sizes that overflow when multiplied.
    #[error("{0} is too large")]
    TooLarge(&'static str),
    /// A position beyond what it counts.
    #[error("{what} {found} is out of range, expected less than {below}")]
    Range {
        /// What is counted.
        what: &'static str,
        /// The position that came.
        found: u32,
        /// The first that is too large.
        below: usize,
    },
    /// A list that is not in order.
    #[error("{what} {found} comes after {after}, but they must ascend")]
    Order {
        /// What is listed.
        what: &'static str,
        /// The entry at fault.
        found: u32,
        /// The entry before it.
        after: u32,
    },
}

/// The segments of one message, checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segments(Vec<Segment>);

impl Segments {
    /// Takes segments as they are.
    #[must_use]
    pub fn new(segments: Vec<Segment>) -> Self {
        Self(segments)
    }

    /// Bytes as the wire has them: three u32 per segment.
    #[must_use]
    pub fn pack(&self) -> Vec<u8> {
        self.0
            .iter()
            .flat_map(|segment| [segment.table.0, segment.rows, segment.dim])
            .flat_map(u32::to_le_bytes)
            .collect()
    }

    /// The reverse of [`Self::pack`], which also checks the id payload against the row counts.
    ///
    /// # Errors
    /// When lengths disagree or overflow: nothing of the message may be used then.
    pub fn unpack(segments: &[u8], ids: &[u8]) -> Result<Self, PackError> {
        let (words, rest) = segments.as_chunks::<4>();
        if !rest.is_empty() || words.len() % 3 != 0 {
            let whole = segments.len().next_multiple_of(12);
            return Err(PackError::Length { what: "segments", expected: whole, found: segments.len() });
        }
        let word = |index: usize| u32::from_le_bytes(words[index]);
        let segments = (0..words.len() / 3)
            .map(|s| Segment { table: TableId(word(3 * s)), rows: word(3 * s + 1), dim: word(3 * s + 2) })
            .collect();
        let segments = Self(segments);
        expect_length("ids", segments.total_rows()?.checked_mul(8), ids.len())?;
        Ok(segments)
    }

    /// The segments in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Segment> {
        self.0.iter()
    }

    /// Sum of rows.
    ///
    /// # Errors
    /// On overflow.
    pub fn total_rows(&self) -> Result<usize, PackError> {
        let sum = self.0.iter().try_fold(0_usize, |sum, segment| sum.checked_add(segment.rows as usize));
        sum.ok_or(PackError::TooLarge("row count"))
    }

    /// Sum of rows × dim: values in the payload.
    ///
    /// # Errors
    /// On overflow.
    pub fn total_values(&self) -> Result<usize, PackError> {
        let values = |segment: &Segment| (segment.rows as usize).checked_mul(segment.dim as usize);
        let sum = self.0.iter().try_fold(0_usize, |sum, segment| sum.checked_add(values(segment)?));
        sum.ok_or(PackError::TooLarge("value count"))
    }
}

/// Checks a payload's length against what the message says it holds.
///
/// # Errors
/// When they differ, or when `expected` had overflowed.
pub fn expect_length(what: &'static str, expected: Option<usize>, found: usize) -> Result<(), PackError> {
    match expected {
        None => Err(PackError::TooLarge(what)),
        Some(expected) if expected != found => Err(PackError::Length { what, expected, found }),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn segment() -> impl Strategy<Value = Segment> {
        (any::<u32>(), 0_u32..50, 1_u32..130).prop_map(|(table, rows, dim)| Segment {
            table: TableId(table),
            rows,
            dim,
        })
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
}
