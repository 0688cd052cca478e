//! The number of distinct values, in bounded memory.

/// Number of smallest hashes that are kept. Below it the count is exact; above, the standard error is 1/√(K − 2) = 1.6 %.
/// 64 KiB per column.
pub(crate) const KEPT: usize = 4_096;

/// The K smallest distinct hashes (Beyer et al. 2007, "On synopses for distinct-value estimation").
#[derive(Clone, Debug, Default)]
pub(crate) struct DistinctSketch {
    /// Up to twice `KEPT`, with duplicates, until they are sorted and cut.
    hashes: Vec<u64>,
    /// Hashes from here on are not among the smallest; `None` while all are kept.
    bound: Option<u64>,
}

impl DistinctSketch {
    /// Adds a value by its (uniform) hash.
    #[inline]
    pub(crate) fn add(&mut self, hash: u64) {
        if self.bound.is_some_and(|bound| hash >= bound) {
            return;
        }
        self.hashes.push(hash);
        if self.hashes.len() >= 2 * KEPT {
            self.tidy();
        }
    }

    /// Adds the values of another sketch.
    pub(crate) fn merge(&mut self, other: &Self) {
        other.hashes.iter().for_each(|hash| self.add(*hash));
        self.bound = match (self.bound, other.bound) {
            (Some(ours), Some(theirs)) => Some(ours.min(theirs)),
            (ours, theirs) => ours.or(theirs),
        };
    }

    pub(crate) fn clear(&mut self) {
        self.hashes.clear();
        self.bound = None;
    }

    /// The number of distinct values, and whether that is exact.
    pub(crate) fn estimate(&mut self) -> (u64, bool) {
        self.tidy();
        let Some(bound) = self.bound else { return (self.hashes.len() as u64, true) };
        // Of n uniform hashes, the expected share below the bound is bound / 2⁶⁴.
        let share = bound as f64 / 2.0_f64.powi(64);
        ((self.hashes.len() as f64 / share).round() as u64, false)
    }

    fn tidy(&mut self) {
        self.hashes.sort_unstable();
        self.hashes.dedup();
        if let Some(bound) = self.bound {
            self.hashes.truncate(self.hashes.partition_point(|hash| *hash < bound));
        }
        if self.hashes.len() > KEPT {
            self.bound = Some(self.hashes[KEPT]);
            self.hashes.truncate(KEPT);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hash_value;

    fn sketch(values: impl Iterator<Item = u64>) -> DistinctSketch {
        let mut sketch = DistinctSketch::default();
        values.for_each(|value| sketch.add(hash_value(&value.to_le_bytes())));
        sketch
    }

    #[test]
    fn few_values_are_counted_exactly() {
        assert_eq!(sketch((0..50_000).map(|n| n % 4_000)).estimate(), (4_000, true));
        assert_eq!(sketch(std::iter::empty()).estimate(), (0, true));
    }

    #[test]
    fn many_values_are_estimated_within_five_standard_errors() {
        for distinct in [10_000_u64, 300_000] {
            let (estimate, is_exact) = sketch((0..distinct).chain(0..distinct / 2)).estimate();
            assert!(!is_exact && (estimate as f64 / distinct as f64 - 1.0).abs() < 0.08, "{estimate} of {distinct}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn merged_parts_count_as_the_whole(sizes in prop::collection::vec(0_u64..9_000, 1..5)) {
            let mut merged = DistinctSketch::default();
            let mut start = 0;
            for size in &sizes {
                // Neighbouring parts share half of their values.
                merged.merge(&sketch(start / 2..start + size));
                start += size;
            }
            prop_assert_eq!(merged.estimate(), sketch(0..start).estimate());
        }
    }
}
