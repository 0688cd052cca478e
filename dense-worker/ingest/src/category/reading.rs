//! The category of a cell, and of a combination of cells. Performance-critical: no allocation.

use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3Default;
use zagros_job::{ColumnReading, DatePart};

use super::date::date_part;
use crate::hash_value;
use crate::parse::number::{format_digits, parse_number};

pub(crate) fn missing_id() -> u64 {
    hash_value(b"")
}

#[derive(Clone, Debug)]
pub(crate) enum CellReading {
    Text,
    /// The number of the range, whose edges ascend.
    Buckets(Arc<[f64]>),
    Date(DatePart),
}

impl CellReading {
    pub(crate) fn new(reading: &ColumnReading) -> Self {
        match reading {
            ColumnReading::Text => Self::Text,
            ColumnReading::Buckets(buckets) => Self::Buckets(buckets.edges().into()),
            ColumnReading::Date(part) => Self::Date(*part),
        }
    }

    /// The id of a cell's text, which is empty if it is missing; `None` if the text is no number or no date.
    #[inline]
    pub(crate) fn id(&self, text: &[u8]) -> Option<u64> {
        match self {
            Self::Text => Some(hash_value(text)),
            _ if text.is_empty() => Some(missing_id()),
            Self::Buckets(edges) => Some(small_id(range_index(edges, parse_number(text)?))),
            Self::Date(part) => Some(small_id(date_part(text, *part)?)),
        }
    }

    pub(crate) fn is_number(&self) -> bool {
        matches!(self, Self::Buckets(_))
    }

    pub(crate) fn expected_text(&self, column: &str) -> String {
        match self {
            Self::Text => format!("a text in column \"{column}\""),
            Self::Buckets(_) => format!("a number in column \"{column}\""),
            Self::Date(_) => {
                format!("a date in column \"{column}\", such as 2026-11-25, 2026-11-25 13:45:00, or seconds since 1970")
            }
        }
    }
}

/// The number of the range of a value: that of the edges that are not greater.
#[inline]
pub(crate) fn range_index(edges: &[f64], value: f64) -> u32 {
    edges.partition_point(|edge| *edge <= value) as u32
}

/// The id of a small number: that of its text.
#[inline]
pub(crate) fn small_id(number: u32) -> u64 {
    hash_value(format_digits(number.into(), &mut [0; 20]))
}

/// The id of a combination of ids, whose order counts. Each is of 8 bytes, so that no two combinations have the same bytes.
#[derive(Default)]
pub(crate) struct CrossId(Xxh3Default);

impl CrossId {
    #[inline]
    pub(crate) fn add(&mut self, id: u64) {
        self.0.update(&id.to_le_bytes());
    }

    #[inline]
    pub(crate) fn finish(&self) -> u64 {
        self.0.digest()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_range_includes_its_lower_edge_and_a_part_of_a_date_has_the_id_of_its_text() {
        let (buckets, weekday) = (CellReading::Buckets([0.0, 2.5, 10.0].into()), CellReading::Date(DatePart::Weekday));
        for (text, range) in [("-1", "0"), ("0", "1"), ("2.4", "1"), ("2.5", "2"), ("10", "3"), ("1e9", "3")] {
            assert_eq!(buckets.id(text.as_bytes()), Some(hash_value(range.as_bytes())), "{text}");
        }
        assert_eq!(weekday.id(b"2026-11-25"), Some(hash_value(b"3")));
        for reading in [buckets, weekday] {
            assert_eq!((reading.id(b"many"), reading.id(b"")), (None, Some(missing_id())), "{reading:?}");
        }
    }

    /// Pinned: rows of saved models are stored under these ids (xxh3 of the two ids' bytes, computed with python-xxhash).
    #[test]
    fn crosses_are_pinned_and_keep_order_and_lengths_apart() {
        let cross = |texts: &[&[u8]]| {
            let mut id = CrossId::default();
            texts.iter().for_each(|text| id.add(hash_value(text)));
            id.finish()
        };
        assert_eq!(cross(&[b"ab", b"c"]), PINNED);
        let others: [&[&[u8]]; 5] =
            [&[b"a", b"bc"], &[b"c", b"ab"], &[b"abc", b""], &[b"", b"abc"], &[b"ab", b"c", b""]];
        others.into_iter().for_each(|other| assert_ne!(cross(other), PINNED, "{other:?}"));
    }
    const PINNED: u64 = 0x5fb2_02c9_6de7_1519;

    proptest! {
        #[test]
        fn a_small_number_has_the_id_of_its_text(number: u32) {
            prop_assert_eq!(small_id(number), hash_value(number.to_string().as_bytes()));
        }

        #[test]
        fn the_range_is_between_its_edges(edges in prop::collection::btree_set(-50_i32..50, 0..9), value in -60_i32..60) {
            let list: Vec<f64> = edges.iter().copied().map(f64::from).collect();
            let range = range_index(&list, f64::from(value)) as usize;
            prop_assert_eq!(range, edges.iter().filter(|edge| **edge <= value).count());

        }
    }
}
