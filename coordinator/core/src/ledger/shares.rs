//! Which split a worker gets first.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use zagros_protocol::control::ResumeCursor;

use crate::MemberSlot;
use crate::splits::{DealPosition, SplitOrder};

/// How splits are shared out: split i goes to worker i mod `workers` first.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct SplitShares {
    /// Dense workers of the job.
    pub(crate) workers: u32,
    /// Whether a worker reads only its own share. The reader of a split is then a function of (split, worker) alone.
    pub(crate) fixed: bool,
    /// Which free split comes first.
    pub(crate) order: SplitOrder,
}

impl SplitShares {
    /// The first free split of the worker's share. Unless shares are fixed: if its share has none, the first free split.
    pub(crate) fn next(self, free: &BTreeSet<DealPosition>, slot: MemberSlot) -> Option<DealPosition> {
        let own = free.iter().find(|position| position.split % self.workers.max(1) == slot.index);
        let any = if self.fixed { None } else { free.first() };
        own.or(any).copied()
    }

    /// The index of the worker's own resume cursor. Unless shares are fixed: if it has none, the index of any.
    pub(crate) fn cursor(self, resume_cursors: &[ResumeCursor], slot: MemberSlot) -> Option<usize> {
        let own = resume_cursors.iter().position(|cursor| cursor.reader % self.workers.max(1) == slot.index);
        own.or((!self.fixed && !resume_cursors.is_empty()).then_some(0))
    }
}
