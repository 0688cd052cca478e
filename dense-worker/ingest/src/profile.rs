//! The state of a job's features in some files: how many values are missing, how many distinct ones there are, and how they are
//! distributed, beside the distribution in earlier files.
//!
//! ```text
//! yesterday's files ─► profile: its own bins, and the share of each ──┐
//! today's files ─► profile: share of yesterday's bins, own bins       ├─► drift
//! ```
//!
//! At most so many rows are read, the first ones of each file, in bounded memory. Every count that is kept is of whole blocks of rows,
//! merged in the order of the files.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zagros_job::Job;
use zagros_zip::ZipEq;

use crate::column_sums::{CategorySums, ColumnSums, NumberSums};
use crate::parse::bad::{BadBudget, LISTED};
use crate::sketch::QuantileSketch;
use crate::{IngestError, find_files};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataProfile {
    pub rows: u64,
    /// Whether these are all rows of the files.
    pub whole: bool,
    /// Share of positive rows, 0..1; 0 without rows.
    pub positive_rate: f64,
    pub bad_rows: u64,
    /// One for each feature, numeric ones first.
    pub features: Vec<FeatureProfile>,
}

/// Reads at most `limit` rows of the files: an equal number from the start of each. `before` is the profile of earlier files.
/// Malformed rows are counted and skipped.
pub fn profile_files(
    job: &Job,
    paths: &[PathBuf],
    limit: u64,
    before: Option<&DataProfile>,
) -> Result<DataProfile, IngestError> {
    let mut job = job.clone();
    // Each row is looked at by itself, without its group.
    job.eval.group_by = None;
    job.features = job.features.with_plain_categories();
    let job = Arc::new(job);
    let found = find_files(&job, paths)?;
    let quota = limit.div_ceil(found.len().max(1) as u64);
    let mut total = ColumnSums::new(&job, true);
    let (mut bad, mut whole) = (BadBudget::without_limit(LISTED), true);
    for file in &found {
        whole &= total.add_files(&job, std::slice::from_ref(file), quota, &mut bad)?;
    }
    let rows = total.rows;
    let numeric = job.features.numeric.iter().zip_eq(&total.numeric);
    // A vector counts once for each of its numbers.
    let numeric = numeric
        .map(|(feature, sums)| profile_numbers(feature.name(), sums, rows * feature.value_count() as u64, before));
    let categorical = job.features.categorical.iter().zip_eq(&mut total.categorical);
    let categorical = categorical.map(|(feature, sums)| profile_categories(&feature.name, sums, rows, before));
    Ok(DataProfile {
        rows,
        whole,
        positive_rate: total.positives as f64 / rows.max(1) as f64,
        bad_rows: bad.count,
        features: numeric.chain(categorical).collect(),
    })
}

const NUMERIC: u32 = 10;
/// Values of a categorical column that have a bin of their own.
const FREQUENT: usize = 20;

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

/// Population stability index of two distributions over the same bins: Σ (new − old) · ln(new / old). Below 0.1 they are alike, from 0.25
/// on they differ much (Siddiqi 2006, "Credit Risk Scorecards").
pub fn stability_index(old: &[f64], new: &[f64]) -> f64 {
    // An empty bin would be infinitely far.
    let bounded = |share: f64| share.max(1e-4);
    let term = |(old, new): (&f64, &f64)| {
        let (old, new) = (bounded(*old), bounded(*new));
        (new - old) * (new / old).ln()
    };
    old.iter().zip_eq(new).map(term).sum()
}

/// Shares of counts; zeros of none.
fn shares(counts: &[u64]) -> Vec<f64> {
    let total = counts.iter().sum::<u64>().max(1) as f64;
    counts.iter().map(|count| *count as f64 / total).collect()
}

/// The profile of a column with these numbers in so many places.
fn profile_numbers(column: &str, sums: &NumberSums, places: u64, before: Option<&DataProfile>) -> FeatureProfile {
    let missing = sums.missing as f64 / places.max(1) as f64;
    let values = sums.quantiles.as_ref().map(QuantileSketch::weighted_values).unwrap_or_default();
    let bin_shares = |bins: &ColumnBins| {
        let ColumnBins::Below(ends) = bins else { return Vec::new() };
        let mut counts = vec![0_u64; ends.len() + 2];
        for (value, times) in &values {
            counts[1 + ends.partition_point(|end| end <= value)] += *times;
        }
        // The sketch is of the values that are there.
        let mut shares: Vec<f64> = shares(&counts).into_iter().map(|share| share * (1.0 - missing)).collect();
        shares[0] = missing;
        shares
    };
    let bins = ColumnBins::Below(sums.quantiles.as_ref().map(|sketch| sketch.edges(NUMERIC)).unwrap_or_default());
    let drift = before.filter(|_| places > 0).and_then(|before| before.drift(column, bin_shares));
    let distribution = ValueDistribution { shares: bin_shares(&bins), bins };
    FeatureProfile { column: column.to_owned(), missing, distinct: None, drift, distribution }
}

/// The profile of a column with these categories in so many rows.
fn profile_categories(
    column: &str,
    sums: &mut CategorySums,
    rows: u64,
    before: Option<&DataProfile>,
) -> FeatureProfile {
    let distinct = Some(sums.distinct.estimate().0);
    let (missing, frequent) = (rows - sums.present, sums.frequent.take().unwrap_or_default());
    let bin_shares = |bins: &ColumnBins| {
        let ColumnBins::Values(values) = bins else { return Vec::new() };
        let hashes = values.iter().filter_map(|value| u64::from_str_radix(value, 16).ok());
        let mut counts = vec![missing];
        counts.extend(hashes.map(|hash| frequent.count(hash)));
        let others = sums.values.saturating_sub(counts[1..].iter().sum());
        counts.push(others);
        shares(&counts)
    };
    let top = frequent.most_frequent(FREQUENT);
    let bins = ColumnBins::Values(top.iter().map(|(value, _)| format!("{value:016x}")).collect());
    let drift = before.filter(|_| rows > 0).and_then(|before| before.drift(column, bin_shares));
    let distribution = ValueDistribution { shares: bin_shares(&bins), bins };
    let missing = missing as f64 / rows.max(1) as f64;
    FeatureProfile { column: column.to_owned(), missing, distinct, drift, distribution }
}

impl DataProfile {
    /// The drift of a column from this earlier profile, where `bin_shares` gives the shares of its values by some bins; none by those of
    /// a column of another kind.
    fn drift(&self, column: &str, bin_shares: impl Fn(&ColumnBins) -> Vec<f64>) -> Option<f64> {
        let earlier = &self.features.iter().find(|feature| feature.column == column)?.distribution;
        let found = bin_shares(&earlier.bins);
        (found.len() == earlier.shares.len()).then(|| stability_index(&earlier.shares, &found))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixture;

    /// A file of rows `click,age,city,tags`.
    fn profiled(rows: &str, before: Option<&DataProfile>, limit: u64, threads: usize) -> DataProfile {
        let (_folder, path) = fixture::file(format!("click,age,city,tags\n{rows}"));
        let mut job = fixture::delimited(|_| ());
        job.data.threads = threads;
        profile_files(&job, &[path], limit, before).unwrap()
    }

    fn feature<'a>(profile: &'a DataProfile, column: &str) -> &'a FeatureProfile {
        profile.features.iter().find(|feature| feature.column == column).unwrap()
    }

    fn rows(count: u32, row: impl Fn(u32) -> String) -> String {
        (0..count).map(row).collect()
    }

    #[test]
    fn values_are_counted_by_feature() {
        let found = profiled("1,2,Basel,a|b\n0,?,Bern,a\n0,6,?,?\nbad\n0,4,Basel,b|c|d\n", None, 100, 1);
        assert_eq!((found.rows, found.whole, found.positive_rate, found.bad_rows), (4, true, 0.25, 1));
        let features =
            found.features.iter().map(|found| (found.column.as_str(), found.missing, found.distinct, found.drift));
        let expected = [("age", 0.25, None, None), ("city", 0.25, Some(2), None), ("tags", 0.25, Some(4), None)];
        assert_eq!(features.collect::<Vec<_>>(), expected);
        // Missing, Basel, Bern, others.
        assert_eq!(feature(&found, "city").distribution.shares, [0.25, 0.5, 0.25, 0.0]);
    }

    #[test]
    fn the_same_rows_do_not_drift_and_other_rows_do() {
        let day = |shift: u32| {
            rows(20_000, |n| {
                format!("{},{},c{},t\n", n % 2, (n % 100) + 50 * shift, if shift == 1 { n % 5 } else { n % 40 })
            })
        };
        let first = profiled(&day(0), None, 1_000_000, 2);
        let same = profiled(&day(0), Some(&first), 1_000_000, 3);
        assert!(same.features.iter().all(|feature| feature.drift.unwrap() < 1e-3), "{same:?}");
        let other = profiled(&day(1), Some(&first), 1_000_000, 1);
        assert!(feature(&other, "age").drift.unwrap() > 1.0, "{other:?}");
        assert!(feature(&other, "city").drift.unwrap() > 0.25);
        assert!(feature(&other, "tags").drift.unwrap() < 1e-3);
    }

    #[test]
    fn missing_values_are_drift() {
        let first = profiled(&rows(1_000, |n| format!("0,{},c,t\n", n % 10)), None, 1_000_000, 1);
        let second =
            rows(1_000, |n| if n % 2 == 0 { "0,?,c,t\n".to_owned() } else { format!("0,{},c,t\n", n / 2 % 10) });
        let second = profiled(&second, Some(&first), 1_000_000, 1);
        assert_eq!(feature(&second, "age").missing, 0.5);
        assert!(feature(&second, "age").drift.unwrap() > 0.25);
    }

    #[test]
    fn a_limit_reads_the_same_rows_for_any_number_of_threads() {
        let text = rows(300_000, |n| format!("{},{n},c{},t{n}\n", n % 2, n % 1_000));
        let found = profiled(&text, None, 100_000, 1);
        assert!(!found.whole && found.rows >= 100_000 && found.rows < 200_000, "{}", found.rows);
        assert_eq!(profiled(&text, None, 100_000, 3), found);
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

    #[test]
    fn many_numbers_have_even_bins_whole_and_in_blocks() {
        let [mut whole, mut parts, mut block] = std::array::from_fn(|_| NumberSums::new(true));
        for number in 0..200_000 {
            let value = Some(f64::from(number % 1_000));
            whole.add(value);
            block.add(value);
            if number % 5_000 == 4_999 {
                parts.merge(&block);
                block.clear();
            }
        }
        for sums in [whole, parts] {
            let shares = profile_numbers("n", &sums, 200_000, None).distribution.shares;
            assert!(shares.len() == 11 && shares[1..].iter().all(|share| (share - 0.1).abs() < 0.01), "{shares:?}");
        }
    }

    #[test]
    fn a_column_that_was_of_another_kind_has_no_drift() {
        let rows = rows(10, |n| format!("0,{n},c,t\n"));
        let mut earlier = profiled(&rows, None, 100, 1);
        let [age, city] = [0, 1].map(|at| earlier.features[at].distribution.clone());
        (earlier.features[0].distribution, earlier.features[1].distribution) = (city, age);
        let drifts = profiled(&rows, Some(&earlier), 100, 1).features.into_iter().map(|feature| feature.drift);
        assert_eq!(drifts.collect::<Vec<_>>(), [None, None, Some(0.0)]);
    }
}
