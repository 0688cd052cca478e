//! Which split a worker gets first.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use zagros_protocol::control::ResumeCursor;

use crate::MemberSlot;
use crate::split_plan::{DealPosition, SplitOrder};

/// How splits are shared out: split i goes to worker i mod `workers` first.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct SplitShares {
    pub(crate) workers: u32,
    /// Whether a worker reads only its own share. The reader of a split is then a function of (split, worker) alone.
    pub(crate) fixed: bool,
    pub(crate) order: SplitOrder,
}

/// The free splits of an epoch, each in the share of its worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FreeSplits(Vec<BTreeSet<DealPosition>>);

impl FreeSplits {
    pub(crate) fn new(workers: u32, splits: impl Iterator<Item = DealPosition>) -> Self {
        let mut free = Self(vec![BTreeSet::new(); workers.max(1) as usize]);
        splits.for_each(|split| free.insert(split));
        free
    }

    pub(crate) fn insert(&mut self, position: DealPosition) {
        self.share_mut(position).insert(position);
    }

    /// Returns whether the split was free.
    pub(crate) fn remove(&mut self, position: DealPosition) -> bool {
        self.share_mut(position).remove(&position)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(BTreeSet::is_empty)
    }

    fn share_mut(&mut self, position: DealPosition) -> &mut BTreeSet<DealPosition> {
        let workers = self.0.len();
        &mut self.0[position.split as usize % workers]
    }
}

impl SplitShares {
    /// The first free split of the worker's share. Unless shares are fixed: if its share has none, the first free split.
    pub(crate) fn next_split(self, FreeSplits(free): &FreeSplits, slot: MemberSlot) -> Option<DealPosition> {
        let own = free.get(slot.index as usize).and_then(BTreeSet::first);
        let any = || free.iter().filter_map(BTreeSet::first).min().filter(|_| !self.fixed);
        own.or_else(any).copied()
    }

    /// The index of the worker's own resume cursor. Unless shares are fixed: if it has none, the index of any.
    pub(crate) fn next_cursor(self, resume_cursors: &[ResumeCursor], slot: MemberSlot) -> Option<usize> {
        let own = resume_cursors.iter().position(|cursor| cursor.reader % self.workers.max(1) == slot.index);
        own.or((!self.fixed && !resume_cursors.is_empty()).then_some(0))
    }
}
