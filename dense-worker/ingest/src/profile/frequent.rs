//! The most frequent values of a column, in bounded memory.

use std::collections::HashMap;

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
    use super::*;

    #[test]
    fn few_values_are_counted_exactly() {
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
