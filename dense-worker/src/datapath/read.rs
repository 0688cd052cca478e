//! First stage: reads batches from the source and finds their unique ids, on a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use zagros_coordinator_client::Waiting;
use zagros_ingest::{Batch, BatchStream, IngestError, StreamStats};
use zagros_protocol::control::WaitKind;

use super::prepared::{BatchPreparer, PreparedBatch, inconsistent_batch};
use crate::error::WorkerError;
use crate::metrics::{PipelineStage, WorkerMetrics};

/// This thread, as the worker's waits name it.
pub(crate) const PART: &str = "reader";

/// The most batches between this stage and the next: one being taken, one ready.
const READY: usize = 2;

/// Rows after which labels that contradict each other are warned of, if the source does not end before: enough for a share.
const ENOUGH_ROWS: u64 = 100_000;

pub(crate) trait BatchSource: Iterator<Item = Result<Batch, IngestError>> + Send {
    fn stats(&self) -> StreamStats;

    fn describe_contradictions(&self) -> Option<String> {
        None
    }
}

impl BatchSource for BatchStream {
    fn stats(&self) -> StreamStats {
        Self::stats(self)
    }

    fn describe_contradictions(&self) -> Option<String> {
        Self::describe_contradictions(self)
    }
}

pub(crate) type OpenSource = Box<dyn FnOnce(Arc<AtomicBool>) -> Result<Box<dyn BatchSource>, IngestError> + Send>;

/// In order.
pub(crate) type IncomingBatches = mpsc::Receiver<Result<PreparedBatch, WorkerError>>;

/// Dropping it asks the reading thread to end.
#[derive(Debug)]
pub(crate) struct ReaderThread {
    cancel: Arc<AtomicBool>,
    ended: oneshot::Receiver<StreamStats>,
}

impl ReaderThread {
    pub(crate) fn start(
        open: OpenSource,
        preparer: BatchPreparer,
        metrics: WorkerMetrics,
    ) -> Result<(Self, IncomingBatches), WorkerError> {
        let (send, incoming) = mpsc::channel(READY);
        let (tell_end, ended) = oneshot::channel();
        let cancel = Arc::new(AtomicBool::new(false));
        let work = ReaderState { preparer, metrics, send, reported: None };
        let flag = Arc::clone(&cancel);
        let run = move || {
            let stats = work.run(open, flag);
            // The pipeline may have failed, and then the worker does not receive this.
            let _ = tell_end.send(stats);
        };
        let spawned = std::thread::Builder::new().name("reader".to_owned()).spawn(run);
        spawned.map_err(|error| WorkerError::Thread { thread: "reader", reason: format!("cannot start: {error}") })?;
        Ok((Self { cancel, ended }, incoming))
    }

    /// Ends the thread and waits for it.
    pub(crate) async fn finish(mut self, timeout: Duration) -> Result<StreamStats, WorkerError> {
        self.cancel.store(true, Ordering::Release);
        let late = |reason: String| WorkerError::Thread { thread: "reader", reason };
        match tokio::time::timeout(timeout, &mut self.ended).await {
            Ok(Ok(stats)) => Ok(stats),
            Ok(Err(_)) => Err(late("ended without a message; its panic is on standard error".to_owned())),
            Err(_) => Err(late(format!("did not end within {timeout:?}; is the data on a disk that hangs?"))),
        }
    }
}

impl Drop for ReaderThread {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Release);
    }
}

struct ReaderState {
    preparer: BatchPreparer,
    metrics: WorkerMetrics,
    send: mpsc::Sender<Result<PreparedBatch, WorkerError>>,
    reported: Option<StreamStats>,
}

impl ReaderState {
    fn run(mut self, open: OpenSource, cancel: Arc<AtomicBool>) -> StreamStats {
        match open(cancel) {
            Ok(batches) => self.read(batches),
            Err(error) => {
                let _ = self.send.blocking_send(Err(error.into()));
                StreamStats::default()
            }
        }
    }

    /// Reads until the source ends, an error occurs, or the receiver takes no more batches.
    fn read(&mut self, mut batches: Box<dyn BatchSource>) -> StreamStats {
        let (mut index, mut is_reported) = (0, false);
        loop {
            let waiting = self.metrics.waits.begin_wait(Waiting::new(PART, WaitKind::Data, "its next batch"));
            let Some(batch) = batches.next() else { break };
            drop(waiting);
            let prepared = batch.map_err(WorkerError::from).and_then(|batch| self.prepare(batch, index));
            let stats = batches.stats();
            self.count(stats);
            if stats.rows >= ENOUGH_ROWS && !std::mem::replace(&mut is_reported, true) {
                warn_of_contradictions(&*batches);
            }
            index += 1;
            let failed = prepared.is_err();
            if self.send.blocking_send(prepared).is_err() || failed {
                break;
            }
        }
        let stats = batches.stats();
        self.count(stats);
        if !is_reported {
            warn_of_contradictions(&*batches);
        }
        stats
    }

    fn prepare(&mut self, batch: Batch, index: u64) -> Result<PreparedBatch, WorkerError> {
        let started = Instant::now();
        let prepared = self.preparer.prepare(batch);
        self.metrics.add_stage_time(PipelineStage::Dedup, started.elapsed());
        prepared.map_err(|reason| inconsistent_batch(index, reason))
    }

    fn count(&mut self, stats: StreamStats) {
        let reported = self.reported.replace(stats).unwrap_or_default();
        let parse = (stats.cpu_seconds - reported.cpu_seconds).max(0.0);
        self.metrics.add_stage_time(PipelineStage::Parse, Duration::from_secs_f64(parse));
        self.metrics.bad_rows.inc_by(stats.bad_rows.saturating_sub(reported.bad_rows));
    }
}

fn warn_of_contradictions(batches: &dyn BatchSource) {
    if let Some(found) = batches.describe_contradictions() {
        tracing::warn!("{found}");
    }
}

#[cfg(test)]
mod tests {
    use zagros_protocol::datapath::Access;

    use super::*;
    use crate::testing::{ScriptedBatches, batch, metrics, small_job};

    fn start(source: ScriptedBatches) -> (ReaderThread, IncomingBatches) {
        let preparer = BatchPreparer::new(&small_job(), Access::Train);
        let open: OpenSource = Box::new(|_| Ok(Box::new(source)));
        ReaderThread::start(open, preparer, metrics()).unwrap()
    }

    #[tokio::test]
    async fn batches_come_in_order_and_then_the_end() {
        let (reader, mut incoming) = start(ScriptedBatches::new([Ok(batch(1, &[&[1]])), Ok(batch(2, &[&[2, 3]]))]));
        assert_eq!(incoming.recv().await.unwrap().unwrap().unique.tables[0].ids, [1]);
        assert_eq!(incoming.recv().await.unwrap().unwrap().unique.tables[0].ids, [2, 3]);
        assert!(incoming.recv().await.is_none());
        assert_eq!(reader.finish(Duration::from_secs(5)).await.unwrap().rows, 3);
    }

    #[tokio::test]
    async fn the_first_error_is_the_last_item() {
        let failure = Err(IngestError::NoFiles { key: "train" });
        let (_reader, mut incoming) = start(ScriptedBatches::new([failure, Ok(batch(1, &[&[1]]))]));
        assert!(matches!(incoming.recv().await, Some(Err(WorkerError::Ingest(_)))));
        assert!(incoming.recv().await.is_none());
    }

    #[tokio::test]
    async fn a_batch_of_another_shape_is_named() {
        let (_reader, mut incoming) = start(ScriptedBatches::new([Ok(batch(1, &[&[1]])), Ok(batch(1, &[&[1], &[2]]))]));
        incoming.recv().await.unwrap().unwrap();
        let error = incoming.recv().await.unwrap().unwrap_err();
        assert!(error.to_string().starts_with("batch 1: categorical features: expected 1, found 2"), "{error}");
    }

    #[tokio::test]
    async fn a_reader_ends_when_nobody_takes_its_batches() {
        let endless = std::iter::repeat_with(|| Ok(batch(1, &[&[1]])));
        let (reader, incoming) = start(ScriptedBatches::new(endless));
        drop(incoming);
        reader.finish(Duration::from_secs(20)).await.unwrap();
    }
}
