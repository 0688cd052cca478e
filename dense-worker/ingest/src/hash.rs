//! The pinned hashes: text → id, and row → part of the data.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Pinned: it decides which rows are held out. With another seed, results of two releases cannot be compared.
const SPLIT_SEED: u64 = 0x5a61_6772_6f73_0002;

/// The id of a categorical value: xxh3 (64 bits, seed 0) of its bytes in the file.
///
/// Pinned for the life of a model, because rows are stored under it. A missing value has the id of the empty text. Among
/// 100 M distinct values of one table, the probability of any collision is 0.03 %.
#[inline]
pub fn hash_value(text: &[u8]) -> u64 {
    xxh3_64(text)
}

/// The part of a row: fixed shares, by a hash of its line's bytes without the line end, and of the line's place in the text. The
/// same row is therefore always in the same part, whatever its split and its reader.
///
/// Without the place, lines that come again and again would all be in one part. Where few texts are possible, the training part
/// would then lack whole texts, label included, and what is learned would be the reverse of the test part.
///
/// The test part is at the low end of the hashes and the validation part at the high end. Each stays the same for any share
/// of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HashSplit {
    /// Hashes below this are in the test part; 2⁶⁴ would be all.
    test: u128,
    /// Hashes from this on are in the validation part.
    validation: u128,
}

impl HashSplit {
    /// Holds out the shares `test` and `validation` (0..1) of the rows.
    pub(crate) fn new(test: f64, validation: f64) -> Self {
        let of_all = |share: f64| (share.clamp(0.0, 1.0) * 2.0_f64.powi(64)) as u128;
        Self { test: of_all(test), validation: (1 << 64) - of_all(validation) }
    }

    /// The part of the row at a place: one of train, test and validation.
    #[inline]
    pub(crate) fn row_part(self, line: &[u8], place: u64) -> DataPart {
        let hash = u128::from(xxh3_64_with_seed(line, SPLIT_SEED.wrapping_add(place)));
        match hash {
            _ if hash < self.test => DataPart::Test,
            _ if hash >= self.validation => DataPart::Validation,
            _ => DataPart::Train,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPart {
    Train,
    /// Rows that are held out for the end.
    Test,
    /// Rows that are held out and scored during training.
    Validation,
    All,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of every saved model are stored under these ids, for ever (computed independently with python-xxhash).
    #[test]
    fn ids_are_pinned() {
        assert_eq!(hash_value(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(hash_value(b"68fd1e64"), 0x00b0_4310_5806_0b4d);
        assert_eq!(hash_value("Zürich".as_bytes()), 0x0ba4_4fcc_12cc_a74e);
    }

    #[test]
    fn a_fraction_holds_out_about_its_share_of_any_lines_and_of_equal_ones() {
        let split = HashSplit::new(0.1, 0.2);
        let by_text = |line: u32| split.row_part(line.to_string().as_bytes(), 7);
        let by_place = |line: u32| split.row_part(b"1,a,b", u64::from(line) * 6);
        for (name, row_part) in [("text", &by_text as &dyn Fn(u32) -> DataPart), ("place", &by_place)] {
            let count = |part| (0..20_000).filter(|line| row_part(*line) == part).count();
            let [test, validation, train] = [DataPart::Test, DataPart::Validation, DataPart::Train].map(count);
            assert!(
                (1_800..2_200).contains(&test) && (3_700..4_300).contains(&validation),
                "{name}: {test} {validation}"
            );
            assert_eq!(test + validation + train, 20_000, "{name}");
        }
    }

    #[test]
    fn the_ends_hold_out_none_and_all() {
        let line = b"any line";
        assert_eq!(HashSplit::new(0.0, 0.0).row_part(line, 0), DataPart::Train);
        assert_eq!(HashSplit::new(1.0, 0.0).row_part(line, 0), DataPart::Test);
        assert_eq!(HashSplit::new(0.0, 1.0).row_part(line, 0), DataPart::Validation);
    }

    #[test]
    fn a_larger_fraction_only_adds_lines() {
        let (small, large) = (HashSplit::new(0.2, 0.1), HashSplit::new(0.3, 0.4));
        for line in 0..2_000_u32 {
            let (before, after) = (small.row_part(&line.to_le_bytes(), 0), large.row_part(&line.to_le_bytes(), 0));
            assert!(before == after || before == DataPart::Train, "{before:?} {after:?}");
        }
    }
}
