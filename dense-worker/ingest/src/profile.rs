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

mod column;

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zagros_job::Job;
use zagros_zip::ZipEq;

use self::column::{CategoryCounts, NumberCounts};
use crate::column_sums::ColumnSums;
use crate::parse::bad::{BadBudget, LISTED};
use crate::pipeline::{BLOCK_BYTES, ParsePipeline, PipelineConfig};
use crate::{DataPart, IngestError, WholeFiles, find_files};

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
    let mut total = ProfileSink::with_earlier_bins(&job, before);
    let (mut bad, mut whole, empty) = (BadBudget::without_limit(LISTED), true, total.clone());
    for file in &found {
        let (splits, before) = (Box::new(WholeFiles::new(std::slice::from_ref(file))), total.rows);
        let (job, part, block_bytes, cancel) = (Arc::clone(&job), DataPart::All, BLOCK_BYTES, Arc::default());
        let mut pipeline = ParsePipeline::start(PipelineConfig { job, part, splits, block_bytes, cancel }, &empty)?;
        // Whole blocks, in their order: the same rows for any number of threads.
        while let Some(parsed) = pipeline.next()? {
            if total.rows - before >= quota {
                whole = false;
                break;
            }
            bad.add(&parsed.outcome, &parsed.layout, parsed.place)?;
            total.merge(&parsed.sink);
            pipeline.recycle(parsed.sink);
        }
    }
    Ok(total.data_profile(&job, before, whole, bad.count))
}

type ProfileSink = ColumnSums<NumberCounts, CategoryCounts>;

impl ProfileSink {
    fn with_earlier_bins(job: &Job, before: Option<&DataProfile>) -> Self {
        let bins = |column: &str| earlier_distribution(before, column).map(|earlier| &earlier.bins);
        let numeric = job.features.numeric.iter().map(|feature| NumberCounts::new(bins(feature.name())));
        let categorical = job.features.categorical.iter().map(|feature| CategoryCounts::new(bins(&feature.name)));
        Self::new(job, numeric.collect(), categorical.collect(), None)
    }

    fn data_profile(mut self, job: &Job, before: Option<&DataProfile>, whole: bool, bad_rows: u64) -> DataProfile {
        let shares = |column: &str| earlier_distribution(before, column).map(|earlier| earlier.shares.as_slice());
        let rows = self.rows;
        let numeric = job.features.numeric.iter().zip_eq(&mut self.numeric);
        // A vector counts once for each of its numbers.
        let numeric = numeric.map(|(feature, counts)| {
            counts.feature_profile(feature.name(), rows * feature.value_count() as u64, shares(feature.name()))
        });
        let categorical = job.features.categorical.iter().zip_eq(&mut self.categorical);
        let categorical =
            categorical.map(|(feature, counts)| counts.feature_profile(&feature.name, rows, shares(&feature.name)));
        DataProfile {
            rows,
            whole,
            positive_rate: self.positives as f64 / rows.max(1) as f64,
            bad_rows,
            features: numeric.chain(categorical).collect(),
        }
    }
}

fn earlier_distribution<'a>(before: Option<&'a DataProfile>, column: &str) -> Option<&'a ValueDistribution> {
    let mut features = before.into_iter().flat_map(|before| &before.features);
    features.find(|feature| feature.column == column).map(|feature| &feature.distribution)
}

/// Bins of a numeric column.
const NUMERIC: usize = 10;
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

impl ColumnBins {
    /// About as many values in each; `sample` ascending. Fewer bins where values are equal.
    fn from_numbers(sample: &[f64]) -> Self {
        let mut ends: Vec<f64> = (1..NUMERIC).filter_map(|n| sample.get(n * sample.len() / NUMERIC).copied()).collect();
        ends.dedup();
        // Nothing is below the smallest value.
        ends.retain(|end| sample.first().is_some_and(|first| first < end));
        Self::Below(ends)
    }

    fn from_values(values: impl Iterator<Item = u64>) -> Self {
        Self::Values(values.map(|value| format!("{value:016x}")).collect())
    }

    /// How many there are, with that of missing values.
    fn count(&self) -> usize {
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
