//! A round: one stream of batches, from its splits to its end.
//!
//! A stream is all splits that the coordinator gives at once. An epoch needs more rounds when splits of a worker that was
//! lost are dealt out again, or remainders of the streams of an earlier run.
//!
//! What the coordinator has booked in this worker's name may differ from what this worker has read, where an answer was lost on
//! its way, or another process speaks in this worker's name:
//!
//! | booked | this worker | then |
//! |---|---|---|
//! | to be read | never got it | it reads it now: no row of the data is skipped |
//! | complete | never read it | the run ends: rows were not trained on, and no other check would find that |

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use zagros_ingest::{Batch, BatchStream, DataPart, IngestError, SplitTask, StreamOptions, StreamStart, StreamStats};
use zagros_job::{Job, Mode};
use zagros_model::seed_of_rank;
use zagros_protocol::control::PositionResponse;
use zagros_protocol::datapath::Access;
use zagros_worker_core::Event;

use super::splits::{AssignedSplits, AssignedStream, SplitNeed};
use super::stream::StreamPosition;
use crate::control::trainer::Trainer;
use crate::datapath::lookahead::{send_hints, step_and_lookup_sides};
use crate::datapath::prefetch::{LookupStage, RowPrefetch};
use crate::datapath::prepared::BatchPreparer;
use crate::datapath::read::{BatchSource, OpenSource, ReaderThread};
use crate::error::WorkerError;
use crate::event::WorkerEvent;

impl Trainer {
    /// Asks the coordinator for splits. What is left of this worker's own stream comes first.
    pub(crate) async fn find_stream(&mut self) -> Result<Event, WorkerError> {
        let found = match self.next_stream().await? {
            AssignedSplits::Split(first) => {
                AssignedStream { order: self.group.row_order(), tasks: vec![first], start: StreamStart::default() }
            }
            AssignedSplits::Remainder(remainder) => remainder,
            AssignedSplits::EpochDone => return Ok(Event::NoSplits),
            AssignedSplits::LetGo => return Ok(Event::LetGo),
            AssignedSplits::Later { pause, reason } => {
                // A rank of a group does not wait: it steps with the others.
                if self.group.in_step().is_none() {
                    self.run.observer.observe(&WorkerEvent::WaitingFor(reason));
                }
                return Ok(Event::SplitsHeld { pause, checkpoint_by_time: self.checkpoints.is_due_by_time() });
            }
        };
        self.stream.waits = 0;
        self.stream.found = Some(found);
        Ok(Event::StreamFound)
    }

    async fn next_stream(&mut self) -> Result<AssignedSplits, WorkerError> {
        if let Some(remainder) = self.stream.remainder.take() {
            return Ok(AssignedSplits::Remainder(remainder));
        }
        match self.run.splits.ask_for_splits(self.epoch, SplitNeed::ForAStream).await? {
            nothing @ (AssignedSplits::EpochDone | AssignedSplits::LetGo) => self.never_given_or(nothing).await,
            // Two workers that were never given a split each would wait for each other.
            later @ AssignedSplits::Later { .. } if self.stream.is_due_to_ask_for_its_own() => {
                self.never_given_or(later).await
            }
            assigned => Ok(assigned),
        }
    }

    /// Splits that were assigned to this worker and never arrived, else `otherwise`.
    async fn never_given_or(&mut self, otherwise: AssignedSplits) -> Result<AssignedSplits, WorkerError> {
        let never_given = self.never_given().await?;
        Ok(never_given.map_or(otherwise, AssignedSplits::Remainder))
    }

    /// Starts to read what was found, at most `limit` batches. Without a `stream` this worker only steps with others.
    pub(crate) fn start_round(&mut self, stream: bool, limit: u64) -> Result<(), WorkerError> {
        if stream {
            let open = match (self.stream.preloaded.clone(), self.stream.found.take()) {
                (Some(batches), _) => preloaded(batches),
                (None, found) => self.open(found.unwrap_or_default()),
            };
            self.start_reading(open, limit)?;
        }
        self.tracker.resume_clock();
        Ok(())
    }

    /// The stream of the leased splits, in the order of rows of the worker that started it.
    fn open(&mut self, stream: AssignedStream) -> OpenSource {
        let AssignedStream { order, tasks, start } = stream;
        let epoch = self.epoch;
        let leased = self.run.splits.lease_stream(epoch, tasks);
        self.stream.position =
            StreamPosition::new(order, start, self.run.job.data.shuffle_rows, leased.dealt.subscribe());
        let mut job = Job::clone(&self.run.job);
        job.train.seed = order_seed(job.train.seed, order);
        let bad_rows = self.run.completer.bad_rows();
        Box::new(move |cancel: Arc<AtomicBool>| -> Result<Box<dyn BatchSource>, IngestError> {
            let options = StreamOptions { part: DataPart::Train, epoch, start, bad_rows, cancel };
            Ok(Box::new(BatchStream::open(&job, options, Box::new(leased))?))
        })
    }

    fn start_reading(&mut self, open: OpenSource, limit: u64) -> Result<(), WorkerError> {
        let (run, stream) = (&self.run, &mut self.stream);
        let preparer = BatchPreparer::new(&run.job, Access::Train).with_extra_rows(stream.weights.clone());
        let (reader, incoming) = ReaderThread::start(open, preparer, run.metrics.clone())?;
        let incoming = send_hints(&run.client, incoming, run.job.lookahead_batches());
        let (client, window) = (Arc::clone(&run.client), stream.window.clone());
        let (step_side, lookup_side) = (run.job.train.mode == Mode::Sync).then(step_and_lookup_sides).unzip();
        // No batch follows the last one of an earlier stream.
        stream.steps = step_side;
        let metrics = run.metrics.clone();
        let lookups = LookupStage { client, access: Access::Train, window, metrics, steps: lookup_side };
        stream.prefetch = Some(RowPrefetch::start(lookups, incoming, stream.next_seq, limit));
        stream.reader = Some(reader);
        Ok(())
    }

    pub(crate) async fn close_round(&mut self, checked: bool) -> Result<Event, WorkerError> {
        if !checked {
            self.check_bad_rows()?;
        }
        self.stream.drop_batches();
        self.drain().await?;
        self.tracker.pause_clock();
        if let Some(reader) = self.stream.reader.take() {
            let stats = reader.finish(self.run.job.cluster.timeout).await?;
            if stats.rows == 0 {
                self.stream.untrained_rows += stats.bad_rows + stats.other_rows;
            }
        }
        Ok(Event::Drained)
    }

    /// After the last batch of a stream, splits that ended in no batch (they had no training row) are complete too.
    pub(crate) async fn complete_stream(&mut self) -> Result<Event, WorkerError> {
        // The coordinator takes a split twice without harm.
        self.complete_splits(self.stream.position.dealt_splits());
        self.stream.position.mark_ended();
        self.run.completer.flush().await?;
        Ok(Event::Drained)
    }

    /// Splits of an epoch that are this worker's to read and that it was never given. It is in no stream now, and has reported
    /// all that it has read: it does not know what the coordinator still counts as its own.
    pub(super) async fn never_given(&mut self) -> Result<Option<AssignedStream>, WorkerError> {
        let PositionResponse { position, held, .. } = self.run.splits.position(self.epoch).await?;
        if held.is_empty() {
            return Ok(None);
        }
        tracing::warn!(
            epoch = self.epoch,
            splits = held.len(),
            "splits were assigned to this worker and never arrived: reading them now"
        );
        let plan = position.unwrap_or_default().plan;
        let mine = plan.into_iter().filter(|split| held.contains(&split.id));
        let tasks: Vec<SplitTask> = mine.map(|split| self.run.splits.task(split)).collect::<Result<_, _>>()?;
        Ok(Some(AssignedStream { order: self.group.row_order(), tasks, start: StreamStart::default() }))
    }

    /// At the end of an epoch: every split is complete, and what is so in this worker's name it has read.
    ///
    /// # Errors
    /// [`WorkerError::Books`] where that is not so.
    pub(crate) async fn check_books(&mut self) -> Result<(), WorkerError> {
        let PositionResponse { position, completed, .. } = self.run.splits.position(self.epoch).await?;
        // Not those of this epoch: its end is met again where another worker is lost at it. An id starts with its epoch.
        self.stream.splits_read.retain(|split| split >> 32 >= u64::from(self.epoch));
        let foreign = completed.iter().filter(|split| !self.stream.splits_read.contains(split)).count();
        let (index, epoch) = (self.run.splits.member as u32, self.epoch + 1);
        if foreign > 0 {
            let reason = format!(
                "{foreign} splits were reported complete in the name of dense worker {index}, which never read them"
            );
            return Err(WorkerError::Books { epoch, reason });
        }
        let position = position.unwrap_or_default();
        let (splits, done) = (position.plan.len(), position.done.len());
        if done < splits && self.group.leads() {
            let reason = format!("{} of {splits} splits were read by no worker", splits - done);
            return Err(WorkerError::Books { epoch, reason });
        }
        Ok(())
    }
}

/// The seed of a worker's order of rows; rank 0's is the job's.
fn order_seed(seed: u64, rank: u32) -> u64 {
    // A job's seed is an i64 above zero.
    seed_of_rank(seed, u64::from(rank)) & i64::MAX as u64
}

fn preloaded(batches: Arc<Vec<Batch>>) -> OpenSource {
    let batches = PreloadedBatches { batches, next: 0 };
    Box::new(move |_| Ok(Box::new(batches)))
}

struct PreloadedBatches {
    batches: Arc<Vec<Batch>>,
    next: usize,
}

impl Iterator for PreloadedBatches {
    type Item = Result<Batch, IngestError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.batches.get(self.next)?.clone();
        self.next += 1;
        Some(Ok(batch))
    }
}

impl BatchSource for PreloadedBatches {
    fn stats(&self) -> StreamStats {
        StreamStats::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_has_a_seed_of_its_own_and_the_first_that_of_the_job() {
        assert_eq!(order_seed(11, 0), 11);
        let seeds = std::collections::HashSet::from([0, 1, 2].map(|rank| order_seed(11, rank)));
        assert!(seeds.len() == 3 && seeds.iter().all(|seed| i64::try_from(*seed).is_ok()));
    }
}
