//! Statistics of the training rows, such as means and deviations: the first worker measures them once, and tells the others by way of
//! the coordinator.
//!
//! ```text
//! worker 0: join ─► read all files, telling how far it is ─► tell ─► train
//! worker n: join ─► ask, ask, …                              ─► train
//! ```
//!
//! All are members meanwhile and keep their leases. The others wait as long as the first worker reads on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use zagros_coordinator_client::{Membership, Waiting};
use zagros_ingest::{FitReport, IngestError, fit_features};
use zagros_job::{ColumnMoments, ColumnRange, EncodingTable, FeatureStatistic, Job, MeasuredValue};
use zagros_plumbing::Deadline;
use zagros_protocol::Refusal;
use zagros_protocol::control::{Transform, TransformsRequest, TransformsResponse, WaitKind};
use zagros_zip::ZipEq;

use super::worker::Worker;
use crate::control::data::{LOOP, SplitClient, call_coordinator, control_error};
use crate::error::WorkerError;
use crate::event::WorkerEvent;
use crate::report::run_blocking;

/// How often the first worker tells how far it is, and how often the others ask.
const PAUSE: Duration = Duration::from_millis(500);
const WHAT: &str = "share the transforms";

impl Worker {
    /// Gives these statistics their values: those of the run if it has some, else measured by this worker if
    /// it is the first, else once that one has measured them.
    pub(super) async fn know_transforms(
        &mut self,
        statistics: &[FeatureStatistic],
        membership: &Membership,
    ) -> Result<(), WorkerError> {
        if statistics.is_empty() {
            return Ok(());
        }
        let caller = self.split_client(membership, Vec::new());
        let others = self.index > 0;
        let kind = if others { WaitKind::Workers } else { WaitKind::Work };
        let _waiting = self.waits.begin_wait(Waiting::new(LOOP, kind, "the statistics of the features"));
        if !self.job.cluster.has_groups() {
            self.measure_unless_known(&caller).await?;
        } else if self.index == 0 {
            self.share(statistics, &caller).await?;
        } else {
            self.observer.observe(&WorkerEvent::WaitingFor("dense worker 0, which measures the features".to_owned()));
            apply(&mut self.job, statistics, &caller.wait_for_transforms().await?)?;
        }
        let (folder, job) = (self.folder.clone(), self.job.clone());
        let write = move || folder.map_or(Ok(()), |folder| folder.write_job(&job));
        run_blocking("job file", write).await?
    }

    async fn share(&mut self, statistics: &[FeatureStatistic], caller: &SplitClient) -> Result<(), WorkerError> {
        let known = caller.share_transforms(Vec::new(), 0).await?.measured;
        if !known.is_empty() && self.resume.is_none() {
            return apply(&mut self.job, statistics, &known);
        }
        self.measure_unless_known(caller).await?;
        let reported = caller.share_transforms(transforms(&self.job, statistics), 0).await?;
        apply(&mut self.job, statistics, &reported.measured)
    }

    /// Reads all training files, unless a checkpoint has reported.
    async fn measure_unless_known(&mut self, caller: &SplitClient) -> Result<(), WorkerError> {
        if self.job.features.unmeasured_statistics().is_empty() {
            return Ok(());
        }
        self.observer.observe(&WorkerEvent::Fitting);
        let (cancel, read) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let _cancel_on_drop = CancelOnDrop(Arc::clone(&cancel));
        let (mut job, bytes) = (self.job.clone(), Arc::clone(&read));
        let fit = run_blocking("fitting", move || fit_features(&mut job, &bytes, &cancel).map(|report| (job, report)));
        let fitted = tokio::select! {
            fitted = fit => fitted?,
            error = caller.keep_reporting(&read) => return Err(error),
        };
        let (job, FitReport { rows, positive_rate, rare, .. }) = fitted.map_err(|error| match error {
            IngestError::Cancelled => WorkerError::Interrupted,
            error => error.into(),
        })?;
        self.job = job;
        self.observer.observe(&WorkerEvent::Fitted { rows, positive_rate });
        rare.into_iter().for_each(|rare| self.observer.observe(&WorkerEvent::RareCategories(rare)));
        Ok(())
    }
}

struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl SplitClient {
    /// Tells or asks once, trying again while the coordinator is away and timeout lasts.
    async fn share_transforms(&self, measured: Vec<Transform>, bytes: u64) -> Result<TransformsResponse, WorkerError> {
        let deadline = Deadline::from_now(self.timeout);
        let request = TransformsRequest { member: self.member, incarnation: self.incarnation, measured, bytes };
        let (share, mut stop) = (|| self.control.transforms(request.clone()), self.stop.clone());
        tokio::select! {
            reported = call_coordinator(&*self.control, WHAT, deadline, share) => reported,
            reason = stop.wait_for_request() => Err(reason),
        }
    }

    async fn keep_reporting(&self, read: &AtomicU64) -> WorkerError {
        let mut stop = self.stop.clone();
        loop {
            tokio::select! {
                reason = stop.wait_for_request() => return reason,
                () = tokio::time::sleep(PAUSE) => {}
            }
            if let Err(error) = self.share_transforms(Vec::new(), read.load(Ordering::Relaxed)).await {
                return error;
            }
        }
    }

    /// Asks until the first worker has reported. The deadline moves on with each byte that it reads.
    async fn wait_for_transforms(&self) -> Result<Vec<Transform>, WorkerError> {
        let (mut bytes, mut since, mut stop) = (0, Instant::now(), self.stop.clone());
        loop {
            let reported = self.share_transforms(Vec::new(), 0).await?;
            if !reported.measured.is_empty() {
                return Ok(reported.measured);
            }
            if reported.bytes > bytes {
                (bytes, since) = (reported.bytes, Instant::now());
            }
            if since.elapsed() > self.timeout {
                let what = format!(
                    "dense worker 0 has read nothing more of the training files (byte {bytes}) whose features it measures"
                );
                let refusal = Refusal::new(zagros_protocol::RefusalKind::Deadline, what);
                let deadline = Deadline::from_now(Duration::ZERO);
                return Err(control_error(&*self.control, WHAT, deadline, refusal));
            }
            tokio::select! {
                reason = stop.wait_for_request() => return Err(reason),
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }
}

fn transforms(job: &Job, statistics: &[FeatureStatistic]) -> Vec<Transform> {
    let message = |measured| match measured {
        MeasuredValue::Moments(ColumnMoments { mean: one, deviation: other })
        | MeasuredValue::Range(ColumnRange { min: one, max: other }) => {
            Transform { numbers: [one, other].concat(), ..Transform::default() }
        }
        MeasuredValue::Edges(numbers) => Transform { numbers, ..Transform::default() },
        MeasuredValue::Ids(ids) => Transform { ids, ..Transform::default() },
        MeasuredValue::Encoding(EncodingTable { mean, deviation, rare, ids, values }) => {
            Transform { mean, deviation, ids, values: [rare, values].concat(), ..Transform::default() }
        }
    };
    statistics.iter().filter_map(|statistic| job.features.measured_value(*statistic)).map(message).collect()
}

fn measured(statistic: FeatureStatistic, message: &Transform) -> Option<MeasuredValue> {
    let Transform { mean, deviation, numbers, ids, values } = message;
    match statistic {
        // One after another, as many of each.
        FeatureStatistic::Standardise(_) | FeatureStatistic::MinMax(_) => {
            let (one, other) = numbers.split_at(numbers.len() / 2);
            let is_range = matches!(statistic, FeatureStatistic::MinMax(_));
            let fits = one.len() == other.len() && (is_range || other.iter().all(|deviation| *deviation > 0.0));
            let (one, other) = (one.to_vec(), other.to_vec());
            let range = |[min, max]: [Vec<f64>; 2]| MeasuredValue::Range(ColumnRange { min, max });
            let moments = |[mean, deviation]: [Vec<f64>; 2]| MeasuredValue::Moments(ColumnMoments { mean, deviation });
            fits.then(|| if is_range { range([one, other]) } else { moments([one, other]) })
        }
        FeatureStatistic::Edges(_) => Some(MeasuredValue::Edges(numbers.clone())),
        FeatureStatistic::Vocabulary(_) => Some(MeasuredValue::Ids(ids.clone())),
        // First the numbers of rare categories, then those of each id.
        FeatureStatistic::Encoding(_) => {
            let (rare, values) = values.split_at(values.len() / (ids.len() + 1));
            let (mean, deviation, rare, ids, values) = (*mean, *deviation, rare.to_vec(), ids.clone(), values.to_vec());
            Some(MeasuredValue::Encoding(EncodingTable { mean, deviation, rare, ids, values }))
        }
    }
}

fn apply(job: &mut Job, statistics: &[FeatureStatistic], messages: &[Transform]) -> Result<(), WorkerError> {
    let wrong = |reason| WorkerError::Thread { thread: "transforms", reason };
    if statistics.len() != messages.len() {
        return Err(wrong(format!("{} values for {} statistics", messages.len(), statistics.len())));
    }
    for (statistic, message) in statistics.iter().zip_eq(messages) {
        let is_set = measured(*statistic, message).is_some_and(|value| job.features.set_measured(*statistic, value));
        if !is_set {
            return Err(wrong(format!("no value of {statistic:?}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use zagros_fakes::FakeControlPlane;
    use zagros_job::{
        Categorical, CategoryEncoding, ColumnReading, EncodeBy, Features, IdRange, IdSource, Numeric, Scaling,
        ValueBuckets, Vocabulary,
    };

    use super::*;
    use crate::testing::{assert_refused, ffnn};

    const TIMEOUT: Duration = Duration::from_secs(5);

    /// Asks a coordinator that answers so, again and again with the last.
    fn caller(answers: impl IntoIterator<Item = TransformsResponse>) -> SplitClient {
        let control = FakeControlPlane::default();
        control.transforms.respond_in_order(answers.into_iter().map(Ok));
        SplitClient::of_test(Arc::new(control))
    }

    fn reading(bytes: u64) -> TransformsResponse {
        TransformsResponse { measured: Vec::new(), bytes }
    }

    /// A worker that was later than the timeout ended the run.
    #[tokio::test(start_paused = true)]
    async fn the_first_worker_is_waited_for_as_long_as_it_reads_on() {
        let measured = vec![Transform { mean: 3.0, deviation: 2.0, ..Transform::default() }];
        let known = TransformsResponse { measured: measured.clone(), bytes: 400 };
        // 200 s, forty times the timeout, with a byte every four seconds.
        let started = Instant::now();
        let caller = caller((0..400).map(|ask| reading(ask / 8)).chain([known]));
        assert_eq!(caller.wait_for_transforms().await.unwrap(), measured);
        assert!(started.elapsed() > TIMEOUT * 30, "{:?}", started.elapsed());
    }

    #[test]
    fn every_statistic_travels_by_message() {
        let vocabulary = IdRange::Vocabulary(Vocabulary { min_count: 1, max_size: 9, ids: None });
        let mut job = crate::testing::job(3, &[2, 2], ffnn(&[2]));
        job.features.numeric.truncate(2);
        let encoding = CategoryEncoding {
            by: EncodeBy::Target,
            with: Vec::new(),
            smoothing: None,
            folds: Some(2),
            max_size: 9,
            fitted: None,
        };
        job.features.numeric.push(Numeric { encode: Some(encoding), ..Numeric::from("e".to_owned()) });
        job.features.numeric[0].standardise = Scaling::FIT;
        job.features.numeric[1].min_max = Scaling::FIT;
        let source = IdSource::Column { column: "n".into(), reading: ColumnReading::Buckets(ValueBuckets::Fit(4)) };
        job.features.categorical = vec![
            Categorical { source, ..Categorical::of_column("b", 0) },
            Categorical { ids: vocabulary, ..Categorical::of_column("v", 0) },
        ];
        let statistics = job.features.unmeasured_statistics();
        let mut known = job.clone();
        let values = [
            MeasuredValue::Moments(ColumnMoments { mean: vec![-1.5], deviation: vec![2.0] }),
            MeasuredValue::Range(ColumnRange { min: vec![0.0], max: vec![3.0] }),
            MeasuredValue::Encoding(EncodingTable {
                mean: 0.25,
                deviation: 0.5,
                rare: vec![0.1, 0.2, 0.3],
                ids: vec![3, u64::MAX],
                values: vec![0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
            }),
            MeasuredValue::Edges(vec![1.0, 2.5]),
            MeasuredValue::Ids(vec![3, u64::MAX]),
        ];
        for (statistic, value) in statistics.iter().zip_eq(values) {
            assert!(known.features.set_measured(*statistic, value), "{statistic:?}");
        }
        let messages = transforms(&known, &statistics);
        apply(&mut job, &statistics, &messages).unwrap();
        assert_eq!(job.features, known.features);
        assert!(job.features.unmeasured_statistics().is_empty());
        assert_refused(apply(&mut job, &statistics, &messages[1..]), &["4 values for 5 statistics"]);
    }

    /// What a job may have is what its message may (`protocol/transport/src/proof/calls.rs` has the largest).
    #[test]
    fn the_bound_of_a_job_is_that_of_a_message() {
        assert_eq!(Features::STATISTICS_BYTES, zagros_plumbing::grpc::MAX_CONTROL_BYTES as u64 - 1024);
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_worker_that_reads_nothing_more_is_named() {
        let started = Instant::now();
        assert_refused(
            caller([reading(70)]).wait_for_transforms().await,
            &["dense worker 0 has read nothing more", "byte 70"],
        );
        assert!(started.elapsed() < TIMEOUT * 2, "{:?}", started.elapsed());
    }
}
