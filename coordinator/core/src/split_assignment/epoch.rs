//! The splits of one epoch: free → held → done. A split goes back to free when its holder is gone.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use zagros_protocol::control::{Position, ResumeCursor, Split};
use zagros_protocol::{Refusal, RefusalKind};
use zagros_zip::number_from;

use crate::MemberSlot;
use crate::split_plan::{DealPosition, MOST_SPLITS, SplitOrder, SplitRange};

/// How splits are shared out: split i goes to worker i mod `workers` first.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
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

/// It takes memory only while the epoch is under way.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum EpochLedger {
    Untouched,
    /// A worker has asked for a split, and some splits are not done.
    Open(OpenEpoch),
    Complete,
}

/// One epoch over the plan. Every split is in exactly one state: free, held, done, or in a resume cursor that no worker
/// has taken. A split has at most one holder (invariant SP-1).
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OpenEpoch {
    number: u32,
    order: SplitOrder,
    free: FreeSplits,
    held: BTreeMap<u32, MemberSlot>,
    done: BTreeSet<u32>,
    /// Resume cursors that no worker has taken. Some of their splits may be done. These are read again, so that the other rows
    /// come in the same order as before.
    resume_cursors: Vec<ResumeCursor>,
}

#[derive(Debug)]
pub(crate) enum SplitDeal {
    /// A cursor at which the stream of an earlier run continues.
    Cursor(ResumeCursor),
    /// A split, by index.
    Split(u32),
    /// Nothing now. Other workers hold splits, which come back when a holder is lost.
    Wait {
        splits: usize,
        holder: MemberSlot,
    },
    /// Nothing now. The worker holds so many splits that others would have too few.
    Full {
        splits: usize,
    },
    Nothing,
}

impl EpochLedger {
    /// The open epoch; `None` once it is complete. An untouched epoch is opened.
    pub(crate) fn open(&mut self, number: u32, splits: usize, shares: SplitShares) -> Option<&mut OpenEpoch> {
        if matches!(self, Self::Untouched) {
            *self = Self::Open(OpenEpoch::fresh(number, splits as u32, shares));
        }
        self.under_way()
    }

    pub(crate) fn under_way(&mut self) -> Option<&mut OpenEpoch> {
        if let Self::Open(epoch) = self { Some(epoch) } else { None }
    }

    pub(crate) fn held_by(&self, slot: MemberSlot) -> impl Iterator<Item = u32> {
        let held = if let Self::Open(epoch) = self { Some(&epoch.held) } else { None };
        held.into_iter().flatten().filter(move |(_, holder)| **holder == slot).map(|(index, _)| *index)
    }

    pub(crate) fn is_done(&self, index: u32) -> bool {
        match self {
            Self::Complete => true,
            Self::Open(epoch) => epoch.done.contains(&index),
            Self::Untouched => false,
        }
    }

    pub(crate) fn done_splits(&self, splits: usize) -> impl Iterator<Item = u32> {
        let (some, all) = match self {
            Self::Open(epoch) => (Some(&epoch.done), 0),
            Self::Untouched => (None, 0),
            Self::Complete => (None, splits as u32),
        };
        some.into_iter().flatten().copied().chain(0..all)
    }

    pub(crate) fn is_complete(&self, splits: usize) -> bool {
        match self {
            Self::Open(epoch) => epoch.is_complete(),
            Self::Untouched => splits == 0,
            Self::Complete => true,
        }
    }

    /// Whether no split was dealt out or taken over from another run.
    pub(crate) fn is_untouched(&self) -> bool {
        match self {
            Self::Open(epoch) => epoch.held.is_empty() && epoch.done.is_empty() && epoch.resume_cursors.is_empty(),
            Self::Untouched => true,
            Self::Complete => false,
        }
    }
}

impl OpenEpoch {
    fn fresh(number: u32, splits: u32, shares: SplitShares) -> Self {
        let order = shares.order;
        let (held, done, resume_cursors) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        Self {
            free: FreeSplits::new(shares.workers, (0..splits).map(|split| order.position(number, split))),
            number,
            order,
            held,
            done,
            resume_cursors,
        }
    }

    fn position_of(&self, split: u32) -> DealPosition {
        self.order.position(self.number, split)
    }

    pub(crate) fn go_on(&mut self, position: &Position) -> Result<(), Refusal> {
        for id in &position.done {
            let index = planned_index(position, *id)?;
            self.free.remove(self.position_of(index));
            self.done.insert(index);
        }
        for cursor in &position.resume_cursors {
            let mut is_needed = false;
            for split in &cursor.splits {
                let index = planned_index(position, split.id)?;
                let is_done = self.done.contains(&index);
                if !self.free.remove(self.position_of(index)) && !is_done {
                    return Err(Refusal::invalid(format!("the position has split {} in two resume cursors", split.id)));
                }
                is_needed |= !is_done;
            }
            if is_needed {
                self.resume_cursors.push(cursor.clone());
            }
        }
        Ok(())
    }

    /// Deals out what a worker reads next: a resume cursor, unless the worker is in the middle of a stream (`continuing`); else a
    /// free split, unless it holds `most` splits.
    pub(crate) fn deal_next(
        &mut self,
        shares: SplitShares,
        slot: MemberSlot,
        (continuing, most): (bool, usize),
    ) -> SplitDeal {
        let holds = self.held.values().filter(|holder| **holder == slot).count();
        match (shares.next_cursor(&self.resume_cursors, slot), shares.next_split(&self.free, slot)) {
            (Some(cursor), _) if !continuing => SplitDeal::Cursor(self.take_cursor(cursor, slot)),
            (_, Some(_)) if holds >= most && !shares.fixed => SplitDeal::Full { splits: holds },
            (_, Some(next)) => {
                self.free.remove(next);
                self.held.insert(next.split, slot);
                SplitDeal::Split(next.split)
            }
            // The worker gets the resume cursor once its stream has ended.
            (Some(_), None) => SplitDeal::Nothing,
            (None, None) if shares.fixed => SplitDeal::Nothing,
            (None, None) => self.wait_for_others(slot),
        }
    }

    fn take_cursor(&mut self, index: usize, slot: MemberSlot) -> ResumeCursor {
        let cursor = self.resume_cursors.remove(index);
        let open = cursor.splits.iter().map(|split| split.id as u32).filter(|index| !self.done.contains(index));
        self.held.extend(open.map(|index| (index, slot)));
        cursor
    }

    fn wait_for_others(&self, slot: MemberSlot) -> SplitDeal {
        let mut others = self.held.values().filter(|holder| **holder != slot);
        match others.next() {
            Some(holder) => SplitDeal::Wait { splits: 1 + others.count(), holder: *holder },
            None => SplitDeal::Nothing,
        }
    }

    /// A suspended holder other than the asker, if the asker has nothing else to read.
    pub(crate) fn silent_holder(
        &self,
        shares: SplitShares,
        asker: MemberSlot,
        silent: &BTreeSet<MemberSlot>,
    ) -> Option<MemberSlot> {
        if shares.fixed || shares.next_split(&self.free, asker).is_some() {
            return None;
        }
        self.held.values().find(|holder| **holder != asker && silent.contains(holder)).copied()
    }

    pub(crate) fn complete_splits(&mut self, indices: &[u32]) {
        for index in indices {
            self.held.remove(index);
            self.done.insert(*index);
        }
    }

    /// The index of a split that `slot` may complete.
    pub(crate) fn completable_index(&self, epoch: u32, id: u64, slot: MemberSlot) -> Result<u32, Refusal> {
        let index = id as u32;
        if id != split_id(epoch, index) {
            return Err(refused_split(epoch, id, "does not exist"));
        }
        match self.held.get(&index) {
            _ if self.done.contains(&index) => Ok(index),
            Some(holder) if *holder == slot => Ok(index),
            Some(holder) => Err(refused_split(epoch, id, &format!("is held by {holder}, not by {slot}"))),
            None => Err(refused_split(epoch, id, &format!("is not held by {slot}"))),
        }
    }

    /// Frees the splits that a worker holds. Returns how many.
    pub(crate) fn release_splits(&mut self, slot: MemberSlot) -> usize {
        let held_count = self.held.len();
        let (free, order, number) = (&mut self.free, self.order, self.number);
        self.held.retain(|index, holder| {
            let stays = *holder != slot;
            if !stays {
                free.insert(order.position(number, *index));
            }
            stays
        });
        held_count - self.held.len()
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.free.is_empty() && self.held.is_empty() && self.resume_cursors.is_empty()
    }
}

/// Unique over all epochs, so that a late completion does not count in another epoch.
pub(super) fn split_id(epoch: u32, index: u32) -> u64 {
    u64::from(epoch) << 32 | u64::from(index)
}

pub(super) fn refused_split(epoch: u32, id: u64, why: &str) -> Refusal {
    Refusal::new(RefusalKind::Invalid, format!("split {id} of epoch {epoch} {why}"))
}

/// The plan of a position. Split `i` has index `i`, and its file is one of the run's.
pub(super) fn plan_of(position: &Position, files: usize) -> Result<Vec<SplitRange>, Refusal> {
    let splits = position.plan.len();
    if splits > MOST_SPLITS + files {
        let most = MOST_SPLITS + files;
        return Err(Refusal::invalid(format!(
            "the position has {splits} splits, but a run of {files} files has at most {most}"
        )));
    }
    let range = |(index, split): (u32, &Split)| {
        let Split { id, file, start, end } = *split;
        if id != split_id(position.epoch, index) || file as usize >= files || end < start {
            return Err(Refusal::invalid(format!(
                "split {index} of the position has a wrong id or range, or none of the {files} files"
            )));
        }
        Ok(SplitRange { file, start, end })
    };
    number_from(0, &position.plan).map(range).collect()
}

fn planned_index(position: &Position, id: u64) -> Result<u32, Refusal> {
    let index = id as u32;
    let is_planned = id == split_id(position.epoch, index) && (index as usize) < position.plan.len();
    if is_planned { Ok(index) } else { Err(Refusal::invalid(format!("split {id} is not in the position's plan"))) }
}
