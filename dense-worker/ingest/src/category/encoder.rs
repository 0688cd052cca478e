//! The number of a category, and the fold of a training row. Performance-critical: no allocation.
//!
//! ```text
//! training row, in fold f ─► number f of its category: measured over the rows of the other folds
//! any other row           ─► last number of its category: measured over all training rows
//! ```

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use xxhash_rust::xxh3::xxh3_64_with_seed;
use zagros_job::CategoryEncoding;

use super::id_map::AsItIs;
use crate::DataPart;

/// Pinned: it decides over which rows the numbers of a saved model were measured.
const FOLD_SEED: u64 = 0x5a61_6772_6f73_0003;

/// The fold of the training row at a place of its file. It is the same for every reader, epoch and process.
#[inline]
pub(crate) fn fold_of(place: u64, folds: usize) -> usize {
    (xxh3_64_with_seed(&place.to_le_bytes(), FOLD_SEED) % folds as u64) as usize
}

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
    use zagros_job::EncodingTable;

    use super::*;
    use crate::fixture;

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
        assert_eq!([0_u64, 1, 2, 3, 1 << 40].map(|place| fold_of(place, 5)), PINNED);
        let mut counts = [0; 5];
        (0..100_000_u64).for_each(|row| counts[fold_of(row * 37, 5)] += 1);
        assert!(counts.iter().all(|count| (19_000..21_000).contains(count)), "{counts:?}");
    }
    const PINNED: [usize; 5] = [2, 3, 0, 3, 1];
}
