//! Sums of the columns of rows, each column by itself, in bounded memory: what inspections, profiles and measured statistics have in common.

use std::sync::Arc;

use zagros_job::Job;
use zagros_zip::ZipEq;

use crate::category::missing_id;
use crate::parse::bad::BadBudget;
use crate::parse::sink::RowSink;
use crate::pipeline::PipelineConfig;
use crate::sketch::{DistinctSketch, FrequentValues, MomentSums, QuantileSketch};
use crate::transform::features_of_numbers;
use crate::{DataPart, FileInfo, IngestError};

/// A sink that sums up columns of numbers, which may be missing, and columns of categories.
#[derive(Clone, Debug)]
pub(crate) struct ColumnSums {
    /// The numbers of the row that is read, in order.
    numbers: Vec<Option<f64>>,
    /// Feature and id of each of its categories that is not missing.
    values: Vec<(usize, u64)>,
    /// The feature of each number of a row.
    features: Arc<[usize]>,
    pub(crate) numeric: Vec<NumberSums>,
    pub(crate) categorical: Vec<CategorySums>,
    pub(crate) rows: u64,
    pub(crate) positives: u64,
}

impl ColumnSums {
    /// No rows. The distributions of values are kept if they are `distributed`: they cost more than all else.
    pub(crate) fn new(job: &Job, distributed: bool) -> Self {
        let (numbers, values, features) = (Vec::new(), Vec::new(), features_of_numbers(&job.features));
        let numeric = vec![NumberSums::new(distributed); job.features.numeric.len()];
        let categorical = vec![CategorySums::new(distributed); job.features.categorical.len()];
        Self { numbers, values, features, numeric, categorical, rows: 0, positives: 0 }
    }

    fn merge(&mut self, other: &Self) {
        self.numeric.iter_mut().zip_eq(&other.numeric).for_each(|(column, from)| column.merge(from));
        self.categorical.iter_mut().zip_eq(&other.categorical).for_each(|(column, from)| column.merge(from));
        self.rows += other.rows;
        self.positives += other.positives;
    }

    /// Adds the rows of files: whole blocks in their order, until there are `most` rows, so that these are the same for any number of
    /// threads. Says whether these are all.
    pub(crate) fn add_files(
        &mut self,
        job: &Arc<Job>,
        files: &[FileInfo],
        most: u64,
        bad: &mut BadBudget,
    ) -> Result<bool, IngestError> {
        let (rows_before, mut is_whole, mut empty) = (self.rows, true, self.clone());
        empty.clear();
        PipelineConfig::whole_files(job, DataPart::All, files).read_all(&empty, bad, |parsed| {
            let is_wanted = self.rows - rows_before < most;
            if is_wanted {
                self.merge(&parsed.sink);
            }
            is_whole &= is_wanted;
            Ok(is_wanted)
        })?;
        Ok(is_whole)
    }
}

impl RowSink for ColumnSums {
    fn numeric(&mut self, _feature: usize, value: Option<f64>) {
        self.numbers.push(value);
    }

    fn id(&mut self, feature: usize, id: u64) {
        if id != missing_id() {
            self.values.push((feature, id));
        }
    }

    fn commit(&mut self, labels: &[f32], _weight: Option<f32>) {
        self.rows += 1;
        self.positives += u64::from(labels[0] > 0.5);
        for (feature, value) in self.features.iter().zip_eq(&self.numbers) {
            self.numeric[*feature].add(*value);
        }
        for (feature, hash) in &self.values {
            self.categorical[*feature].add(*hash, self.rows);
        }
        self.abandon();
    }

    fn abandon(&mut self) {
        self.numbers.clear();
        self.values.clear();
    }

    fn clear(&mut self) {
        self.abandon();
        self.numeric.iter_mut().for_each(NumberSums::clear);
        self.categorical.iter_mut().for_each(CategorySums::clear);
        (self.rows, self.positives) = (0, 0);
    }
}

/// The numbers of a column.
#[derive(Clone, Debug)]
pub(crate) struct NumberSums {
    pub(crate) missing: u64,
    pub(crate) moments: MomentSums,
    /// Infinite without numbers, as `max` is.
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) quantiles: Option<QuantileSketch>,
}

impl NumberSums {
    pub(crate) fn new(distributed: bool) -> Self {
        let (moments, quantiles) = (MomentSums::NONE, distributed.then(QuantileSketch::default));
        Self { missing: 0, moments, min: f64::INFINITY, max: f64::NEG_INFINITY, quantiles }
    }

    #[inline]
    pub(crate) fn add(&mut self, value: Option<f64>) {
        let Some(value) = value else {
            self.missing += 1;
            return;
        };
        self.moments.add(value, 1.0);
        (self.min, self.max) = (self.min.min(value), self.max.max(value));
        if let Some(quantiles) = &mut self.quantiles {
            quantiles.add(value);
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.missing += other.missing;
        self.moments.merge(&other.moments);
        (self.min, self.max) = (self.min.min(other.min), self.max.max(other.max));
        if let (Some(quantiles), Some(others)) = (&mut self.quantiles, &other.quantiles) {
            quantiles.merge(others);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.quantiles.is_some());
    }
}

/// The values of a column of categories.
#[derive(Clone, Debug)]
pub(crate) struct CategorySums {
    /// Rows with a value.
    pub(crate) present: u64,
    pub(crate) values: u64,
    last_row: u64,
    pub(crate) distinct: DistinctSketch,
    pub(crate) frequent: Option<FrequentValues>,
}

impl CategorySums {
    fn new(distributed: bool) -> Self {
        let (distinct, frequent) = (DistinctSketch::default(), distributed.then(FrequentValues::default));
        Self { present: 0, values: 0, last_row: 0, distinct, frequent }
    }

    /// Adds a value by its hash, with the number of its row from 1.
    #[inline]
    fn add(&mut self, hash: u64, row: u64) {
        self.values += 1;
        self.present += u64::from(self.last_row != row);
        self.last_row = row;
        self.distinct.add(hash);
        if let Some(frequent) = &mut self.frequent {
            frequent.add(hash, 1);
        }
    }

    fn merge(&mut self, other: &Self) {
        self.values += other.values;
        self.present += other.present;
        self.distinct.merge(&other.distinct);
        if let (Some(frequent), Some(others)) = (&mut self.frequent, &other.frequent) {
            frequent.merge(others);
        }
    }

    fn clear(&mut self) {
        *self = Self::new(self.frequent.is_some());
    }
}
