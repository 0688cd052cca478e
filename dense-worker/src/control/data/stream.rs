//! The data of a worker: the stream that it reads and its place in it, the batch that it has next, and the gradients on their way.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use zagros_embedding_client::{AfterPushes, RequestReach, StalenessWindow, TableIds, WindowPermit};
use zagros_ingest::{Batch, SplitTask, StreamCursor, StreamRemainder, StreamStart};

use super::splits::AssignedStream;
use crate::datapath::lookahead::{PushedStep, StepSide};
use crate::datapath::prefetch::RowPrefetch;
use crate::datapath::prepared::FetchedBatch;
use crate::datapath::push::PendingPushes;
use crate::datapath::read::ReaderThread;
use crate::error::WorkerError;

pub(crate) struct StreamState {
    pub(crate) position: StreamPosition,
    pub(crate) found: Option<AssignedStream>,
    /// What is left of the stream in which a group failed.
    pub(crate) remainder: Option<AssignedStream>,
    pub(crate) preloaded: Option<Arc<Vec<Batch>>>,
    /// The thread that reads, and the lookups ahead.
    pub(crate) reader: Option<ReaderThread>,
    pub(crate) prefetch: Option<RowPrefetch>,
    /// Where the prefetch learns which step is pushed, and says which batch is next, in mode `sync`.
    pub(crate) steps: Option<StepSide>,
    /// The batch of the next step, its rows looked up.
    pub(crate) batch: Option<Box<FetchedBatch>>,
    pub(crate) window: StalenessWindow,
    /// The last batch's place in the window, kept until nothing more is to be done between it and the next.
    pub(crate) permit: Option<Arc<WindowPermit>>,
    pub(crate) weights: Option<TableIds>,
    pub(crate) pushes: PendingPushes,
    pub(crate) next_seq: u64,
    /// Splits of the epoch that this worker has read to their ends, by id.
    pub(crate) splits_read: BTreeSet<u64>,
    /// Hashes of the rows of splits, by place in the plan, that were trained on in this epoch or an earlier one.
    pub(crate) contents: BTreeMap<u32, u64>,
    /// Answers in a row that asked the worker to wait for splits that others hold.
    pub(crate) waits: u32,
    /// Rows of the streams that had none to train on.
    pub(crate) untrained_rows: u64,
}

impl StreamState {
    /// Nothing is read yet. At most `window` batches are between lookup and acknowledgement.
    pub(crate) fn new(pushes: PendingPushes, window: StalenessWindow, weights: Option<TableIds>) -> Self {
        Self {
            position: StreamPosition::default(),
            found: None,
            remainder: None,
            preloaded: None,
            reader: None,
            prefetch: None,
            steps: None,
            batch: None,
            window,
            permit: None,
            weights,
            pushes,
            next_seq: 0,
            splits_read: BTreeSet::new(),
            contents: BTreeMap::new(),
            waits: 0,
            untrained_rows: 0,
        }
    }

    /// Counts a wait for splits that others hold. At the first wait, and now and then, the worker asks which splits are its own:
    /// the coordinator's answer lists the plan of the whole epoch.
    pub(crate) fn is_due_to_ask_for_its_own(&mut self) -> bool {
        const EVERY: u32 = 50;
        self.waits += 1;
        self.waits % EVERY == 1
    }

    /// Says that the push of this worker's batch `seq` is on its way, of so many in step `step`, if they go to all servers.
    pub(crate) fn push_started(&self, seq: u64, step: u64, reach: RequestReach, pushes: usize) {
        if let (Some(steps), RequestReach::AllServers { group }) = (&self.steps, reach) {
            let after_pushes = AfterPushes::new(step, group, u32::try_from(pushes).unwrap_or(u32::MAX));
            steps.push_started(PushedStep { seq, after: after_pushes });
        }
    }

    pub(crate) fn drop_batches(&mut self) {
        self.batch = None;
        self.prefetch = None;
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct StreamPosition {
    /// Whose order of rows it has: the worker that started it.
    pub(crate) order: u32,
    cursor: Option<StreamCursor>,
    /// Splits that the reading thread was dealt, in order.
    dealt: Option<watch::Receiver<Vec<SplitTask>>>,
    /// Malformed rows of those of its splits that have some.
    bad_rows: HashMap<u64, u64>,
    /// Hashes of the rows of its splits whose last row was delivered.
    contents: HashMap<u64, u64>,
    /// Every batch was delivered, and every split reported complete.
    over: bool,
}

impl StreamPosition {
    /// Of a stream that starts there and shuffles within windows of so many rows.
    pub(crate) fn new(
        order: u32,
        start: StreamStart,
        shuffle_rows: usize,
        dealt: watch::Receiver<Vec<SplitTask>>,
    ) -> Self {
        let cursor = Some(StreamCursor::new(start, shuffle_rows));
        Self { order, cursor, dealt: Some(dealt), ..Self::default() }
    }

    /// The next batch is trained on, or skipped for good; answers the splits whose last row it has.
    pub(crate) fn advance(&mut self, batch: &mut Batch) -> Vec<u64> {
        if let Some(cursor) = &mut self.cursor {
            cursor.record_delivery(batch);
        }
        let ends = std::mem::take(&mut batch.completes);
        self.bad_rows.extend(ends.iter().filter(|end| end.bad_rows > 0).map(|end| (end.split, end.bad_rows)));
        self.contents.extend(ends.iter().map(|end| (end.split, end.content)));
        ends.into_iter().map(|end| end.split).collect()
    }

    /// Of a split whose last row was delivered.
    pub(crate) fn bad_rows(&self, split: u64) -> u64 {
        self.bad_rows.get(&split).copied().unwrap_or(0)
    }

    /// The hash of its rows, if its last row was delivered.
    pub(crate) fn content_hash(&self, split: u64) -> Option<u64> {
        self.contents.get(&split).copied()
    }

    /// What is left of it; `None` before the first stream and after its end: its splits may be read again in the next epoch.
    pub(crate) fn stream_remainder(&self) -> Option<StreamRemainder> {
        self.cursor.as_ref().filter(|_| !self.over).map(|cursor| cursor.remainder(&self.dealt_splits()))
    }

    /// Ids of the splits that it was dealt so far; none after its end, when all of them have been reported complete.
    pub(crate) fn dealt_splits(&self) -> Vec<u64> {
        if self.over {
            return Vec::new();
        }
        self.tasks().iter().map(|task| task.id).collect()
    }

    pub(crate) fn mark_ended(&mut self) {
        self.over = true;
    }

    /// Waits until its reading thread, which was asked to end, can be dealt no more splits.
    pub(crate) async fn wait_until_closed(&mut self, timeout: Duration) -> Result<(), WorkerError> {
        let Some(dealt) = &mut self.dealt else { return Ok(()) };
        let closed = async { while dealt.changed().await.is_ok() {} };
        tokio::time::timeout(timeout, closed).await.map_err(|_| WorkerError::Thread {
            thread: "reader",
            reason: format!("did not end within {timeout:?}; is the data on a disk that hangs?"),
        })
    }

    /// What this worker reads first after its stream was ended early; `None` when nothing is left.
    pub(crate) fn stream_to_resume(&self) -> Option<AssignedStream> {
        let StreamRemainder { splits, start } = self.stream_remainder()?;
        let mut tasks = self.tasks();
        tasks.retain(|task| splits.contains(&task.id));
        Some(AssignedStream { order: self.order, tasks, start })
    }

    fn tasks(&self) -> Vec<SplitTask> {
        self.dealt.as_ref().map(|dealt| dealt.borrow().clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use zagros_ingest::SplitEnd;

    use super::*;

    fn task(id: u64) -> SplitTask {
        SplitTask { id, path: "a".into(), start: id * 10, end: id * 10 + 10 }
    }

    #[tokio::test(start_paused = true)]
    async fn the_remainder_is_what_was_dealt_and_not_delivered() {
        let (deal, dealt) = watch::channel(vec![task(1)]);
        let mut stream = StreamPosition::new(3, StreamStart::default(), 0, dealt);
        deal.send_modify(|dealt| dealt.push(task(2)));
        let end = |(split, rows): &(u64, u64)| SplitEnd { split: *split, rows: *rows, bad_rows: 0, content: 7 };
        let batch =
            |size, ends: &[(u64, u64)]| Batch { size, completes: ends.iter().map(end).collect(), ..Batch::default() };
        assert_eq!(stream.advance(&mut batch(4, &[(1, 3)])), [1]);
        let late = stream.wait_until_closed(Duration::from_secs(1)).await.unwrap_err();
        assert!(late.to_string().contains("did not end within 1s"), "{late}");
        deal.send_modify(|dealt| dealt.push(task(3)));
        drop(deal);
        stream.wait_until_closed(Duration::from_secs(1)).await.unwrap();
        let start = StreamStart { drop: 1, ..StreamStart::default() };
        assert_eq!(stream.stream_to_resume(), Some(AssignedStream { order: 3, tasks: vec![task(2), task(3)], start }));
        assert_eq!(stream.stream_remainder().map(|rest| rest.splits), Some(vec![2, 3]));
        assert_eq!(stream.dealt_splits(), [1, 2, 3]);
        stream.mark_ended();
        // A worker that leaves in the next epoch does not report them once more.
        assert_eq!((stream.stream_remainder(), stream.stream_to_resume()), (None, None));
        assert!(stream.dealt_splits().is_empty());
        assert_eq!(StreamPosition::default().stream_to_resume(), None);
    }
}
