//! Measures of slices: the samples that have one value in a column, such as one country.
//!
//! Memory is bounded. Each value of a column keeps its logits in bins ([`BinnedScores`]). When the values of a column have too
//! many bins, the rarest values are added up as "other" until half of the bins are left:
//!
//! ```text
//! column country   DE 9,000 samples   US 4,000   FR 20   IS 3   other 2
//!             →    DE 9,000           US 4,000                  other 25
//! ```
//!
//! So the slices of a column are always all samples. Up to the bound they depend neither on the order of samples nor on that of
//! merges. Beyond it, a value that comes back after it was added to the others starts from nothing: the report says so.

use std::cmp::Ordering;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use zagros_zip::ZipEq;

use crate::BinnedScores;

/// Bins that the values of a column have at most, besides the others': about 40 bytes each.
const CAPACITY: usize = 1 << 20;

/// Bytes of a value that are kept. Longer ones with the same start are one slice.
const VALUE_BYTES: usize = 256;

/// Samples by their values in some columns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SlicedScores {
    columns: Vec<ColumnScores>,
    capacity: usize,
}

/// Samples by their value in a column.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct ColumnScores {
    values: HashMap<Vec<u8>, BinnedScores>,
    bins: usize,
    /// Samples of values that are not kept.
    other: BinnedScores,
}

/// Measures of the slices by one column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ColumnSlices {
    pub column: String,
    /// Values that were counted; if there were too many, the most frequent of them.
    pub values: u64,
    /// Whether every sample of a value is in its slice. If not, there were too many values, and some samples are in the slice of all others.
    pub exact: bool,
    /// By falling number of samples; last all other values.
    pub slices: Vec<SliceMeasures>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SliceMeasures {
    /// The value as in the data; `None` for all values that are not among the most frequent.
    pub value: Option<String>,
    pub samples: u64,
    pub positive_rate: Option<f64>,
    /// Area under the ROC curve; logits that differ by less than 1/2048 of their value tie.
    pub auc: Option<f64>,
    /// Mean binary cross-entropy, nats.
    pub logloss: Option<f64>,
    /// Mean predicted probability divided by the share of positives.
    pub calibration: Option<f64>,
}

impl SlicedScores {
    /// No samples, with so many columns.
    pub fn new(columns: usize) -> Self {
        Self::with_capacity(columns, CAPACITY)
    }

    fn with_capacity(columns: usize, capacity: usize) -> Self {
        Self { columns: vec![ColumnScores::default(); columns], capacity }
    }

    pub fn column_count(&self) -> usize {
        self.columns.len()
    }

    /// Adds a sample with its value in `column`.
    pub fn push(&mut self, column: usize, value: &[u8], label: f32, logit: f32) {
        self.columns[column].push(value, label, logit, self.capacity);
    }

    /// Adds the samples of another part with the same columns. Parts with another number of columns are ignored.
    pub fn merge(&mut self, other: Self) {
        if self.columns.len() != other.columns.len() {
            return;
        }
        for (column, others) in self.columns.iter_mut().zip_eq(other.columns) {
            column.merge(others, self.capacity);
        }
    }

    /// The measures of the `most` most frequent values of each column, and of all others together.
    pub fn measure_slices(&self, names: &[String], most: usize) -> Vec<ColumnSlices> {
        let report = |(column, name): (&ColumnScores, &String)| column.measure_slices(name.clone(), most);
        self.columns.iter().zip_eq(names).map(report).collect()
    }
}

impl ColumnScores {
    fn push(&mut self, value: &[u8], label: f32, logit: f32, capacity: usize) {
        let value = &value[..value.len().min(VALUE_BYTES)];
        if !self.values.contains_key(value) {
            self.values.insert(value.to_vec(), BinnedScores::default());
        }
        if let Some(scores) = self.values.get_mut(value) {
            let old_bins = scores.bins.len();
            scores.push(label, logit);
            self.bins += scores.bins.len() - old_bins;
        }
        self.shrink(capacity);
    }

    fn merge(&mut self, other: Self, capacity: usize) {
        self.other.merge(other.other);
        for (value, scores) in other.values {
            let mine = self.values.entry(value).or_default();
            let old_bins = mine.bins.len();
            mine.merge(scores);
            self.bins += mine.bins.len() - old_bins;
        }
        self.shrink(capacity);
    }

    /// Adds the rarest values to the others once there are too many bins. The most frequent value stays.
    fn shrink(&mut self, capacity: usize) {
        if self.bins <= capacity || self.values.len() < 2 {
            return;
        }
        let mut values: Vec<_> = self.values.drain().collect();
        values.sort_unstable_by(|a, b| by_frequency((&a.0, &a.1), (&b.0, &b.1)));
        while self.bins > capacity / 2 && values.len() > 1 {
            let Some((_, rarest)) = values.pop() else { break };
            self.bins -= rarest.bins.len();
            self.other.merge(rarest);
        }
        self.values.extend(values);
    }

    fn measure_slices(&self, column: String, most: usize) -> ColumnSlices {
        let mut values: Vec<_> = self.values.iter().collect();
        values.sort_unstable_by(|a, b| by_frequency(*a, *b));
        let mut other = self.other.clone();
        values.iter().skip(most).for_each(|(_, scores)| other.merge((*scores).clone()));
        let text = |value: &[u8]| Some(String::from_utf8_lossy(value).into_owned());
        let mut slices: Vec<_> =
            values.iter().take(most).map(|(value, scores)| SliceMeasures::new(text(value), scores)).collect();
        if other.sums.samples > 0 {
            slices.push(SliceMeasures::new(None, &other));
        }
        let exact = self.other.sums.samples == 0;
        ColumnSlices { column, values: self.values.len() as u64, exact, slices }
    }
}

impl SliceMeasures {
    fn new(value: Option<String>, scores: &BinnedScores) -> Self {
        let sums = &scores.sums;
        Self {
            value,
            samples: sums.samples,
            positive_rate: sums.positive_rate(),
            auc: scores.auc(),
            logloss: sums.logloss(),
            calibration: sums.calibration_ratio(),
        }
    }
}

/// The most frequent first; equally frequent ones by their text.
fn by_frequency(a: (&Vec<u8>, &BinnedScores), b: (&Vec<u8>, &BinnedScores)) -> Ordering {
    b.1.sums.samples.cmp(&a.1.sums.samples).then_with(|| a.0.cmp(b.0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixture::{near, quarters, scores};

    type Row = (u8, bool, f32);

    /// Two columns: the value, and the value halved.
    fn sliced(rows: &[Row], capacity: usize) -> SlicedScores {
        let mut sliced = SlicedScores::with_capacity(2, capacity);
        for (value, label, logit) in rows {
            for (column, value) in [value.to_string(), (value / 2).to_string()].iter().enumerate() {
                sliced.push(column, value.as_bytes(), f32::from(u8::from(*label)), *logit);
            }
        }
        sliced
    }

    fn report(sliced: &SlicedScores, most: usize) -> Vec<ColumnSlices> {
        sliced.measure_slices(&["one".to_owned(), "half".to_owned()], most)
    }

    fn rows() -> impl Strategy<Value = Vec<Row>> {
        // Logits that are far from each other, so that no two share a bin.
        prop::collection::vec((0_u8..20, any::<bool>(), quarters()), 0..120)
    }

    #[test]
    fn the_most_frequent_values_come_first_and_the_rest_is_one_slice() {
        let rows = [(3, true, 0.5), (3, false, 0.25), (9, true, 1.0), (9, true, -1.0), (5, false, 0.0), (7, true, 0.0)];
        let found = report(&sliced(&rows, 1000), 2);
        let shown = |slice: &SliceMeasures| (slice.value.clone(), slice.samples, slice.auc);
        let expected = [(Some("3".to_owned()), 2, Some(1.0)), (Some("9".to_owned()), 2, None), (None, 2, Some(0.5))];
        assert_eq!(found[0].slices.iter().map(shown).collect::<Vec<_>>(), expected);
        assert_eq!((found[0].values, found[0].exact, found[0].column.as_str()), (4, true, "one"));
        let all = report(&sliced(&rows, 1000), 9);
        assert!(all[0].slices.iter().all(|slice| slice.value.is_some()));
    }

    #[test]
    fn the_start_of_a_long_value_is_kept() {
        let mut sliced = SlicedScores::new(1);
        sliced.push(0, &[b'x'; 5000], 1.0, 0.0);
        sliced.push(0, &[b'x'; 4000], 0.0, 0.0);
        let found = sliced.measure_slices(&["c".to_owned()], 5);
        assert_eq!((found[0].slices.len(), found[0].slices[0].samples), (1, 2));
        assert_eq!(found[0].slices[0].value.as_ref().map(String::len), Some(VALUE_BYTES));
    }

    proptest! {
        #[test]
        fn a_slice_has_the_measures_of_its_samples(rows in rows(), most in 1_usize..25) {
            let found = report(&sliced(&rows, 1 << 16), most);
            for slice in found[0].slices.iter().filter(|slice| slice.value.is_some()) {
                let of_slice = rows.iter().filter(|row| Some(row.0.to_string()) == slice.value);
                let samples: Vec<_> = of_slice.map(|(_, label, logit)| (*label, *logit)).collect();
                let expected = scores(&samples).compute_measures();
                prop_assert_eq!(slice.samples, expected.samples);
                prop_assert!(near(slice.auc, expected.auc) && near(slice.logloss, expected.logloss));
                prop_assert!(near(slice.calibration, expected.calibration));
            }
        }

        /// With memory for all values, and with little.
        #[test]
        fn slices_are_all_samples_in_bounded_memory(rows in rows(), capacity in 2_usize..60, most in 0_usize..25) {
            let sliced = sliced(&rows, capacity);
            for (column, found) in sliced.columns.iter().zip_eq(report(&sliced, most)) {
                prop_assert_eq!(found.slices.iter().map(|slice| slice.samples).sum::<u64>(), rows.len() as u64);
                prop_assert!(found.slices.len() <= most + 1);
                // One value has at most sixteen bins here.
                prop_assert!(column.values.values().map(|scores| scores.bins.len()).sum::<usize>() <= capacity.max(16));
            }
        }

        #[test]
        fn order_and_merges_change_nothing(rows in rows(), middle in 0_usize..120) {
            let whole = sliced(&rows, 1 << 16);
            let (left, right) = rows.split_at(middle.min(rows.len()));
            let mut merged = sliced(right, 1 << 16);
            merged.merge(sliced(left, 1 << 16));
            for (a, b) in report(&merged, 5).iter().zip_eq(report(&whole, 5)) {
                prop_assert_eq!((a.values, a.exact), (b.values, b.exact));
                for (a, b) in a.slices.iter().zip_eq(&b.slices) {
                    prop_assert_eq!((&a.value, a.samples, a.auc), (&b.value, b.samples, b.auc));
                    prop_assert!(near(a.logloss, b.logloss));
                }
            }
        }
    }
}
