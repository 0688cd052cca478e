//! Who is dealt which split first.

use std::collections::BTreeSet;

use zagros_protocol::control::ResumeCursor;

use crate::MemberSlot;
use crate::splits::{DealPosition, SplitOrder};

/// How splits are shared out: split i goes to worker i mod `workers` first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SplitShares {
    /// Dense workers of the job.
    pub(crate) workers: u32,
    /// Whether a worker reads its own share only. Who reads what is then a function of (split, worker) alone.
    pub(crate) fixed: bool,
    /// Which free split comes first.
    pub(crate) order: SplitOrder,
}

impl SplitShares {
    /// The first free split of the asker's share; else, unless shares are fixed, the first free split.
    pub(crate) fn next(self, free: &BTreeSet<DealPosition>, slot: MemberSlot) -> Option<DealPosition> {
        let own = free.iter().find(|position| position.split % self.workers.max(1) == slot.index);
        let any = if self.fixed { None } else { free.first() };
        own.or(any).copied()
    }

    /// The index of the asker's own resume cursor; else, unless shares are fixed, of any.
    pub(crate) fn cursor(self, resume_cursors: &[ResumeCursor], slot: MemberSlot) -> Option<usize> {
        let own = resume_cursors.iter().position(|cursor| cursor.reader % self.workers.max(1) == slot.index);
        own.or((!self.fixed && !resume_cursors.is_empty()).then_some(0))
    }
}
