//! A feature: what is missing, the distribution of its values in bins, and how far one distribution is from another.

use serde::{Deserialize, Serialize};
use zagros_zip::ZipEq;

/// Bins of a numeric column.
const NUMERIC: usize = 10;
/// Values of a categorical column that have a bin of their own.
pub(super) const FREQUENT: usize = 20;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeatureProfile {
    pub column: String,
    /// Share of rows without a value, 0..1.
    pub missing: f64,
    /// Distinct values of a categorical feature, without the missing one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distinct: Option<u64>,
    /// Population stability index against the earlier files; `None` without them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<f64>,
    pub distribution: ValueDistribution,
}

/// Bins and the share of the values in each: `[missing, bin 0, bin 1, …]`. The last bin of a categorical column is all other values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValueDistribution {
    pub bins: ColumnBins,
    pub shares: Vec<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ColumnBins {
    /// Of a numeric column: a bin ends below each of these numbers, ascending, and the last one has no end.
    Below(Vec<f64>),
    /// Of a categorical column: hashes of the most frequent values, hexadecimal.
    Values(Vec<String>),
}

impl ColumnBins {
    /// About as many values in each; `sample` ascending. Fewer bins where values are equal.
    pub(super) fn from_numbers(sample: &[f64]) -> Self {
        let mut ends: Vec<f64> = (1..NUMERIC).filter_map(|n| sample.get(n * sample.len() / NUMERIC).copied()).collect();
        ends.dedup();
        // Nothing is below the smallest value.
        ends.retain(|end| sample.first().is_some_and(|first| first < end));
        Self::Below(ends)
    }

    pub(super) fn from_values(values: impl Iterator<Item = u64>) -> Self {
        Self::Values(values.map(|value| format!("{value:016x}")).collect())
    }

    /// How many there are, with that of missing values.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::Below(ends) => ends.len() + 2,
            Self::Values(values) => values.len() + 2,
        }
    }
}

/// Population stability index of two distributions over the same bins: Σ (new − old) · ln(new / old). Below 0.1 they are alike, from 0.25
/// on they differ much (Siddiqi 2006, "Credit Risk Scorecards").
#[must_use]
pub fn stability_index(old: &[f64], new: &[f64]) -> f64 {
    // An empty bin would be infinitely far.
    let bounded = |share: f64| share.max(1e-4);
    let term = |(old, new): (&f64, &f64)| {
        let (old, new) = (bounded(*old), bounded(*new));
        (new - old) * (new / old).ln()
    };
    old.iter().zip_eq(new).map(term).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_have_bins_of_about_equal_size() {
        let sample: Vec<f64> = (0..100).map(f64::from).collect();
        let expected: Vec<f64> = (1..10).map(|n| f64::from(n * 10)).collect();
        assert_eq!(ColumnBins::from_numbers(&sample), ColumnBins::Below(expected));
        // Most values are 0.
        let sample: Vec<f64> = (0..100).map(|n| f64::from((n - 85_i32).max(0))).collect();
        assert_eq!(ColumnBins::from_numbers(&sample), ColumnBins::Below(vec![5.0]));
        assert_eq!(ColumnBins::from_numbers(&[]).count(), 2);
        assert_eq!(ColumnBins::from_numbers(&[1.0, 1.0]), ColumnBins::Below(vec![]));
    }

    #[test]
    fn a_worked_example() {
        let index = stability_index(&[0.5, 0.5], &[0.75, 0.25]);
        assert!((index - (0.25 * 1.5_f64.ln() - 0.25 * 0.5_f64.ln())).abs() < 1e-12, "{index}");
        assert_eq!(stability_index(&[0.25, 0.75], &[0.25, 0.75]), 0.0);
        assert!(stability_index(&[1.0, 0.0], &[0.0, 1.0]).is_finite());
    }

    proptest! {
        #[test]
        fn it_is_symmetric_and_not_negative(pairs in prop::collection::vec((0.0_f64..1.0, 0.0_f64..1.0), 1..20)) {
            let (old, new): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
            let index = stability_index(&old, &new);
            prop_assert!(index >= 0.0 && (index - stability_index(&new, &old)).abs() < 1e-9);
        }
    }
}
