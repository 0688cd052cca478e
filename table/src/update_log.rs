//! The log of changes as a trait: an implementation can make the same rows again after the process has ended. The table
//! stays free of files.
//!
//! What changes under one hold of a stripe's lock is appended before the lock is given back. The log therefore has the
//! changes of each row in the order in which they happened. Rows are logged as they are *after* a change (after-images): to
//! put the same row in twice, or once too late, does no harm as long as the last one of the log is put in last.
//!
//! ```text
//! push: lock stripe ─► update rows ─► append [ids | slots | access] ─► unlock      … all stripes … ─► the caller commits
//! evict: lock stripe ─► copy rows ─► unlock ─► flush the log ─► write to the cold tier
//! ```
//!
//! Not logged: rows that a lookup made in a table that admits every id, since their first value is a function of (seed,
//! table, id); and the access metadata of rows that are only looked up.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use crate::key::id_of;
use crate::{ColdError, PushStep, RowBatch, StepRowBatch, StepRowSlices};

/// Identity of a push. The table only hands it on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PushOrigin {
    pub writer: u64,
    /// Counts the processes of the writer.
    pub incarnation: u32,
    /// Numbers the pushes of this process.
    pub seq: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct StripeChange<'a> {
    pub table: u32,
    pub stripe: u32,
    pub origin: Option<&'a PushOrigin>,
    pub kind: ChangeKind<'a>,
}

#[derive(Clone, Copy, Debug)]
pub enum ChangeKind<'a> {
    /// These rows are new, or have these words now.
    Rows {
        ids: &'a [u64],
        /// Words of 32 bits, `[ids.len() * stride]`.
        slots: &'a [u32],
        /// Access metadata, `[ids.len()]`; empty where rows have none.
        access: &'a [u32],
    },
    /// A stripe keeps these rows as they were before the step, with the sums of their gradients so far. Follows the rows themselves.
    StepRows(StepRowSlices<'a>),
    /// These rows, and gradients that waited for them, are gone for good.
    Removed(&'a [u64]),
    /// A lookup named these ids, in this order, and they had no row. The admission filter has counted them.
    Seen(&'a [u64]),
    /// These were added to the frequency counts of these ids.
    CountsAdded(&'a [u64], &'a [u32]),
    /// Cells were added to the stripe's sketch.
    SketchAdded {
        /// The first word of the sketch that they were added to.
        from: u32,
        /// The cells, two a word.
        cells: &'a [u32],
    },
    Pending {
        id: u64,
        step: PushStep,
        /// `[dim]`.
        gradient: &'a [f32],
    },
}

pub trait UpdateLog: Send + Sync + fmt::Debug {
    /// Appends a change. The lock of its stripe is held: the call does no I/O and does not fail.
    fn append(&self, change: &StripeChange<'_>);

    /// All rows and counts of all tables are gone. No other call on the tables is under way.
    fn cleared(&self);

    /// Makes all that was appended before as durable as the log promises. No lock of a stripe is held.
    fn flush(&self) -> Result<(), ColdError>;

    /// Whether a step of several pushes must go on after a restart as if there had been none. It costs the log of each push
    /// the row before the step and the sum of its gradients.
    fn keeps_steps(&self) -> bool {
        false
    }

    /// Where the next change will lie. Positions increase.
    fn position(&self) -> u64;
}

/// Learns which rows change. A row that a lookup made, in a table that admits every id, is no change: its first value is a
/// function of (seed, table, id).
pub trait ChangeWatcher: Send + Sync + fmt::Debug {
    /// These rows have changed, are gone, or were counted without being there. The lock of their stripe is held: the call does no I/O.
    fn changed(&self, table: u32, stripe: u32, ids: &[u64]);
}

#[derive(Debug, Default)]
pub(crate) struct WatcherSlot {
    /// Every request reads it. Without a watcher this costs one load.
    is_taken: AtomicBool,
    watcher: RwLock<Option<Arc<dyn ChangeWatcher>>>,
}

impl WatcherSlot {
    #[inline]
    pub(crate) fn is_taken(&self) -> bool {
        self.is_taken.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, watcher: Option<Arc<dyn ChangeWatcher>>) {
        let is_taken = watcher.is_some();
        *self.watcher.write() = watcher;
        self.is_taken.store(is_taken, Ordering::Release);
    }

    pub(crate) fn notify_changed(&self, table: u32, stripe: usize, ids: &[u64]) {
        if let Some(watcher) = self.watcher.read().as_ref().filter(|_| !ids.is_empty()) {
            watcher.changed(table, stripe as u32, ids);
        }
    }
}

/// What changes in a stripe while its lock is held, on its way to the log. Empty whenever the lock of the stripe is free.
#[derive(Debug, Default)]
pub(crate) struct StripeChanges {
    pub(crate) origin: Option<PushOrigin>,
    pub(crate) rows: RowBatch,
    pub(crate) seen: Vec<u64>,
    /// Ids whose rows are gone. They were there before any of the rows above changed.
    pub(crate) removed: Vec<u64>,
    /// What the stripe keeps of the rows above until the step is over. Rarely used, so that a stripe stays small.
    pub(crate) step_rows: Box<StepRowBatch>,
}

impl StripeChanges {
    #[inline]
    pub(crate) fn note_row(&mut self, key: u64, words: &[u32], access: Option<u32>) {
        self.rows.push_row(id_of(key), words, access);
    }

    pub(crate) fn note_seen(&mut self, key: u64) {
        self.seen.push(id_of(key));
    }

    pub(crate) fn note_removed(&mut self, key: u64) {
        self.removed.push(id_of(key));
    }

    pub(crate) fn clear(&mut self) {
        self.origin = None;
        self.rows.clear();
        self.seen.clear();
        self.removed.clear();
        self.step_rows.clear();
    }
}
