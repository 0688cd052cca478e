//! Mean and deviation of numeric columns, measured by reading the training rows once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use zagros_job::{Job, Standardise};
use zagros_zip::ZipEq;

use crate::moments::Moments;
use crate::parse::bad_budget::{BadBudget, LISTED};
use crate::parse::sink::RowSink;
use crate::pipeline::{BLOCK_BYTES, Pipeline, PipelineConfig};
use crate::transform::symmetric_log;
use crate::{DataPart, IngestError, WholeFiles, files};

/// The counts of a measurement; zeros if no column needed one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FitReport {
    /// Training rows.
    pub rows: u64,
    /// Malformed rows skipped.
    pub bad_rows: u64,
    /// Share of positive rows, 0..1.
    pub positive_rate: f64,
}

/// Turns every [`Standardise::Fit`] of the job into `Given`: mean and (population) deviation of the column's present values
/// in the training rows, after the logarithm if the column has one. A column with a single value gets deviation 1. Bytes
/// are added to `read` as they are read. The same files give the same bits for any number of threads.
///
/// # Errors
/// The errors of a [`crate::BatchStream`]. The job is unchanged then.
pub fn fit_numeric(job: &mut Job, read: &AtomicU64, cancel: &Arc<AtomicBool>) -> Result<FitReport, IngestError> {
    if !job.features.numeric.iter().any(|column| column.standardise == Standardise::Fit) {
        return Ok(FitReport::default());
    }
    let (total, bad_rows) = measure(job, read, cancel)?;
    for (column, moments) in job.features.numeric.iter_mut().zip_eq(&total.columns) {
        if column.standardise == Standardise::Fit {
            let deviation = moments.deviation();
            let deviation = if deviation > 0.0 { deviation } else { 1.0 };
            column.standardise = Standardise::Given { mean: moments.mean(), deviation };
        }
    }
    let positive_rate = total.positives as f64 / total.rows.max(1) as f64;
    Ok(FitReport { rows: total.rows, bad_rows, positive_rate })
}

fn measure(job: &Job, read: &AtomicU64, cancel: &Arc<AtomicBool>) -> Result<(FitSink, u64), IngestError> {
    if job.data.train.is_empty() {
        return Err(IngestError::NoFiles { key: "train" });
    }
    let splits = Box::new(WholeFiles::new(&files(job, &job.data.train)?));
    // Categories cannot make a row malformed, so they are not parsed.
    let mut numbers_only = job.clone();
    numbers_only.features.categorical.clear();
    let mut bad = BadBudget::of(&job.data, LISTED);
    let mut total = FitSink::new(job);
    let (part, cancel) = (DataPart::Train, Arc::clone(cancel));
    let config = PipelineConfig { job: Arc::new(numbers_only), part, splits, block_bytes: BLOCK_BYTES, cancel };
    let mut pipeline = Pipeline::start(config, &total)?;
    while let Some(parsed) = pipeline.next()? {
        bad.add(&parsed.outcome, &parsed.layout, parsed.place)?;
        total.merge(&parsed.sink);
        read.fetch_add(parsed.bytes, Ordering::Relaxed);
        pipeline.recycle(parsed.sink);
    }
    Ok((total, bad.count()))
}

/// Moments of the numeric columns.
#[derive(Clone, Debug)]
struct FitSink {
    log: Arc<[bool]>,
    /// Values of the row that is being read.
    row: Vec<Option<f64>>,
    columns: Vec<Moments>,
    rows: u64,
    positives: u64,
}

impl FitSink {
    fn new(job: &Job) -> Self {
        let log: Arc<[bool]> = job.features.numeric.iter().map(|column| column.log).collect();
        Self { columns: vec![Moments::default(); log.len()], log, row: Vec::new(), rows: 0, positives: 0 }
    }

    fn merge(&mut self, other: &Self) {
        assert_eq!(self.columns.len(), other.columns.len(), "sinks of one job have the same columns");
        for (column, from) in self.columns.iter_mut().zip_eq(&other.columns) {
            column.merge(from);
        }
        self.rows += other.rows;
        self.positives += other.positives;
    }
}

impl RowSink for FitSink {
    fn numeric(&mut self, feature: usize, value: Option<f64>) {
        self.row.push(if self.log[feature] { value.map(symmetric_log) } else { value });
    }

    fn value(&mut self, _feature: usize, _text: &[u8]) {}

    fn id(&mut self, _feature: usize, _id: u64) {}

    fn end_bag(&mut self, _feature: usize) {}

    fn commit(&mut self, labels: &[f32], _weight: Option<f32>) {
        for (feature, value) in self.row.drain(..).enumerate() {
            if let Some(value) = value {
                self.columns[feature].add(value);
            }
        }
        self.rows += 1;
        self.positives += u64::from(labels[0] > 0.5);
    }

    fn abandon(&mut self) {
        self.row.clear();
    }

    fn clear(&mut self) {
        self.row.clear();
        self.columns.fill(Moments::default());
        (self.rows, self.positives) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zagros_job::TestPart;

    use super::*;
    use crate::fixture;

    fn fitted(job: &Job, column: usize) -> (f64, f64) {
        match job.features.numeric[column].standardise {
            Standardise::Given { mean, deviation } => (mean, deviation),
            other => panic!("column {column} is {other:?}"),
        }
    }

    fn job_over(text: &str) -> (tempfile::TempDir, Job) {
        let (folder, path) = fixture::file(text);
        let mut job = fixture::delimited(|_| ());
        job.data.train = vec![path];
        job.features.numeric[0].standardise = Standardise::Fit;
        (folder, job)
    }

    #[test]
    fn mean_and_deviation_are_those_of_the_present_values() {
        let (_folder, mut job) = job_over("click,age,city,tags\n1,2,x,\n0,?,x,\n0,4,x,\n0,9,x,\n");
        let report = fit_numeric(&mut job, &AtomicU64::new(0), &Arc::default()).unwrap();
        assert_eq!(report, FitReport { rows: 4, bad_rows: 0, positive_rate: 0.25 });
        let (mean, deviation) = fitted(&job, 0);
        assert!((mean - 5.0).abs() < 1e-12 && (deviation - (26.0_f64 / 3.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn the_logarithm_comes_first() {
        let (_folder, mut job) = job_over("click,age,city,tags\n1,0,x,\n0,99,x,\n");
        job.features.numeric[0].log = true;
        fit_numeric(&mut job, &AtomicU64::new(0), &Arc::default()).unwrap();
        let half = 100.0_f64.ln() / 2.0;
        let (mean, deviation) = fitted(&job, 0);
        assert!((mean - half).abs() < 1e-12 && (deviation - half).abs() < 1e-12);
    }

    #[test]
    fn a_constant_or_absent_column_gets_deviation_one() {
        for (value, mean) in [("7", 7.0), ("?", 0.0)] {
            let (_folder, mut job) = job_over(&format!("click,age,city,tags\n1,{value},x,\n0,{value},x,\n"));
            fit_numeric(&mut job, &AtomicU64::new(0), &Arc::default()).unwrap();
            assert_eq!(fitted(&job, 0), (mean, 1.0));
        }
    }

    #[test]
    fn bad_rows_are_tolerated_as_in_training_and_leave_no_trace() {
        let (_folder, mut job) = job_over("click,age,city,tags\n1,2,x,\n0,4,x\n9,9,x,\n0,4,x,\n");
        let error = fit_numeric(&mut job, &AtomicU64::new(0), &Arc::default()).unwrap_err();
        assert!(matches!(error, IngestError::TooManyBadRows { count: 2, .. }), "{error}");
        assert_eq!(job.features.numeric[0].standardise, Standardise::Fit);
        job.data.max_bad_rows = 2;
        assert_eq!(fit_numeric(&mut job, &AtomicU64::new(0), &Arc::default()).unwrap().bad_rows, 2);
        assert_eq!(fitted(&job, 0), (3.0, 1.0));
    }

    #[test]
    fn nothing_to_fit_reads_nothing() {
        let mut job = fixture::delimited(|_| ());
        job.data.train = vec!["no/such/file".into()];
        assert_eq!(fit_numeric(&mut job, &AtomicU64::new(0), &Arc::default()).unwrap(), FitReport::default());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn only_training_rows_count_and_threads_do_not(values in prop::collection::vec(-1_000_i32..1_000, 40..80), threads in 1_usize..5) {
            let rows: String = values.iter().map(|value| format!("1,{value},x,\n")).collect();
            let (_folder, mut job) = job_over(&format!("click,age,city,tags\n{rows}"));
            job.data.test = TestPart::Fraction(0.3);
            let mut threaded = job.clone();
            threaded.data.threads = threads;
            let report = fit_numeric(&mut job, &AtomicU64::new(0), &Arc::default()).unwrap();
            prop_assert!(report.rows < values.len() as u64);
            fit_numeric(&mut threaded, &AtomicU64::new(0), &Arc::default()).unwrap();
            prop_assert_eq!(fitted(&job, 0), fitted(&threaded, 0));
        }
    }
}
