//! What is known of a column that is read once, in bounded memory: distinct values, the most frequent ones, quantiles, mean and deviation.
//! All are mergeable.
//!
//! ```text
//! quantiles: level 0: values of weight 1 ─► full: sorted, every second one goes on ─► level 1: values of weight 2 ─► …
//! ```

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

    pub(crate) fn merge(&mut self, other: &Self) {
        other.hashes.iter().for_each(|hash| self.add(*hash));
        self.bound = match (self.bound, other.bound) {
            (Some(ours), Some(theirs)) => Some(ours.min(theirs)),
            (ours, theirs) => ours.or(theirs),
        };
    }

    /// The number of distinct values, and whether that is exact.
    pub(crate) fn estimate(&self) -> (u64, bool) {
        let mut tidy = self.clone();
        tidy.tidy();
        let Some(bound) = tidy.bound else { return (tidy.hashes.len() as u64, true) };
        // Of n uniform hashes, the expected share below the bound is bound / 2⁶⁴.
        let share = bound as f64 / 2.0_f64.powi(64);
        ((tidy.hashes.len() as f64 / share).round() as u64, false)
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
pub(crate) struct FrequentValues {
    counts: HashMap<u64, u64>,
}

impl FrequentValues {
    #[inline]
    pub(crate) fn add(&mut self, value: u64, times: u64) {
        *self.counts.entry(value).or_default() += times;
        if self.counts.len() >= 2 * COUNTED {
            self.tidy();
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        // In a fixed order: what is dropped depends on it.
        for (value, times) in other.sorted() {
            self.add(value, times);
        }
    }

    /// How often a value was counted; 0 of one that is not.
    pub(crate) fn count(&self, value: u64) -> u64 {
        self.counts.get(&value).copied().unwrap_or(0)
    }

    /// The most frequent values with their counts, at most `most`.
    pub(crate) fn most_frequent(&self, most: usize) -> Vec<(u64, u64)> {
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

/// Values of a level before it is halved. 32 KiB a level, and a level more for each doubling of the number of values. The rank of a
/// quantile is exact below so many values; above, its error is at most levels / (2 × this) of all values: 0.3 % of 10⁹, and far less
/// if the order of the values is not made for it.
const LEVEL: usize = 4_096;

/// The sketch of Manku, Rajagopalan & Lindsay 1998 ("Approximate medians and other quantiles in one pass and with limited memory"), as
/// Karnin, Lang & Liberty 2016 arrange it in levels. It takes the even and the odd values by turns, not by chance, so that
/// the same values in the same order give the same quantiles.
#[derive(Clone, Debug, Default)]
pub(crate) struct QuantileSketch {
    levels: Vec<SketchLevel>,
}

#[derive(Clone, Debug, Default)]
struct SketchLevel {
    values: Vec<f64>,
    /// Whether the next halving keeps the odd places.
    odd: bool,
}

impl QuantileSketch {
    #[inline]
    pub(crate) fn add(&mut self, value: f64) {
        self.put(0, value);
        self.halve_full(0);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (level, from) in other.levels.iter().enumerate() {
            for value in &from.values {
                self.put(level, *value);
                self.halve_full(level);
            }
        }
    }

    /// The edges between `parts` parts of about equally many values, ascending; equal ones once. An edge is the least value of its upper
    /// part, and none is the least of all, below which there would be nothing.
    pub(crate) fn edges(&self, parts: u32) -> Vec<f64> {
        let values = self.weighted_values();
        let total: u64 = values.iter().map(|(_, weight)| weight).sum();
        let (mut edges, mut below, mut next) = (Vec::new(), 0_u64, 1_u64);
        for (value, weight) in &values {
            // The values from `below` to `below + weight` are this one.
            let mut is_edge = false;
            while next < u64::from(parts)
                && u128::from(next) * u128::from(total) < u128::from(parts) * u128::from(below + weight)
            {
                (is_edge, next) = (true, next + 1);
            }
            let is_new =
                edges.last().is_none_or(|last| last < value) && values.first().is_some_and(|(least, _)| least < value);
            if is_edge && is_new {
                edges.push(*value);
            }
            below += weight;
        }
        edges
    }

    /// The values that are kept, ascending, each with the number of those that it stands for.
    pub(crate) fn weighted_values(&self) -> Vec<(f64, u64)> {
        let weighted = |(level, of): (usize, &SketchLevel)| {
            of.values.iter().map(move |value| (*value, 1_u64 << level)).collect::<Vec<_>>()
        };
        let mut values: Vec<(f64, u64)> = self.levels.iter().enumerate().flat_map(weighted).collect();
        values.sort_by(|one, other| one.0.total_cmp(&other.0));
        values
    }

    fn put(&mut self, level: usize, value: f64) {
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, SketchLevel::default);
        }
        self.levels[level].values.push(value);
    }

    /// Halves the level if it is full, and then those above.
    #[inline]
    fn halve_full(&mut self, mut level: usize) {
        while self.levels[level].values.len() >= LEVEL {
            let SketchLevel { values, odd } = &mut self.levels[level];
            let mut full = std::mem::take(values);
            full.sort_unstable_by(f64::total_cmp);
            let start = usize::from(*odd);
            *odd = !*odd;
            full[start..].iter().step_by(2).for_each(|value| self.put(level + 1, *value));
            full.clear();
            self.levels[level].values = full;
            level += 1;
        }
    }
}

/// Sums around a shift (the first value), so that a large mean does not cost the deviation's precision. Merged by Chan,
/// Golub & LeVeque 1979.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MomentSums {
    /// How much the values count together.
    count: f64,
    shift: f64,
    sum: f64,
    squares: f64,
}

impl MomentSums {
    pub(crate) const NONE: Self = Self { count: 0.0, shift: 0.0, sum: 0.0, squares: 0.0 };

    #[inline]
    pub(crate) fn add(&mut self, value: f64, weight: f64) {
        if self.count == 0.0 {
            self.shift = value;
        }
        let distance = value - self.shift;
        self.count += weight;
        self.sum += weight * distance;
        self.squares += weight * distance * distance;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        if other.count == 0.0 {
            return;
        }
        if self.count == 0.0 {
            *self = *other;
            return;
        }
        let (ours, theirs) = (self.count, other.count);
        let shift = other.mean() - self.mean();
        let spread = self.spread() + other.spread() + shift * shift * ours * theirs / (ours + theirs);
        let mean = self.mean() + shift * theirs / (ours + theirs);
        *self = Self { count: self.count + other.count, shift: mean, sum: 0.0, squares: spread };
    }

    /// The mean; 0 without values.
    pub(crate) fn mean(&self) -> f64 {
        if self.count == 0.0 { 0.0 } else { self.shift + self.sum / self.count }
    }

    /// The population deviation; 0 without values.
    pub(crate) fn deviation(&self) -> f64 {
        if self.count == 0.0 { 0.0 } else { (self.spread() / self.count).sqrt() }
    }

    fn spread(&self) -> f64 {
        (self.squares - self.sum * self.sum / self.count).max(0.0)
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
        assert_eq!((values.count(7), values.count(9)), (1, 0));
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

    fn quantiles(values: impl IntoIterator<Item = f64>) -> QuantileSketch {
        let mut sketch = QuantileSketch::default();
        values.into_iter().for_each(|value| sketch.add(value));
        sketch
    }

    #[test]
    fn few_values_have_exact_quantiles_and_a_frequent_one_is_one_edge() {
        let zeros = [vec![0.0; 90], (1..=10).map(f64::from).collect()].concat();
        let fives = [vec![1.0], vec![5.0; 98], vec![9.0]].concat();
        for (values, parts, expected) in [
            ((0..100).map(f64::from).collect::<Vec<_>>(), 4, &[25.0, 50.0, 75.0][..]),
            (vec![3.0, 1.0, 2.0], 3, &[2.0, 3.0]),
            (vec![], 4, &[]),
            (zeros, 10, &[1.0]),
            (vec![7.0; 50], 10, &[]),
            (fives, 10, &[5.0]),
        ] {
            assert_eq!(quantiles(values.iter().copied()).edges(parts), expected, "{values:?} in {parts} parts");
        }
    }

    /// The share of `0..count` below each edge is that of its quantile within the promised error.
    fn assert_close(sketch: &QuantileSketch, count: u64, parts: u32) {
        let edges = sketch.edges(parts);
        assert_eq!(edges.len(), parts as usize - 1);
        for (index, edge) in edges.iter().enumerate() {
            let wanted = (index + 1) as f64 / f64::from(parts);
            let error = (edge / count as f64 - wanted).abs();
            assert!(error < 0.002, "edge {index} is at {}, not {wanted}", edge / count as f64);
        }
    }

    #[test]
    fn many_values_in_any_order_have_close_quantiles() {
        let count = 200_000_u64;
        assert_close(&quantiles((0..count).map(|n| n as f64)), count, 10);
        assert_close(&quantiles((0..count).rev().map(|n| n as f64)), count, 10);
        assert_close(&quantiles((0..count).map(|n| (n * 7_919 % count) as f64)), count, 16);
    }

    #[test]
    fn memory_is_bounded() {
        let sketch = quantiles((0..300_000).map(f64::from));
        let kept: usize = sketch.levels.iter().map(|level| level.values.len()).sum();
        assert!(kept < LEVEL * sketch.levels.len() && sketch.levels.len() < 10, "{kept}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn merged_parts_have_close_quantiles(ends in prop::collection::vec(0_u64..60_000, 0..5)) {
            let count = 60_000;
            let mut ends = [ends, vec![count]].concat();
            ends.sort_unstable();
            let (mut merged, mut start) = (QuantileSketch::default(), 0);
            for end in ends {
                merged.merge(&quantiles((start..end).map(|n| n as f64)));
                start = end;
            }
            assert_close(&merged, count, 8);
        }

        #[test]
        fn edges_ascend(values in prop::collection::vec(-20_i32..20, 0..200), parts in 2_u32..30) {
            let edges = quantiles(values.iter().copied().map(f64::from)).edges(parts);
            prop_assert!(edges.windows(2).all(|pair| pair[0] < pair[1]) && edges.len() < parts as usize);
            let least = values.iter().min().copied().unwrap_or_default();
            prop_assert!(edges.iter().all(|edge| *edge > f64::from(least)));
        }
    }

    fn moments(values: &[f64]) -> MomentSums {
        let mut moments = MomentSums::default();
        values.iter().for_each(|value| moments.add(*value, 1.0));
        moments
    }

    fn by_two_passes(values: &[f64]) -> (f64, f64) {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
        (mean, variance.sqrt())
    }

    #[test]
    fn a_large_mean_does_not_hide_the_deviation_and_none_is_zero() {
        let values: Vec<f64> = (0..1_000).map(|n| 1.6e12 + f64::from(n % 2)).collect();
        assert!((moments(&values).deviation() - 0.5).abs() < 1e-6);
        assert_eq!((moments(&[]).mean(), moments(&[]).deviation(), moments(&[]).count), (0.0, 0.0, 0.0));
    }

    proptest! {
        #[test]
        fn merged_parts_equal_the_moments_of_the_whole(parts in prop::collection::vec(prop::collection::vec(-1e3..1e3, 0..20), 1..6)) {
            let whole = parts.concat();
            prop_assume!(!whole.is_empty());
            let mut merged = MomentSums::default();
            parts.iter().for_each(|part| merged.merge(&moments(part)));
            let (mean, deviation) = by_two_passes(&whole);
            prop_assert_eq!(merged.count, whole.len() as f64);
            prop_assert!((merged.mean() - mean).abs() < 1e-9 && (merged.deviation() - deviation).abs() < 1e-6);
        }
    }
}
