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

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zagros_job::Job;
use zagros_zip::ZipEq;

use crate::column_sums::{CategorySums, ColumnSum, ColumnSums};
use crate::parse::bad::{BadBudget, LISTED};
use crate::pipeline::PipelineConfig;
use crate::sketch::{FrequentValues, QuantileSketch};
use crate::{DataPart, IngestError, find_files};

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
        let earlier_rows = total.rows;
        let config = PipelineConfig::whole_files(&job, DataPart::All, std::slice::from_ref(file));
        // Whole blocks, in their order: the same rows for any number of threads.
        config.read_all(&empty, &mut bad, |parsed| {
            let is_wanted = total.rows - earlier_rows < quota;
            if is_wanted {
                total.merge(&parsed.sink);
            }
            whole &= is_wanted;
            Ok(is_wanted)
        })?;
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

impl ColumnBins {
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
struct NumberCounts {
    ends: Arc<[f64]>,
    earlier: EarlierBins,
    missing: u64,
    values: QuantileSketch,
}

impl NumberCounts {
    /// Counts by the bins of earlier files, if there are any.
    fn new(bins: Option<&ColumnBins>) -> Self {
        let bins = bins.filter(|bins| matches!(bins, ColumnBins::Below(_)));
        let ends: Arc<[f64]> = match bins {
            Some(ColumnBins::Below(ends)) => ends.as_slice().into(),
            _ => Arc::default(),
        };
        Self { ends, earlier: EarlierBins::new(bins), missing: 0, values: QuantileSketch::default() }
    }

    fn feature_profile(&self, column: &str, rows: u64, earlier: Option<&[f64]>) -> FeatureProfile {
        let ends = self.values.edges(NUMERIC);
        let missing = self.missing as f64 / rows.max(1) as f64;
        let mut counts = vec![0; ends.len() + 2];
        for (value, times) in self.values.weighted_values() {
            counts[1 + ends.partition_point(|end| *end <= value)] += times;
        }
        // The sketch is of the values that are there.
        let mut shares: Vec<f64> = shares(&counts).into_iter().map(|share| share * (1.0 - missing)).collect();
        shares[0] = missing;
        FeatureProfile {
            column: column.to_owned(),
            missing,
            distinct: None,
            drift: self.earlier.drift(earlier),
            distribution: ValueDistribution { bins: ColumnBins::Below(ends), shares },
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
        self.values.add(value);
    }

    fn merge(&mut self, other: &Self) {
        self.earlier.merge(&other.earlier);
        self.missing += other.missing;
        self.values.merge(&other.values);
    }

    fn clear(&mut self) {
        self.earlier.clear();
        self.missing = 0;
        self.values.clear();
    }
}

#[derive(Clone, Debug)]
struct CategoryCounts {
    /// Positions of the earlier bins by value.
    places: Arc<HashMap<u64, usize>>,
    earlier: EarlierBins,
    sums: CategorySums,
    frequent: FrequentValues,
}

impl CategoryCounts {
    /// Counts by the bins of earlier files, if there are any.
    fn new(bins: Option<&ColumnBins>) -> Self {
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

    fn feature_profile(&mut self, column: &str, rows: u64, earlier: Option<&[f64]>) -> FeatureProfile {
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
    use proptest::prelude::*;

    use super::*;
    use crate::{fixture, hash_value};

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
        for counts in [whole, parts] {
            let shares = counts.feature_profile("n", 200_000, None).distribution.shares;
            assert!(shares.len() == 11 && shares[1..].iter().all(|share| (share - 0.1).abs() < 0.01), "{shares:?}");
        }
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
