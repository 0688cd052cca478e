//! The number of distinct values of a column, and its most frequent ones, in bounded memory.

use std::collections::HashMap;

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

/// Values that are counted. A count is too low by at most the number of all values divided by this.
const COUNTED: usize = 4_096;

/// Counts of frequent values: a Misra–Gries summary that can be merged (Agarwal et al. 2012, "Mergeable Summaries"). When it is
/// full, the count of the first value too many is taken off every count, and values without a count are dropped.
#[derive(Clone, Debug, Default)]
pub(super) struct FrequentValues {
    counts: HashMap<u64, u64>,
}

impl FrequentValues {
    #[inline]
    pub(super) fn add(&mut self, value: u64, times: u64) {
        *self.counts.entry(value).or_default() += times;
        if self.counts.len() >= 2 * COUNTED {
            self.tidy();
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        // In a fixed order: what is dropped depends on it.
        for (value, times) in other.sorted() {
            self.add(value, times);
        }
    }

    pub(super) fn clear(&mut self) {
        self.counts.clear();
    }

    /// The most frequent values with their counts, at most `most`.
    pub(super) fn most_frequent(&self, most: usize) -> Vec<(u64, u64)> {
        let mut sorted = self.sorted();
        sorted.truncate(most);
        sorted
    }

    /// The most frequent first; of equals the smaller value.
    fn sorted(&self) -> Vec<(u64, u64)> {
        let mut sorted: Vec<(u64, u64)> = self.counts.iter().map(|(value, count)| (*value, *count)).collect();
        sorted.sort_unstable_by_key(|(value, count)| (std::cmp::Reverse(*count), *value));
        sorted
    }

    fn tidy(&mut self) {
        let least = self.sorted().get(COUNTED).map_or(0, |(_, count)| *count);
        self.counts.retain(|_, count| {
            *count = count.saturating_sub(least);
            *count > 0
        });
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

    #[test]
    fn the_counts_of_few_values_are_exact() {
        let mut values = FrequentValues::default();
        [3, 5, 3, 5, 3, 7].into_iter().for_each(|value| values.add(value, 1));
        assert_eq!(values.most_frequent(2), [(3, 3), (5, 2)]);
        values.clear();
        assert!(values.most_frequent(2).is_empty());
    }

    #[test]
    fn frequent_values_are_found_among_many_rare_ones_in_any_parts() {
        let rows = 100_000;
        let mut parts = [FrequentValues::default(), FrequentValues::default()];
        for row in 0..rows {
            // Values 0 to 9 each have one row of a hundred, all others one row each.
            let value = if row % 10 == 0 { row / 10 % 10 } else { 1_000 + row };
            parts[(row % 2) as usize].add(value, 1);
        }
        let [mut all, other] = parts;
        all.merge(&other);
        assert!(all.counts.len() < 2 * COUNTED);
        let mut top = all.most_frequent(10);
        top.sort_unstable();
        assert_eq!(top.iter().map(|(value, _)| *value).collect::<Vec<_>>(), (0..10).collect::<Vec<u64>>());
        let bound = 2 * rows / COUNTED as u64;
        assert!(top.iter().all(|(_, count)| *count <= 1_000 && *count + bound >= 1_000), "{top:?}");
    }
}
