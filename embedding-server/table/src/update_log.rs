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

use crate::{ColdError, PushStep, StepRowSlices};

/// Identity of a push. The table only hands it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
