//! A sink that sums up columns, each by itself: what a profile and an inspection have in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zagros_job::Job;
use zagros_zip::ZipEq;

use crate::category::missing_id;
use crate::parse::sink::RowSink;
use crate::sketch::DistinctSketch;
use crate::transform::features_of_numbers;

pub(crate) trait ColumnSum<V>: Clone + Send + 'static {
    fn add(&mut self, value: V);
    fn merge(&mut self, other: &Self);
    fn clear(&mut self);
}

/// Columns of numbers, which may be missing, and columns of categories: each value's hash, with the number of its row from 1.
#[derive(Clone, Debug)]
pub(crate) struct ColumnSums<N, C> {
    /// The numbers of the row that is read, in order.
    numbers: Vec<Option<f64>>,
    /// Feature and id of each of its categories that is not missing.
    values: Vec<(usize, u64)>,
    /// The feature of each number of a row.
    features: Arc<[usize]>,
    pub(crate) numeric: Vec<N>,
    pub(crate) categorical: Vec<C>,
    pub(crate) rows: u64,
    pub(crate) positives: u64,
    /// Rows that all clones together still take, if not every row.
    left: Option<Arc<AtomicU64>>,
}

impl<N: ColumnSum<Option<f64>>, C: ColumnSum<(u64, u64)>> ColumnSums<N, C> {
    pub(crate) fn new(job: &Job, numeric: Vec<N>, categorical: Vec<C>, limit: Option<u64>) -> Self {
        let (numbers, values, features) = (Vec::new(), Vec::new(), features_of_numbers(&job.features));
        let left = limit.map(|rows| Arc::new(AtomicU64::new(rows)));
        Self { numbers, values, features, numeric, categorical, rows: 0, positives: 0, left }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.numeric.iter_mut().zip_eq(&other.numeric).for_each(|(column, from)| column.merge(from));
        self.categorical.iter_mut().zip_eq(&other.categorical).for_each(|(column, from)| column.merge(from));
        self.rows += other.rows;
        self.positives += other.positives;
    }

    fn takes_row(&self) -> bool {
        let take = |left: u64| left.checked_sub(1);
        self.left.as_ref().is_none_or(|left| left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok())
    }
}

impl<N: ColumnSum<Option<f64>>, C: ColumnSum<(u64, u64)>> RowSink for ColumnSums<N, C> {
    fn numeric(&mut self, _feature: usize, value: Option<f64>) {
        self.numbers.push(value);
    }

    fn id(&mut self, feature: usize, id: u64) {
        if id != missing_id() {
            self.values.push((feature, id));
        }
    }

    fn commit(&mut self, labels: &[f32], _weight: Option<f32>) {
        if self.takes_row() {
            self.rows += 1;
            self.positives += u64::from(labels[0] > 0.5);
            for (feature, value) in self.features.iter().zip_eq(&self.numbers) {
                self.numeric[*feature].add(*value);
            }
            for (feature, hash) in &self.values {
                self.categorical[*feature].add((*hash, self.rows));
            }
        }
        self.abandon();
    }

    fn abandon(&mut self) {
        self.numbers.clear();
        self.values.clear();
    }

    fn clear(&mut self) {
        self.abandon();
        self.numeric.iter_mut().for_each(N::clear);
        self.categorical.iter_mut().for_each(C::clear);
        (self.rows, self.positives) = (0, 0);
    }
}

/// How many values a column of categories has, and how many distinct ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct CategorySums {
    /// Rows with a value.
    pub(crate) present: u64,
    pub(crate) values: u64,
    last_row: u64,
    pub(crate) distinct: DistinctSketch,
}

impl ColumnSum<(u64, u64)> for CategorySums {
    #[inline]
    fn add(&mut self, (hash, row): (u64, u64)) {
        self.values += 1;
        self.present += u64::from(self.last_row != row);
        self.last_row = row;
        self.distinct.add(hash);
    }

    fn merge(&mut self, other: &Self) {
        self.values += other.values;
        self.present += other.present;
        self.distinct.merge(&other.distinct);
    }

    fn clear(&mut self) {
        (self.values, self.present, self.last_row) = (0, 0, 0);
        self.distinct.clear();
    }
}
