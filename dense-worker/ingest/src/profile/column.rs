//! Counts of one column.

use std::collections::HashMap;
use std::sync::Arc;

use zagros_zip::ZipEq;

use super::{ColumnBins, FREQUENT, FeatureProfile, ValueDistribution, stability_index};
use crate::column_sums::{CategorySums, ColumnSum};
use crate::sketch::FrequentValues;

/// Numbers that are kept to make bins of.
const KEPT: usize = 1 << 15;

/// Counts of values by the bins of earlier files: `[missing, bin 0, …]`; none without earlier files.
#[derive(Clone, Debug, Default)]
struct EarlierBins {
    counts: Vec<u64>,
}

impl EarlierBins {
    fn new(bins: Option<&ColumnBins>) -> Self {
        Self { counts: vec![0; bins.map_or(0, ColumnBins::count)] }
    }

    #[inline]
    fn add(&mut self, bin: usize, times: u64) {
        if let Some(count) = self.counts.get_mut(bin) {
            *count += times;
        }
    }

    fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip_eq(&other.counts).for_each(|(count, more)| *count += more);
    }

    fn clear(&mut self) {
        self.counts.fill(0);
    }

    /// The drift from these shares of the same bins.
    fn drift(&self, earlier: Option<&[f64]>) -> Option<f64> {
        let earlier = earlier.filter(|shares| shares.len() == self.counts.len())?;
        let total: u64 = self.counts.iter().sum();
        (total > 0).then(|| stability_index(earlier, &shares(&self.counts)))
    }
}

/// Shares of counts; zeros of none.
fn shares(counts: &[u64]) -> Vec<f64> {
    let total = counts.iter().sum::<u64>().max(1) as f64;
    counts.iter().map(|count| *count as f64 / total).collect()
}

#[derive(Clone, Debug)]
pub(super) struct NumberCounts {
    ends: Arc<[f64]>,
    earlier: EarlierBins,
    missing: u64,
    /// Each so many values one is kept.
    stride: usize,
    /// Values until the next one that is kept.
    skip: usize,
    kept: Vec<f64>,
}

impl NumberCounts {
    /// Counts by the bins of earlier files, if there are any.
    pub(super) fn new(bins: Option<&ColumnBins>) -> Self {
        let bins = bins.filter(|bins| matches!(bins, ColumnBins::Below(_)));
        let ends: Arc<[f64]> = match bins {
            Some(ColumnBins::Below(ends)) => ends.as_slice().into(),
            _ => Arc::default(),
        };
        let earlier = EarlierBins::new(bins);
        Self { ends, earlier, missing: 0, stride: 1, skip: 0, kept: Vec::new() }
    }

    /// Keeps each so many values one: evenly over the rows, in bounded memory.
    fn keep(&mut self, value: f64) {
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        self.kept.push(value);
        if self.kept.len() == 2 * KEPT {
            let mut index = 0;
            self.kept.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.stride *= 2;
        }
        self.skip = self.stride - 1;
    }

    pub(super) fn feature_profile(&mut self, column: &str, rows: u64, earlier: Option<&[f64]>) -> FeatureProfile {
        self.kept.sort_unstable_by(f64::total_cmp);
        let bins = ColumnBins::from_numbers(&self.kept);
        let missing = self.missing as f64 / rows.max(1) as f64;
        let mut counts = vec![0; bins.count()];
        if let ColumnBins::Below(ends) = &bins {
            self.kept.iter().for_each(|value| counts[1 + ends.partition_point(|end| end <= value)] += 1);
        }
        // The sample is of the values that are there.
        let mut shares: Vec<f64> = shares(&counts).into_iter().map(|share| share * (1.0 - missing)).collect();
        shares[0] = missing;
        FeatureProfile {
            column: column.to_owned(),
            missing,
            distinct: None,
            drift: self.earlier.drift(earlier),
            distribution: ValueDistribution { bins, shares },
        }
    }
}

impl ColumnSum<Option<f64>> for NumberCounts {
    #[inline]
    fn add(&mut self, value: Option<f64>) {
        let Some(value) = value else {
            self.missing += 1;
            self.earlier.add(0, 1);
            return;
        };
        self.earlier.add(1 + self.ends.partition_point(|end| *end <= value), 1);
        self.keep(value);
    }

    fn merge(&mut self, other: &Self) {
        self.earlier.merge(&other.earlier);
        self.missing += other.missing;
        // Each stands for as many values as were skipped around it.
        for value in &other.kept {
            (0..other.stride).for_each(|_| self.keep(*value));
        }
    }

    fn clear(&mut self) {
        self.earlier.clear();
        (self.missing, self.stride, self.skip) = (0, 1, 0);
        self.kept.clear();
    }
}

#[derive(Clone, Debug)]
pub(super) struct CategoryCounts {
    /// Positions of the earlier bins by value.
    places: Arc<HashMap<u64, usize>>,
    earlier: EarlierBins,
    sums: CategorySums,
    frequent: FrequentValues,
}

impl CategoryCounts {
    /// Counts by the bins of earlier files, if there are any.
    pub(super) fn new(bins: Option<&ColumnBins>) -> Self {
        let bins = bins.filter(|bins| matches!(bins, ColumnBins::Values(_)));
        let values: &[String] = match bins {
            Some(ColumnBins::Values(values)) => values,
            _ => &[],
        };
        let places = values
            .iter()
            .enumerate()
            .filter_map(|(place, value)| Some((u64::from_str_radix(value, 16).ok()?, 1 + place)));
        let (places, earlier) = (Arc::new(places.collect()), EarlierBins::new(bins));
        Self { places, earlier, sums: CategorySums::default(), frequent: FrequentValues::default() }
    }

    pub(super) fn feature_profile(&mut self, column: &str, rows: u64, earlier: Option<&[f64]>) -> FeatureProfile {
        let missing = rows - self.sums.present;
        self.earlier.add(0, missing);
        let top = self.frequent.most_frequent(FREQUENT);
        let counted: u64 = top.iter().map(|(_, count)| count).sum();
        let others = self.sums.values.saturating_sub(counted);
        let counts: Vec<u64> =
            [missing].into_iter().chain(top.iter().map(|(_, count)| *count)).chain([others]).collect();
        let bins = ColumnBins::from_values(top.iter().map(|(value, _)| *value));
        FeatureProfile {
            column: column.to_owned(),
            missing: missing as f64 / rows.max(1) as f64,
            distinct: Some(self.sums.distinct.estimate().0),
            drift: self.earlier.drift(earlier),
            distribution: ValueDistribution { bins, shares: shares(&counts) },
        }
    }
}

impl ColumnSum<(u64, u64)> for CategoryCounts {
    #[inline]
    fn add(&mut self, (hash, row): (u64, u64)) {
        self.sums.add((hash, row));
        self.frequent.add(hash, 1);
        let others = self.earlier.counts.len().saturating_sub(1);
        self.earlier.add(self.places.get(&hash).copied().unwrap_or(others), 1);
    }

    fn merge(&mut self, other: &Self) {
        self.earlier.merge(&other.earlier);
        self.sums.merge(&other.sums);
        self.frequent.merge(&other.frequent);
    }

    fn clear(&mut self) {
        self.earlier.clear();
        self.sums.clear();
        self.frequent.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash_value;

    #[test]
    fn many_numbers_are_sampled_evenly_and_blocks_add_up() {
        let mut whole = NumberCounts::new(None);
        let mut parts = NumberCounts::new(None);
        let mut block = NumberCounts::new(None);
        for number in 0..200_000 {
            let value = Some(f64::from(number % 1_000));
            whole.add(value);
            block.add(value);
            if number % 5_000 == 4_999 {
                parts.merge(&block);
                block.clear();
            }
        }
        assert!(whole.kept.len() < 2 * KEPT);
        let (whole, parts) = (whole.feature_profile("n", 200_000, None), parts.feature_profile("n", 200_000, None));
        assert_eq!(whole, parts);
        assert!(whole.distribution.shares[1..].iter().all(|share| (share - 0.1).abs() < 0.01), "{whole:?}");
    }

    #[test]
    fn a_column_that_was_of_another_kind_has_no_drift() {
        let text = ColumnBins::from_values([hash_value(b"a")].into_iter());
        let mut counts = NumberCounts::new(Some(&text));
        counts.add(Some(1.0));
        assert_eq!(counts.feature_profile("a", 1, Some(&[0.0, 1.0, 0.0])).drift, None);
        let mut counts = CategoryCounts::new(Some(&ColumnBins::Below(vec![1.0])));
        counts.add((hash_value(b"a"), 1));
        assert_eq!(counts.feature_profile("a", 1, Some(&[0.0, 1.0, 0.0])).drift, None);
    }
}
