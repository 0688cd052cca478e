//! epochs, and the rounds of an epoch.
//!
//! A round is one stream of batches: all splits that the coordinator gives at once. An epoch needs more rounds when
//! splits of a worker that was lost are dealt out again, or rests of the streams of an earlier run.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use zagros_ingest::{Batch, BatchStream, DataPart, IngestError, StreamOptions, StreamStart, StreamStats};
use zagros_job::Job;
use zagros_protocol::datapath::Access;

use super::peers;
use super::splits::{Asking, Assigned, Begun};
use super::stream::StreamPlace;
use super::train::{End, Trainer, interrupted_or};
use crate::datapath::dense::Dense;
use crate::datapath::prefetch::{Lookups, Prefetch};
use crate::datapath::prepared::Preparer;
use crate::datapath::read::{Batches, Open, Reader};
use crate::error::WorkerError;
use crate::event::Event;
use crate::progress::Overall;
use crate::summary::Outcome;

impl Trainer {
    /// Every epoch from `first` on, each followed by an evaluation. The first may have been begun before.
    ///
    /// # Errors
    /// The first cause of whatever went wrong; everything of the pipeline has ended then.
    pub(crate) async fn epochs(&mut self, first: u32) -> Result<Outcome, WorkerError> {
        if let Some(outcome) = self.owed_evaluation(first).await? {
            return Ok(outcome);
        }
        for epoch in first..self.job.train.epochs {
            self.epoch = epoch;
            if epoch > first || self.tracker.is_untouched() {
                self.tracker.epoch_started(epoch);
            }
            let end = self.epoch(epoch).await?;
            if end != End::Interrupted {
                self.end_together().await?;
            }
            if end == End::Interrupted || !self.meet(epoch).await? {
                self.last_cut(epoch).await?;
                self.place = None;
                return Ok(Outcome::Interrupted);
            }
            if end == End::Data {
                self.check_books(epoch).await?;
            }
            self.rows_somewhere().await?;
            self.epoch_ended(epoch).await?;
            if let Err(error) = self.evaluate(epoch).await {
                // The epoch is over once it is evaluated.
                self.of_epochs.pop();
                let outcome = interrupted_or(error)?;
                self.last_cut(epoch).await?;
                return Ok(outcome);
            }
            if end == End::Steps || self.model.is_settled() {
                break;
            }
        }
        self.epoch = self.job.train.epochs;
        Ok(Outcome::Finished)
    }

    /// Workers who step together begin the next epoch only once all have told their last splits of this one: what a
    /// worker that is lost after that held is trained on.
    async fn end_together(&mut self) -> Result<(), WorkerError> {
        if self.in_step().is_some() {
            self.dense.call(Dense::barrier).await??;
        }
        Ok(())
    }

    /// The evaluation that an earlier process was to make when it was interrupted.
    async fn owed_evaluation(&mut self, epoch: u32) -> Result<Option<Outcome>, WorkerError> {
        if self.tracker.steps == 0 || !self.is_evaluation_due() {
            return Ok(None);
        }
        match self.evaluate(epoch).await {
            Ok(()) => Ok(None),
            Err(error) => interrupted_or(error).map(Some),
        }
    }

    /// Measures of the rows of all workers, each of which has seen its own alone.
    async fn epoch_ended(&mut self, epoch: u32) -> Result<(), WorkerError> {
        let mut overall = self.tracker.overall().clone();
        if self.peers.is_some() {
            let all = self.dense.call(move |dense| dense.all_say(&overall)).await??;
            overall = Overall::sum(&all);
        }
        let (step, training) = (self.tracker.steps_of_all(), overall.report());
        self.of_epochs.push(training);
        self.observer.on(&Event::EpochEnded { step, epoch, training });
        Ok(())
    }

    /// The same batches again and again, from memory: for benchmarks. No splits, no evaluation.
    ///
    /// # Errors
    /// As [`Self::epochs`].
    pub(crate) async fn preloaded(&mut self, batches: Arc<Vec<Batch>>) -> Result<Outcome, WorkerError> {
        self.barriers.close();
        for epoch in 0..self.job.train.epochs {
            self.tracker.epoch_started(epoch);
            let batches = Preloaded { batches: Arc::clone(&batches), next: 0 };
            let open: Open = Box::new(move |_| Ok(Box::new(batches)));
            match self.round(epoch, Some(open)).await? {
                End::Data => {}
                End::Steps => break,
                End::Interrupted => return Ok(Outcome::Interrupted),
            }
        }
        Ok(Outcome::Finished)
    }

    async fn epoch(&mut self, epoch: u32) -> Result<End, WorkerError> {
        loop {
            let begun = match self.next_stream(epoch).await {
                Ok(Assigned::Split(first)) => {
                    Begun { order: self.order(), tasks: vec![first], start: StreamStart::default() }
                }
                Ok(Assigned::Rest(begun)) => begun,
                // The others step, and so must this one, until none has a batch left: then the epoch is over.
                Ok(_) | Err(WorkerError::Interrupted) if self.in_step().is_some() => {
                    match self.round_together(epoch, None).await? {
                        Some(end) => return Ok(end),
                        None => continue,
                    }
                }
                Ok(Assigned::EpochDone) => return Ok(End::Data),
                Ok(Assigned::Later { pause, reason }) => {
                    self.observer.on(&Event::WaitingFor(reason));
                    if self.waits(epoch, pause).await? {
                        continue;
                    }
                    return Ok(End::Interrupted);
                }
                Err(WorkerError::Interrupted) => return Ok(End::Interrupted),
                Err(error) => return Err(error),
            };
            let open = Some(self.open(epoch, begun));
            let end = if self.in_step().is_some() {
                self.round_together(epoch, open).await?
            } else {
                Some(self.round(epoch, open).await?).filter(|end| *end != End::Data)
            };
            // Splits without a row are complete too when the epoch ends with them.
            if end.is_none_or(|end| end == End::Data) {
                self.complete_rest(epoch).await?;
            }
            if let Some(end) = end {
                return Ok(end);
            }
        }
    }

    /// For splits, until it is worth to ask for one again. Answers whether training goes on, as far as others know.
    async fn waits(&mut self, epoch: u32, pause: Duration) -> Result<bool, WorkerError> {
        self.ask_if_due();
        let may_be_called = self.may_be_called();
        tokio::select! {
            // Seen when asking again.
            _ = self.stop.requested() => Ok(true),
            () = self.barriers.due(), if may_be_called => self.answer_call(epoch).await,
            () = tokio::time::sleep(pause) => Ok(true),
        }
    }

    /// What this worker was in the middle of comes first.
    async fn next_stream(&mut self, epoch: u32) -> Result<Assigned, WorkerError> {
        match self.broken_off.take() {
            Some(begun) => Ok(Assigned::Rest(begun)),
            None => match self.splits.ask(epoch, Asking::ForAStream).await? {
                Assigned::EpochDone => {
                    let never_given = self.never_given(epoch).await?;
                    Ok(never_given.map_or(Assigned::EpochDone, Assigned::Rest))
                }
                assigned => Ok(assigned),
            },
        }
    }

    /// A round of all workers. The epoch is over with one in which none had a batch.
    async fn round_together(&mut self, epoch: u32, open: Option<Open>) -> Result<Option<End>, WorkerError> {
        let before = self.tracker.steps;
        let end = self.round(epoch, open).await?;
        Ok((end != End::Data || self.tracker.steps == before).then_some(end))
    }

    /// Whose order of rows a new stream of this worker's has.
    pub(super) fn order(&self) -> u32 {
        self.peers.map_or(0, |peers| peers.rank)
    }

    /// The stream of the leased splits, in an order of the worker's own that began it where rows are shuffled.
    fn open(&mut self, epoch: u32, begun: Begun) -> Open {
        let Begun { order, tasks, start } = begun;
        let leased = self.splits.stream(epoch, tasks);
        self.stream = StreamPlace::new(order, start, self.job.data.shuffle_rows, leased.dealt());
        let mut job = Job::clone(&self.job);
        job.train.seed = peers::seed(job.train.seed, order);
        let bad_rows = self.completer.bad_rows();
        Box::new(move |cancel: Arc<AtomicBool>| -> Result<Box<dyn Batches>, IngestError> {
            let options = StreamOptions { part: DataPart::Train, epoch, start, bad_rows, cancel };
            Ok(Box::new(BatchStream::open(&job, options, Box::new(leased))?))
        })
    }

    /// One stream of batches, to its end; of several workers, until the last of their streams ends. Without a stream
    /// this worker only steps with the others.
    async fn round(&mut self, epoch: u32, open: Option<Open>) -> Result<End, WorkerError> {
        let (reader, mut prefetch) = open.map(|open| self.start(open)).transpose()?.unzip();
        self.tracker.resume();
        let end = self.steps(epoch, &mut prefetch).await;
        drop(prefetch);
        let end = end?;
        self.drain(epoch).await?;
        self.tracker.pause();
        if let Some(reader) = reader {
            let stats = reader.finish(self.job.cluster.timeout).await?;
            if stats.rows == 0 {
                self.untrained_rows += stats.bad_rows + stats.other_rows;
            }
        }
        Ok(end)
    }

    fn start(&self, open: Open) -> Result<(Reader, Prefetch), WorkerError> {
        let preparer = Preparer::new(&self.job, Access::Train).beside(self.weights.clone());
        let (reader, incoming) = Reader::start(open, preparer, self.metrics.clone())?;
        let (client, window) = (Arc::clone(&self.client), self.window.clone());
        let lookups = Lookups { client, access: Access::Train, window, metrics: self.metrics.clone() };
        Ok((reader, Prefetch::start(lookups, incoming, self.next_seq, self.steps_left())))
    }
    /// After the last batch of a stream, splits that ended in no batch (they had no training row) are complete too.
    async fn complete_rest(&mut self, epoch: u32) -> Result<(), WorkerError> {
        // The coordinator takes a split twice without harm.
        self.complete(epoch, self.stream.dealt());
        self.stream.end();
        self.completer.flush().await
    }
}

/// Training files by path, in the run's order.
pub(crate) fn paths(files: &[zagros_ingest::FileInfo]) -> Arc<Vec<PathBuf>> {
    Arc::new(files.iter().map(|file| file.path.clone()).collect())
}

/// Batches from memory.
struct Preloaded {
    batches: Arc<Vec<Batch>>,
    next: usize,
}

impl Iterator for Preloaded {
    type Item = Result<Batch, IngestError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.batches.get(self.next)?.clone();
        self.next += 1;
        Some(Ok(batch))
    }
}

impl Batches for Preloaded {
    fn stats(&self) -> StreamStats {
        StreamStats::default()
    }
}
