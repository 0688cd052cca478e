//! The data of a worker: the stream that it reads, the batch that it has next, and the gradients on their way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zagros_embedding_client::{AfterPushes, RequestReach, StalenessWindow, TableIds, WindowPermit};
use zagros_ingest::Batch;

use super::splits::AssignedStream;
use super::stream_position::StreamPosition;
use crate::datapath::next_lookup::{PushedStep, StepSide};
use crate::datapath::prefetch::RowPrefetch;
use crate::datapath::prepared::FetchedBatch;
use crate::datapath::push::PendingPushes;
use crate::datapath::read::ReaderThread;

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
