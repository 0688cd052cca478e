//! Statistics of features, measured by reading the training rows once: means and deviations, ranges, quantiles, frequent ids, and numbers
//! of categories. A second reading is needed only for a vocabulary or an encoding with buckets whose edges are measured themselves.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use zagros_job::{
    ColumnMoments, ColumnRange, FeatureStatistic, Features, IdSource, Job, MeasuredValue, Numeric, Vocabulary,
};
use zagros_zip::ZipEq;

use self::encodings::EncodingCounts;
use crate::category::{AsItIs, IdMap};
use crate::parse::bad::{BadBudget, LISTED};
use crate::parse::sink::RowSink;
use crate::pipeline::PipelineConfig;
use crate::sketch::{MomentSums, QuantileSketch};
use crate::transform::NumericShape;
use crate::{DataPart, IngestError, find_files};

mod encodings;

pub use self::encodings::RareCategories;

/// Most different categories that are counted for a vocabulary: about 100 MB.
const MOST_COUNTED: usize = 1 << 22;

/// The counts of a measurement; zeros if nothing was to be measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FitReport {
    pub rows: u64,
    pub bad_rows: u64,
    /// Share of positive rows, 0..1.
    pub positive_rate: f64,
    /// Encodings that do not list every category.
    pub rare: Vec<RareCategories>,
}

/// Sets every statistic that the job leaves to be measured ([`Features::unmeasured`]): of the column's present values in the training rows,
/// after clip and logarithm if the feature has them. A column with a single value gets deviation 1. Bytes are added to `read`
/// as they are read. The same files give the same bits for any number of threads.
/// The job is unchanged after an error.
pub fn fit_features(job: &mut Job, read: &AtomicU64, cancel: &Arc<AtomicBool>) -> Result<FitReport, IngestError> {
    let (mut fitted, mut report, mut rare) = (job.clone(), None, Vec::new());
    loop {
        let mut what = fitted.features.unmeasured_statistics();
        what.retain(|statistic| is_ready(&fitted.features, *statistic));
        if what.is_empty() {
            break;
        }
        let (total, bad_rows) = measure_statistics(&fitted, &what, read, cancel)?;
        let positive_rate = total.positives as f64 / total.rows.max(1) as f64;
        report.get_or_insert(FitReport { rows: total.rows, bad_rows, positive_rate, rare: Vec::new() });
        let (values, notes) = total.measured(&fitted.features, &what);
        rare.extend(notes);
        for (statistic, value) in values {
            fitted.features.set_measured(statistic, value);
        }
    }
    *job = fitted;
    Ok(FitReport { rare, ..report.unwrap_or_default() })
}

/// Whether all that the statistic depends on is measured.
fn is_ready(features: &Features, statistic: FeatureStatistic) -> bool {
    let names = match statistic {
        FeatureStatistic::Vocabulary(feature) => match &features.categorical[feature].source {
            IdSource::Cross(names) => names.clone(),
            IdSource::Column { .. } => return true,
        },
        FeatureStatistic::Encoding(feature) => names_of_encoded(features, feature),
        FeatureStatistic::Standardise(_) | FeatureStatistic::MinMax(_) | FeatureStatistic::Edges(_) => return true,
    };
    let edges = |of: &usize| names.contains(&features.categorical[*of].name);
    features.unmeasured_statistics().iter().all(|other| !matches!(other, FeatureStatistic::Edges(of) if edges(of)))
}

/// The columns and features whose combination a numeric feature encodes.
fn names_of_encoded(features: &Features, feature: usize) -> Vec<String> {
    let numeric = &features.numeric[feature];
    let other_columns = numeric.encode.iter().flat_map(|encoding| &encoding.with);
    std::iter::once(&numeric.column).chain(other_columns).cloned().collect()
}

fn measure_statistics(
    job: &Job,
    what: &[FeatureStatistic],
    read: &AtomicU64,
    cancel: &Arc<AtomicBool>,
) -> Result<(FitSink, u64), IngestError> {
    if job.data.train.is_empty() {
        return Err(IngestError::NoFiles { key: "train" });
    }
    let files = find_files(job, &job.data.train)?;
    let (reduced, mut total) = reduce_job(job, what);
    let (mut bad, empty) = (BadBudget::new(&job.data, LISTED), total.clone());
    let config = PipelineConfig::whole_files(&Arc::new(reduced), DataPart::Train, &files);
    PipelineConfig { cancel: Arc::clone(cancel), ..config }.read_all(&empty, &mut bad, |parsed| {
        total.merge(&parsed.sink);
        if let Some(feature) = total.oversized_feature() {
            return Err(IngestError::LargeVocabulary { feature: feature.to_owned(), most: MOST_COUNTED });
        }
        read.fetch_add(parsed.bytes, Ordering::Relaxed);
        Ok(true)
    })?;
    Ok((total, bad.count))
}

/// A job that reads only what these statistics need, and the sink for its rows. Its numeric features are the numbers and encodings that
/// are measured, in order.
fn reduce_job(job: &Job, what: &[FeatureStatistic]) -> (Job, FitSink) {
    let (features, mut numeric, mut numbers, mut encodings) = (&job.features, Vec::new(), Vec::new(), Vec::new());
    let mut kept = vec![false; features.categorical.len()];
    // A combination finds its parts by name.
    let keep = |kept: &mut [bool], names: &[String]| {
        let is_part = |of: usize| names.contains(&features.categorical[of].name);
        (0..kept.len()).filter(|of| is_part(*of)).for_each(|of| kept[of] = true);
    };
    for statistic in what {
        match *statistic {
            FeatureStatistic::Standardise(feature) | FeatureStatistic::MinMax(feature) => {
                let (column, is_range) = (&features.numeric[feature], matches!(statistic, FeatureStatistic::MinMax(_)));
                let shape = NumericShape::new(column);
                let none = if is_range {
                    NumberStatistic::range(shape)
                } else {
                    NumberStatistic::Moments(shape, MomentSums::NONE)
                };
                numbers.extend(vec![none; column.value_count()]);
                numeric.push(column.clone());
            }
            FeatureStatistic::Edges(feature) => {
                let part = features.column_parts(&features.categorical[feature])[0];
                numbers.push(NumberStatistic::Quantiles(QuantileSketch::default()));
                numeric.push(Numeric::from(part.column.to_owned()));
            }
            FeatureStatistic::Vocabulary(feature) => {
                kept[feature] = true;
                if let IdSource::Cross(names) = &features.categorical[feature].source {
                    keep(&mut kept, names);
                }
            }
            FeatureStatistic::Encoding(feature) => {
                let column = &features.numeric[feature];
                let counts = column.encode.as_ref().map(|encoding| EncodingCounts::new(column.name(), encoding));
                encodings.extend(counts);
                keep(&mut kept, &names_of_encoded(features, feature));
                numeric.push(column.clone());
            }
        }
    }
    let of_feature = |feature: usize| {
        let counted = what.contains(&FeatureStatistic::Vocabulary(feature));
        let categorical = &features.categorical[feature];
        counted.then(|| CategoryFrequencies {
            name: categorical.name.clone(),
            map: IdMap::new(categorical),
            counts: HashMap::default(),
        })
    };
    let positions: Vec<usize> = (0..kept.len()).filter(|feature| kept[*feature]).collect();
    let categories = positions.iter().map(|feature| of_feature(*feature)).collect();
    let mut reduced = job.clone();
    reduced.features.numeric = numeric;
    reduced.features.categorical = positions.iter().map(|of| features.categorical[*of].clone()).collect();
    let (row, ids, place, rows, positives) = (Vec::new(), Vec::new(), 0, 0, 0);
    (reduced, FitSink { numbers, categories, encodings, row, ids, place, rows, positives })
}

#[derive(Clone, Debug)]
enum NumberStatistic {
    Moments(NumericShape, MomentSums),
    Range(NumericShape, [f64; 2]),
    Quantiles(QuantileSketch),
}

impl NumberStatistic {
    fn range(shape: NumericShape) -> Self {
        Self::Range(shape, [f64::INFINITY, f64::NEG_INFINITY])
    }

    #[inline]
    fn add(&mut self, value: f64) {
        match self {
            Self::Moments(shape, moments) => moments.add(shape.apply(value)),
            Self::Range(shape, [min, max]) => {
                let value = shape.apply(value);
                (*min, *max) = (min.min(value), max.max(value));
            }
            Self::Quantiles(sketch) => sketch.add(value),
        }
    }

    fn merge(&mut self, other: &Self) {
        match (self, other) {
            (Self::Moments(_, moments), Self::Moments(_, from)) => moments.merge(from),
            (Self::Range(_, [min, max]), Self::Range(_, from)) => (*min, *max) = (min.min(from[0]), max.max(from[1])),
            (Self::Quantiles(sketch), Self::Quantiles(from)) => sketch.merge(from),
            _ => unreachable!("sinks of one job have the same columns"),
        }
    }

    fn clear(&mut self) {
        match self {
            Self::Moments(_, moments) => *moments = MomentSums::NONE,
            Self::Range(shape, _) => *self = Self::range(*shape),
            Self::Quantiles(sketch) => sketch.clear(),
        }
    }

    fn measured(&self, features: &Features, statistic: FeatureStatistic) -> MeasuredValue {
        match self {
            Self::Moments(_, moments) => {
                let deviation = moments.deviation();
                let deviation = vec![if deviation > 0.0 { deviation } else { 1.0 }];
                MeasuredValue::Moments(ColumnMoments { mean: vec![moments.mean()], deviation })
            }
            // A column of one value, or of none.
            Self::Range(_, [min, max]) if min >= max => {
                let min = if min.is_finite() { *min } else { 0.0 };
                MeasuredValue::Range(ColumnRange { min: vec![min], max: vec![min + min.abs().max(1.0)] })
            }
            Self::Range(_, [min, max]) => MeasuredValue::Range(ColumnRange { min: vec![*min], max: vec![*max] }),
            Self::Quantiles(sketch) => {
                let parts = match statistic {
                    FeatureStatistic::Edges(of) => {
                        features.categorical[of].buckets().map_or(1, zagros_job::ValueBuckets::range_count)
                    }
                    _ => 1,
                };
                MeasuredValue::Edges(sketch.edges(parts))
            }
        }
    }
}

#[derive(Clone, Debug)]
struct CategoryFrequencies {
    name: String,
    map: IdMap,
    counts: HashMap<u64, u32, BuildHasherDefault<AsItIs>>,
}

impl CategoryFrequencies {
    fn add(&mut self, id: u64, times: u32) {
        let count = self.counts.entry(id).or_default();
        *count = count.saturating_add(times);
    }

    /// The most frequent ids. Of equally frequent ones, the least.
    fn frequent_ids(&self, vocabulary: &Vocabulary) -> Vec<u64> {
        let is_frequent = |(_, count): &(&u64, &u32)| **count >= vocabulary.min_count;
        let mut ids: Vec<(u32, u64)> =
            self.counts.iter().filter(is_frequent).map(|(id, count)| (*count, *id)).collect();
        ids.sort_unstable_by(|one, other| other.0.cmp(&one.0).then(one.1.cmp(&other.1)));
        ids.truncate(vocabulary.max_size as usize);
        ids.into_iter().map(|(_, id)| id).collect()
    }
}

#[derive(Clone, Debug)]
struct FitSink {
    numbers: Vec<NumberStatistic>,
    /// One for each categorical feature; `None` for one that is only a part of a cross.
    categories: Vec<Option<CategoryFrequencies>>,
    /// One for each numeric feature that encodes a category.
    encodings: Vec<EncodingCounts>,
    row: Vec<Option<f64>>,
    /// Feature and id of each value of the row.
    ids: Vec<(usize, u64)>,
    place: u64,
    rows: u64,
    positives: u64,
}

impl FitSink {
    fn merge(&mut self, other: &Self) {
        self.numbers.iter_mut().zip_eq(&other.numbers).for_each(|(column, from)| column.merge(from));
        for (column, from) in self.categories.iter_mut().zip_eq(&other.categories) {
            if let (Some(column), Some(from)) = (column, from) {
                from.counts.iter().for_each(|(id, count)| column.add(*id, *count));
            }
        }
        self.encodings.iter_mut().zip_eq(&other.encodings).for_each(|(counts, from)| counts.merge(from));
        self.rows += other.rows;
        self.positives += other.positives;
    }

    fn oversized_feature(&self) -> Option<&str> {
        let found = self.categories.iter().flatten().find(|column| column.counts.len() > MOST_COUNTED);
        found.map(|column| column.name.as_str())
    }

    fn measured(
        &self,
        features: &Features,
        what: &[FeatureStatistic],
    ) -> (Vec<(FeatureStatistic, MeasuredValue)>, Vec<RareCategories>) {
        let mut rare = Vec::new();
        let mut numbers = self.numbers.iter();
        let (mut categories, mut encodings) = (self.categories.iter().flatten(), self.encodings.iter());
        let mut value = |statistic: &FeatureStatistic| {
            let value = match *statistic {
                FeatureStatistic::Vocabulary(feature) => {
                    MeasuredValue::Ids(categories.next()?.frequent_ids(features.categorical[feature].vocabulary()?))
                }
                FeatureStatistic::Standardise(feature) | FeatureStatistic::MinMax(feature) => {
                    let each = numbers.by_ref().take(features.numeric[feature].value_count());
                    each.map(|numbers| numbers.measured(features, *statistic)).reduce(join_numbers)?
                }
                FeatureStatistic::Edges(_) => numbers.next()?.measured(features, *statistic),
                FeatureStatistic::Encoding(_) => {
                    let (table, note) = encodings.next()?.fit_table();
                    rare.extend(note);
                    MeasuredValue::Encoding(table)
                }
            };
            Some((*statistic, value))
        };
        let values = what.iter().filter_map(&mut value).collect();
        (values, rare)
    }
}

/// The statistic of a vector from those of its numbers, of one kind.
fn join_numbers(mut first: MeasuredValue, next: MeasuredValue) -> MeasuredValue {
    match (&mut first, next) {
        (MeasuredValue::Moments(first), MeasuredValue::Moments(next)) => {
            first.mean.extend(next.mean);
            first.deviation.extend(next.deviation);
        }
        (MeasuredValue::Range(first), MeasuredValue::Range(next)) => {
            first.min.extend(next.min);
            first.max.extend(next.max);
        }
        _ => {}
    }
    first
}

impl RowSink for FitSink {
    fn place(&mut self, place: u64) {
        self.place = place;
    }

    fn numeric(&mut self, _feature: usize, value: Option<f64>) {
        self.row.push(value);
    }

    fn id(&mut self, feature: usize, id: u64) {
        match self.categories.get(feature) {
            Some(Some(column)) => self.ids.push((feature, column.map.apply(id))),
            Some(None) => {}
            None => self.ids.push((feature, id)),
        }
    }

    fn commit(&mut self, labels: &[f32], weight: Option<f32>) {
        for (column, value) in self.numbers.iter_mut().zip_eq(self.row.drain(..)) {
            if let Some(value) = value {
                column.add(value);
            }
        }
        for (feature, id) in self.ids.drain(..) {
            match self.categories.get_mut(feature) {
                Some(column) => column.iter_mut().for_each(|column| column.add(id, 1)),
                None => {
                    let encoding = &mut self.encodings[feature - self.categories.len()];
                    encoding.add(id, self.place, labels[0], weight.unwrap_or(1.0));
                }
            }
        }
        self.rows += 1;
        self.positives += u64::from(labels[0] > 0.5);
    }

    fn abandon(&mut self) {
        self.row.clear();
        self.ids.clear();
    }

    fn clear(&mut self) {
        self.abandon();
        self.numbers.iter_mut().for_each(NumberStatistic::clear);
        self.categories.iter_mut().flatten().for_each(|column| column.counts.clear());
        self.encodings.iter_mut().for_each(EncodingCounts::clear);
        (self.rows, self.positives) = (0, 0);
    }
}

#[cfg(test)]
mod tests;
