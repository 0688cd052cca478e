//! The state of a server's moves: which one is announced, what is under way, and who waits for it.
//!
//! The first part of a copy: every row of the buckets once, stripe by stripe, and what is counted of ids without a row.
//!
//! ```text
//! stripe: ids in memory ─► rows ─► ids in the cold tier that were not in memory ─► rows ─► counts ─► next stripe
//! ```
//!
//! [`zagros_table::Table::read_rows_anywhere`] says why no row is missed. Rows are evicted and paged in meanwhile, but each is sent once: the
//! ids that were in memory are kept until the stripe is done.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use zagros_protocol::control::MoveRowsResponse;
use zagros_protocol::{Refusal, RefusalKind, ServerIndex};
use zagros_table::{ColdError, ColdIds, RowBatch, StepRowBatch, Table};
use zagros_zip::ZipEq;

use super::PlannedMove;
use super::bucket_set::ChangedRows;

/// What a server has to do with moves.
#[derive(Debug, Default)]
pub(crate) struct ServerMoves {
    pub(super) activity: Mutex<MoveActivity>,
    pub(super) announced: Mutex<Option<Arc<PlannedMove>>>,
    /// Notified when the placement is to be fetched at once.
    ask: Notify,
    /// Counts the changes of what is served.
    served: watch::Sender<u64>,
    /// Locked while rows of other servers' buckets are removed.
    pub(super) purging: Mutex<()>,
}

/// What a server does that nothing else of this list may happen beside.
#[derive(Debug, Default)]
pub(super) enum MoveActivity {
    #[default]
    None,
    Loading,
    Outgoing(Arc<OutgoingMove>),
    Incoming(Arc<PlannedMove>),
}

/// A load of saved rows. No move begins before it is dropped.
#[derive(Debug)]
pub(crate) struct LoadTurn<'a>(&'a ServerMoves);

impl ServerMoves {
    /// Waits until the placement is to be fetched at once.
    pub(crate) async fn wait_for_request(&self) {
        self.ask.notified().await;
    }

    /// Has the placement fetched at once.
    pub(crate) fn request_placement(&self) {
        self.ask.notify_one();
    }

    /// Changes of what is served, as a number that increases.
    pub(crate) fn subscribe_changes(&self) -> watch::Receiver<u64> {
        self.served.subscribe()
    }

    pub(crate) fn note_change(&self) {
        self.served.send_modify(|changes| *changes += 1);
    }

    /// Begins a load of saved rows: it changes rows of all buckets, and no copy would know.
    /// Refused as `Unavailable` while the server is the source or the target of a move.
    pub(crate) fn begin_load(&self, server: ServerIndex) -> Result<LoadTurn<'_>, Refusal> {
        let mut activity = self.activity.lock();
        if let Some(busy) = activity.describe_work() {
            let message = format!("embedding server {server} cannot load rows now: {busy}; try again");
            return Err(Refusal::new(RefusalKind::Unavailable, message));
        }
        *activity = MoveActivity::Loading;
        Ok(LoadTurn(self))
    }
}

impl MoveActivity {
    /// What is under way, for a person. `None` if nothing is.
    pub(super) fn describe_work(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Loading => Some("saved rows are being loaded".to_owned()),
            Self::Outgoing(outgoing) => Some(format!("{} is under way", outgoing.plan)),
            Self::Incoming(plan) => Some(format!("{plan} is under way")),
        }
    }
}

impl Drop for LoadTurn<'_> {
    fn drop(&mut self) {
        *self.0.activity.lock() = MoveActivity::None;
    }
}

#[derive(Debug)]
pub(super) struct OutgoingMove {
    pub(super) plan: Arc<PlannedMove>,
    pub(super) changed: Arc<ChangedRows>,
    pub(super) cursor: Mutex<CopyCursor>,
}

#[derive(Debug, Default)]
pub(super) struct CopyCursor {
    pub(super) number: u64,
    pub(super) last: Option<MoveRowsResponse>,
    /// The table that is read, and how far. Past the last table, every row was sent once.
    pub(super) table: u32,
    pub(super) scan: TableScan,
    /// Why the copy cannot go on.
    pub(super) failure: Option<ColdError>,
}

const SKETCH_WORDS: usize = CHUNK_BYTES / 4;

#[derive(Debug, Default)]
pub(super) struct TableScan {
    stripe: usize,
    part: StripePart,
}

#[derive(Debug, Default)]
enum StripePart {
    /// The rows in memory are to be listed.
    #[default]
    Memory,
    /// These rows are sent. They were in memory, and are kept for the next part.
    Hot { left: Vec<u64>, all: HashSet<u64> },
    /// Rows of the cold tier are to be listed, from here on. These have been sent.
    Cold { from: Option<u64>, sent: HashSet<u64> },
    /// Ids with exact counts are to be listed.
    Counts,
    /// These counts are sent.
    Counted { left: Vec<u64> },
    /// The sketch is sent, from this word on.
    Sketch { from: usize },
}

impl TableScan {
    /// Reads the next rows and counts. Returns whether the table was read to its end.
    /// After an error, what was to be sent next is lost: the copy cannot go on.
    pub(super) fn read_chunk(
        &mut self,
        number: u32,
        table: &Table,
        plan: &PlannedMove,
        chunk: &mut RowChunk,
    ) -> Result<bool, ColdError> {
        let most = most_rows(table);
        while chunk.len() < most && chunk.sketch.is_empty() {
            if self.stripe == table.stripes() {
                return Ok(true);
            }
            let is_moving = |id: &u64| plan.has_row(number, *id);
            self.part = match std::mem::take(&mut self.part) {
                StripePart::Memory => {
                    let mut left = table.ids_in_memory(self.stripe);
                    left.retain(is_moving);
                    StripePart::Hot { all: left.iter().copied().collect(), left }
                }
                StripePart::Hot { left, all } if left.is_empty() => StripePart::Cold { from: None, sent: all },
                StripePart::Hot { mut left, all } => {
                    let taken = left.split_off(left.len().saturating_sub(most));
                    table.read_rows_anywhere(self.stripe, &taken, &mut chunk.rows)?;
                    StripePart::Hot { left, all }
                }
                StripePart::Cold { from, sent } => {
                    let ColdIds { mut ids, next } = table.cold_ids(self.stripe, from, most)?;
                    ids.retain(|id| is_moving(id) && !sent.contains(id));
                    table.read_rows_anywhere(self.stripe, &ids, &mut chunk.rows)?;
                    next.map_or(StripePart::Counts, |from| StripePart::Cold { from: Some(from), sent })
                }
                StripePart::Counts => {
                    let mut left = table.counted_ids(self.stripe);
                    left.retain(is_moving);
                    StripePart::Counted { left }
                }
                StripePart::Counted { left } if left.is_empty() => StripePart::Sketch { from: 0 },
                StripePart::Counted { mut left } => {
                    let taken = left.split_off(left.len().saturating_sub(most));
                    chunk.add_counts(table, self.stripe, &taken);
                    StripePart::Counted { left }
                }
                StripePart::Sketch { from } => self.read_sketch(table, from, chunk),
            };
        }
        Ok(false)
    }

    fn read_sketch(&mut self, table: &Table, from: usize, chunk: &mut RowChunk) -> StripePart {
        (chunk.sketch_stripe, chunk.sketch_from) = (self.stripe as u32, from as u32);
        if table.read_sketch(self.stripe, from, SKETCH_WORDS, &mut chunk.sketch) {
            self.stripe += 1;
            return StripePart::Memory;
        }
        StripePart::Sketch { from: from + SKETCH_WORDS }
    }
}

/// Bytes of rows in one answer, about.
const CHUNK_BYTES: usize = 1 << 20;

/// What one answer of a source has: rows and counts of one table.
#[derive(Default)]
pub(super) struct RowChunk {
    pub(super) rows: RowBatch,
    pub(super) removed: Vec<u64>,
    pub(super) counted: Vec<u64>,
    pub(super) counts: Vec<u32>,
    pub(super) sketch: Vec<u32>,
    pub(super) sketch_stripe: u32,
    pub(super) sketch_from: u32,
    /// What the step under way has changed.
    pub(super) step_rows: StepRowBatch,
}

impl RowChunk {
    pub(super) fn len(&self) -> usize {
        self.rows.ids.len() + self.removed.len() + self.counted.len()
    }

    /// Adds the counts of these ids of one stripe, as far as there are any.
    pub(super) fn add_counts(&mut self, table: &Table, stripe: usize, ids: &[u64]) {
        for (id, count) in ids.iter().zip_eq(table.counts_of(stripe, ids)).filter(|(_, count)| *count > 0) {
            self.counted.push(*id);
            self.counts.push(count);
        }
    }
}

pub(super) fn most_rows(table: &Table) -> usize {
    (CHUNK_BYTES / (12 + 4 * table.stride())).max(1)
}
