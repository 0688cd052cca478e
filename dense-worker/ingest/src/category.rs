//! From cells to ids of categorical features.
//!
//! ```text
//! text ─► reading: text, range of a number, part of a date ─► id ─┬────────────────────────────┬─► sink: default, vocabulary or
//!                                  (one cell of the row each)    └─► cross: id of several ids ─┘   hash size ─► id of the row
//! ```
//!
//! Each step is one function that rows of text and columns of Parquet share.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::num::NonZeroU64;
use std::sync::Arc;

use xxhash_rust::xxh3::{Xxh3Default, xxh3_64_with_seed};
use zagros_job::{Categorical, CategoryEncoding, ColumnReading, DatePart, IdRange};

use crate::category::date::date_part;
use crate::parse::number::{format_digits, parse_number};
use crate::{DataPart, hash_value};

pub(crate) mod date;

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

/// The id that all categories have that a vocabulary does not know. The text of no line has a NUL byte.
pub(crate) fn rare_id() -> u64 {
    hash_value(b"\0rare")
}

#[derive(Clone, Debug)]
pub(crate) struct IdMap {
    missing: u64,
    /// In place of a missing value.
    default: u64,
    range: IdMapping,
}

#[derive(Clone, Debug)]
enum IdMapping {
    All,
    Hashed(NonZeroU64),
    Known(Arc<HashSet<u64, BuildHasherDefault<AsItIs>>>, u64),
}

impl IdMap {
    /// The map of a feature. A vocabulary that is not measured yet is ignored, because the measurement itself reads this way.
    pub(crate) fn new(feature: &Categorical) -> Self {
        let range = match &feature.ids {
            IdRange::All => IdMapping::All,
            IdRange::Hashed(size) => IdMapping::Hashed(*size),
            IdRange::Vocabulary(vocabulary) => match &vocabulary.ids {
                None => IdMapping::All,
                Some(ids) => IdMapping::Known(Arc::new(ids.iter().copied().collect()), rare_id()),
            },
        };
        let default = feature.default.as_ref().map_or_else(missing_id, |text| hash_value(text.as_bytes()));
        Self { missing: missing_id(), default, range }
    }

    pub(crate) fn is_same(&self) -> bool {
        self.missing == self.default && matches!(self.range, IdMapping::All)
    }

    /// The id whose row is looked up.
    #[inline]
    pub(crate) fn apply(&self, id: u64) -> u64 {
        let id = if id == self.missing { self.default } else { id };
        match &self.range {
            IdMapping::All => id,
            IdMapping::Hashed(size) => id % size.get(),
            IdMapping::Known(known, rare) => {
                if known.contains(&id) {
                    id
                } else {
                    *rare
                }
            }
        }
    }
}

/// Takes ids for their hash, because they are hashes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = id;
    }
}

/// Pinned: it decides over which rows the numbers of a saved model were measured.
const FOLD_SEED: u64 = 0x5a61_6772_6f73_0003;

/// The fold of the training row at a place of its file. It is the same for every reader, epoch and process.
#[inline]
pub(crate) fn fold_of(place: u64, folds: usize) -> usize {
    (xxh3_64_with_seed(&place.to_le_bytes(), FOLD_SEED) % folds as u64) as usize
}

/// The number of a category, and the fold of a training row.
///
/// ```text
/// training row, in fold f ─► number f of its category: measured over the rows of the other folds
/// any other row           ─► last number of its category: measured over all training rows
/// ```
#[derive(Clone, Debug)]
pub(crate) struct CategoryEncoder {
    starts: HashMap<u64, u32, BuildHasherDefault<AsItIs>>,
    /// Standardised; first those of an id that is not listed.
    values: Box<[f32]>,
    /// Folds that the rows have numbers of; 0: each row has the last number.
    folds: usize,
    /// The number for rows that are not trained on.
    last: usize,
}

impl CategoryEncoder {
    /// The numbers for the rows of a part. An encoding that is not measured yet is 0.
    pub(crate) fn new(encoding: &CategoryEncoding, part: DataPart) -> Self {
        let last = encoding.own_folds();
        let folds = if part == DataPart::Train { last } else { 0 };
        let Some(table) = &encoding.fitted else {
            return Self { starts: HashMap::default(), values: vec![0.0; last + 1].into(), folds, last };
        };
        let standard = |value: &f32| ((f64::from(*value) - table.mean) / table.deviation) as f32;
        let start = |(index, id): (usize, &u64)| (*id, ((index + 1) * (last + 1)) as u32);
        Self {
            starts: table.ids.iter().enumerate().map(start).collect(),
            values: table.rare.iter().chain(&table.values).map(standard).collect(),
            folds,
            last,
        }
    }

    /// The number of a category in the row at a place.
    #[inline]
    pub(crate) fn encode(&self, id: u64, place: u64) -> f32 {
        let start = self.starts.get(&id).copied().unwrap_or(0) as usize;
        let column = if self.folds == 0 { self.last } else { fold_of(place, self.folds) };
        self.values[start + column]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zagros_job::{EncodingTable, Vocabulary};

    use super::*;
    use crate::fixture;

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
    }

    fn feature(ids: IdRange, default: Option<&str>) -> Categorical {
        Categorical { ids, default: default.map(str::to_owned), ..Categorical::of_column("c", 0) }
    }

    fn vocabulary(ids: Option<Vec<u64>>) -> IdRange {
        IdRange::Vocabulary(Vocabulary { min_count: 1, max_size: 9, ids })
    }

    #[test]
    fn a_plain_feature_keeps_its_ids() {
        assert!(IdMap::new(&feature(IdRange::All, None)).is_same());
        assert!(IdMap::new(&feature(vocabulary(None), None)).is_same());
        assert!(!IdMap::new(&feature(IdRange::All, Some("x"))).is_same());
    }

    #[test]
    fn a_missing_value_has_the_default_and_then_its_place_in_the_vocabulary() {
        let known = vocabulary(Some(vec![hash_value(b"x"), hash_value(b"y")]));
        let map = IdMap::new(&feature(known.clone(), Some("x")));
        let found = [b"".as_slice(), b"y", b"z"].map(|text| map.apply(hash_value(text)));
        assert_eq!(found, [hash_value(b"x"), hash_value(b"y"), rare_id()]);
        assert_eq!(IdMap::new(&feature(known, None)).apply(hash_value(b"")), rare_id());
    }

    proptest! {
        #[test]
        fn hashed_ids_are_below_their_size(id: u64, size in 1_u64..1_000) {
            let map = IdMap::new(&feature(IdRange::Hashed(NonZeroU64::new(size).unwrap()), None));
            prop_assert_eq!(map.apply(id), id % size);
        }
    }

    fn encoding() -> CategoryEncoding {
        let table = EncodingTable {
            mean: 1.0,
            deviation: 2.0,
            rare: vec![1.0, 3.0, 5.0],
            ids: vec![7, u64::MAX],
            values: vec![7.0, 9.0, 11.0, -1.0, -3.0, -5.0],
        };
        fixture::encoding(Some(table))
    }

    #[test]
    fn a_training_row_has_the_number_of_its_fold_and_any_other_row_the_last() {
        let (train, test) =
            (CategoryEncoder::new(&encoding(), DataPart::Train), CategoryEncoder::new(&encoding(), DataPart::Test));
        for place in 0..40 {
            let fold = fold_of(place, 2);
            assert_eq!([7, u64::MAX, 8].map(|id| train.encode(id, place)), [[3.0, -1.0, 0.0], [4.0, -2.0, 1.0]][fold]);
            assert_eq!([7, u64::MAX, 8].map(|id| test.encode(id, place)), [5.0, -3.0, 2.0]);
        }
        assert_eq!(CategoryEncoder::new(&fixture::encoding(None), DataPart::Train).encode(7, 3), 0.0);
    }

    /// Pinned: a run that goes on must find its rows in their folds (xxh3 of the place's bytes, computed with python-xxhash).
    #[test]
    fn folds_are_pinned_and_even() {
        assert_eq!([0_u64, 1, 2, 3, 1 << 40].map(|place| fold_of(place, 5)), PINNED_FOLDS);
        let mut counts = [0; 5];
        (0..100_000_u64).for_each(|row| counts[fold_of(row * 37, 5)] += 1);
        assert!(counts.iter().all(|count| (19_000..21_000).contains(count)), "{counts:?}");
    }
    const PINNED_FOLDS: [usize; 5] = [2, 3, 0, 3, 1];
}
