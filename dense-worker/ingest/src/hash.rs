//! The pinned hashes: text → id, and line → train or test.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Pinned: it decides which rows are held out. Changing it makes results of two releases incomparable.
const SPLIT_SEED: u64 = 0x5a61_6772_6f73_0002;

/// The id of a categorical value: xxh3 (64 bits, seed 0) of its bytes as they stand in the file.
///
/// Pinned for the life of a model, since rows are kept under it. A missing value has the id of
/// the empty text. Among 100 M distinct values of one table the chance of any collision is 0.03 %.
#[must_use]
#[inline]
pub fn hash_value(text: &[u8]) -> u64 {
    xxh3_64(text)
}

/// Which lines are held out: a fixed share, by a hash of the line's bytes without its line end,
/// so that the same line is always on the same side, wherever it stands and whoever reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HashSplit {
    /// Held out below this; 2⁶⁴ would be all.
    threshold: u128,
}

impl HashSplit {
    /// Holds out the share `fraction` (0..1) of lines.
    pub(crate) fn new(fraction: f64) -> Self {
        Self { threshold: (fraction.clamp(0.0, 1.0) * 2.0_f64.powi(64)) as u128 }
    }

    /// Whether the line is in the test part.
    #[inline]
    pub(crate) fn is_test(self, line: &[u8]) -> bool {
        u128::from(xxh3_64_with_seed(line, SPLIT_SEED)) < self.threshold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of every saved model lie under these ids: for ever (computed independently with python-xxhash).
    #[test]
    fn ids_are_pinned() {
        assert_eq!(hash_value(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(hash_value(b"68fd1e64"), PINNED_HEX);
        assert_eq!(hash_value("Zürich".as_bytes()), PINNED_TEXT);
    }
    const PINNED_HEX: u64 = 0x00b0_4310_5806_0b4d;
    const PINNED_TEXT: u64 = 0x0ba4_4fcc_12cc_a74e;

    #[test]
    fn a_fraction_holds_out_about_its_share() {
        let split = HashSplit::new(0.1);
        let held_out = (0..20_000).filter(|line: &u32| split.is_test(line.to_string().as_bytes())).count();
        assert!((1_800..2_200).contains(&held_out), "{held_out}");
    }

    #[test]
    fn the_ends_hold_out_none_and_all() {
        let line = b"any line";
        assert!(!HashSplit::new(0.0).is_test(line));
        assert!(HashSplit::new(1.0).is_test(line));
    }

    #[test]
    fn a_larger_fraction_only_adds_lines() {
        let (small, large) = (HashSplit::new(0.2), HashSplit::new(0.3));
        for line in 0..2_000_u32 {
            let line = line.to_le_bytes();
            assert!(large.is_test(&line) || !small.is_test(&line));
        }
    }
}
