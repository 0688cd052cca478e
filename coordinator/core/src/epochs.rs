//! Who reads which split of which epoch: free → held → done, and back to free when its holder is gone.
//!
//! A run that goes on from where another was left has resume_cursors of streams besides: a rest's splits are kept for whoever
//! takes it, and are held from then on.

use std::collections::{BTreeMap, BTreeSet};

use zagros_protocol::control::{
    AssignRequest, AssignResponse, EpochDone, Position, ResumeCursor, Split, Wait, assign_response,
};
use zagros_protocol::{Refusal, RefusalKind};

use crate::MemberSlot;
use crate::splits::{MOST_SPLITS, SplitOrder, SplitRange, Turn};

/// How long a worker waits before it asks again.
const RETRY_MS: u32 = 200;

/// The books over all epochs of the run.
#[derive(Debug)]
pub(crate) struct Epochs {
    plan: Vec<SplitRange>,
    epochs: Vec<Books>,
    shares: Shares,
    /// Holders whose lease has run out. Their splits stay theirs until another worker has nothing else to read.
    silent: BTreeSet<MemberSlot>,
}

/// The books of an epoch, which take memory while it is under way alone.
#[derive(Debug)]
enum Books {
    /// Every split is free.
    Untouched,
    Open(Epoch),
    /// Every split is done.
    Complete,
}

/// Which splits are whose: split i is worker i mod workers' to read first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    pub(crate) workers: u32,
    /// Nobody else ever reads it: who reads what is a function of (split, worker) alone.
    pub(crate) fixed: bool,
    /// Which of the free ones comes first.
    pub(crate) order: SplitOrder,
}

/// One epoch over the plan: every split is in exactly one of free, held, done and a rest that nobody has taken, and has
/// at most one holder (invariant SP-1).
#[derive(Debug)]
struct Epoch {
    /// Its number, and the order of its splits: what a split's turn depends on.
    number: u32,
    order: SplitOrder,
    free: BTreeSet<Turn>,
    held: BTreeMap<u32, MemberSlot>,
    done: BTreeSet<u32>,
    /// Nobody's yet. Their splits may be done, too: read once more for the order of the others' rows.
    resume_cursors: Vec<ResumeCursor>,
}

impl Epochs {
    pub(crate) fn new(plan: Vec<SplitRange>, epochs: u32, shares: Shares) -> Self {
        let epochs = (0..epochs).map(|_| Books::Untouched).collect();
        Self { epochs, plan, shares, silent: BTreeSet::new() }
    }

    /// From where another run was left. The plan is that run's, for all epochs.
    ///
    /// # Errors
    /// `Invalid` when the position is none of a run over `files` files.
    pub(crate) fn resume(position: &Position, epochs: u32, shares: Shares, files: usize) -> Result<Self, Refusal> {
        let plan = plan_of(position, files)?;
        let mut books = Self::new(plan, epochs, shares);
        books.check_epoch(position.epoch)?;
        books.epochs[..position.epoch as usize].fill_with(|| Books::Complete);
        if let Some(now) = books.open(position.epoch) {
            now.go_on(position)?;
        }
        Ok(books)
    }

    /// The rest of an earlier stream, unless the asker is in the middle of a stream; else the first free split of
    /// the asker's share of an epoch, else, unless shares are fixed, the first free one; else [`Wait`] while others hold
    /// some (what they hold may come back when they are lost); else [`EpochDone`]: what is not complete is held by the
    /// asker itself, or never its to read.
    pub(crate) fn assign(&mut self, request: &AssignRequest, slot: MemberSlot) -> Result<AssignResponse, Refusal> {
        let AssignRequest { epoch, continuing, .. } = *request;
        self.check_epoch(epoch)?;
        self.free_splits_of_silent_holders(epoch, slot);
        let shares = self.shares;
        let (plan, books) = (&self.plan, self.epochs[epoch as usize].opened(epoch, self.plan.len(), self.shares.order));
        let Some(books) = books else {
            return Ok(AssignResponse { work: Some(assign_response::Work::EpochDone(EpochDone {})) });
        };
        let rest = shares.rest(&books.resume_cursors, slot);
        let work = match (rest, shares.next(&books.free, slot)) {
            (Some(rest), _) if !continuing => assign_response::Work::ResumeCursor(books.take_rest(rest, slot)),
            (_, Some(turn)) => {
                books.free.remove(&turn);
                books.held.insert(turn.split, slot);
                assign_response::Work::Split(plan[turn.split as usize].on_wire(split_id(epoch, turn.split)))
            }
            // It comes back for the rest once its stream has ended.
            (Some(_), None) => assign_response::Work::EpochDone(EpochDone {}),
            (None, None) if shares.fixed => assign_response::Work::EpochDone(EpochDone {}),
            (None, None) => match books.held.values().find(|holder| **holder != slot) {
                Some(holder) => {
                    let others = books.held.values().filter(|holder| **holder != slot).count();
                    let reason = format!("{others} splits of epoch {epoch} are held by others, one by {holder}");
                    assign_response::Work::Wait(Wait { retry_ms: RETRY_MS, reason })
                }
                None => assign_response::Work::EpochDone(EpochDone {}),
            },
        };
        Ok(AssignResponse { work: Some(work) })
    }

    /// Books splits as complete; all of them or none. One that is complete already stays so: the call was repeated.
    /// Answers whether the epoch became complete.
    pub(crate) fn complete(&mut self, epoch: u32, ids: &[u64], slot: MemberSlot) -> Result<bool, Refusal> {
        self.check_epoch(epoch)?;
        let splits = self.plan.len() as u32;
        let Some(books) = self.open(epoch) else {
            // Every split that there is was completed before.
            let unknown = ids.iter().find(|id| **id != split_id(epoch, **id as u32) || **id as u32 >= splits);
            return unknown.map_or(Ok(false), |id| Err(refused_split(epoch, *id, "does not exist")));
        };
        let indices = ids.iter().map(|id| books.completable(epoch, *id, slot)).collect::<Result<Vec<_>, _>>()?;
        for index in indices {
            books.held.remove(&index);
            books.done.insert(index);
        }
        let is_complete = books.is_complete();
        if is_complete {
            self.epochs[epoch as usize] = Books::Complete;
        }
        Ok(is_complete)
    }

    /// Whether a split of an epoch is complete.
    pub(crate) fn is_done(&self, epoch: u32, id: u64) -> bool {
        let index = id as u32;
        let is_planned = id == split_id(epoch, index) && (index as usize) < self.plan.len();
        match self.epochs.get(epoch as usize).filter(|_| is_planned) {
            Some(Books::Complete) => true,
            Some(Books::Open(epoch)) => epoch.done.contains(&index),
            Some(Books::Untouched) | None => false,
        }
    }

    /// The lease of a holder has run out; answers how many splits it holds.
    pub(crate) fn mark_silent(&mut self, slot: MemberSlot) -> usize {
        self.silent.insert(slot);
        self.held_by(slot)
    }

    /// A silent holder is heard again; answers whether its splits are still its own.
    pub(crate) fn reclaim(&mut self, slot: MemberSlot) -> bool {
        self.silent.remove(&slot)
    }

    /// Where nothing else is left for the asker, splits of silent holders are (invariant SP-2), unless shares are fixed.
    fn free_splits_of_silent_holders(&mut self, epoch: u32, asker: MemberSlot) {
        let Some(books) = self.epochs[epoch as usize].under_way() else { return };
        if self.shares.fixed || self.shares.next(&books.free, asker).is_some() {
            return;
        }
        let silent = books.held.values().find(|holder| **holder != asker && self.silent.contains(holder));
        if let Some(holder) = silent.copied() {
            self.release(holder);
        }
    }

    /// Frees what a member holds, for others to read (invariant SP-2); answers how many splits that were.
    pub(crate) fn release(&mut self, slot: MemberSlot) -> usize {
        self.silent.remove(&slot);
        self.epochs.iter_mut().filter_map(Books::under_way).map(|epoch| epoch.release(slot)).sum()
    }

    pub(crate) fn held_by(&self, slot: MemberSlot) -> usize {
        self.epochs.iter().map(|books| books.held_by(slot)).sum()
    }

    /// Ids of the splits of an epoch that a worker is to read.
    pub(crate) fn held_in(&self, epoch: u32, slot: MemberSlot) -> Vec<u64> {
        let held = match self.epochs.get(epoch as usize) {
            Some(Books::Open(epoch)) => Some(&epoch.held),
            Some(Books::Untouched | Books::Complete) | None => None,
        };
        held.into_iter()
            .flatten()
            .filter(|(_, holder)| **holder == slot)
            .map(|(index, _)| split_id(epoch, *index))
            .collect()
    }

    /// Splits per epoch.
    pub(crate) fn splits(&self) -> u32 {
        self.plan.len() as u32
    }

    /// The first epoch that is not complete (the last one when all are), and its complete splits.
    pub(crate) fn current(&self) -> (u32, u32) {
        let splits = self.plan.len();
        let open = self.epochs.iter().position(|books| !books.is_complete(splits));
        let index = open.unwrap_or(self.epochs.len().saturating_sub(1));
        (index as u32, self.epochs.get(index).map_or(0, |books| books.done(splits).count() as u32))
    }

    /// Where an epoch is, but for what is left of the streams.
    pub(crate) fn position(&self, epoch: u32) -> Result<Position, Refusal> {
        self.check_epoch(epoch)?;
        let plan = (0..).zip(&self.plan).map(|(index, range)| range.on_wire(split_id(epoch, index)));
        let done = self.epochs[epoch as usize].done(self.plan.len()).map(|index| split_id(epoch, index));
        Ok(Position { epoch, plan: plan.collect(), done: done.collect(), resume_cursors: Vec::new(), bad_rows: 0 })
    }

    /// Whether nobody was given anything to read yet.
    pub(crate) fn is_untouched(&self) -> bool {
        self.epochs.iter().all(Books::is_untouched)
    }

    /// The books of an epoch that is there; `None` once it is complete.
    fn open(&mut self, epoch: u32) -> Option<&mut Epoch> {
        self.epochs[epoch as usize].opened(epoch, self.plan.len(), self.shares.order)
    }

    fn check_epoch(&self, epoch: u32) -> Result<(), Refusal> {
        if epoch as usize >= self.epochs.len() {
            return Err(Refusal::invalid(format!("epoch {epoch}: the job has {} (counted from 0)", self.epochs.len())));
        }
        Ok(())
    }
}

impl Shares {
    fn next(self, free: &BTreeSet<Turn>, slot: MemberSlot) -> Option<Turn> {
        let own = free.iter().find(|turn| turn.split % self.workers.max(1) == slot.index);
        let any = if self.fixed { None } else { free.first() };
        own.or(any).copied()
    }

    /// The asker's own rest, else, unless shares are fixed, any.
    fn rest(self, resume_cursors: &[ResumeCursor], slot: MemberSlot) -> Option<usize> {
        let own = resume_cursors.iter().position(|rest| rest.reader % self.workers.max(1) == slot.index);
        own.or((!self.fixed && !resume_cursors.is_empty()).then_some(0))
    }
}

impl Books {
    fn opened(&mut self, number: u32, splits: usize, order: SplitOrder) -> Option<&mut Epoch> {
        if matches!(self, Self::Untouched) {
            *self = Self::Open(Epoch::fresh(number, splits as u32, order));
        }
        self.under_way()
    }

    /// Of an epoch that somebody has asked for and that is not complete.
    fn under_way(&mut self) -> Option<&mut Epoch> {
        match self {
            Self::Open(epoch) => Some(epoch),
            Self::Untouched | Self::Complete => None,
        }
    }

    fn held_by(&self, slot: MemberSlot) -> usize {
        match self {
            Self::Open(epoch) => epoch.held.values().filter(|holder| **holder == slot).count(),
            Self::Untouched | Self::Complete => 0,
        }
    }

    fn done(&self, splits: usize) -> impl Iterator<Item = u32> {
        let (some, all) = match self {
            Self::Open(epoch) => (Some(&epoch.done), 0),
            Self::Untouched => (None, 0),
            Self::Complete => (None, splits as u32),
        };
        some.into_iter().flatten().copied().chain(0..all)
    }

    fn is_complete(&self, splits: usize) -> bool {
        match self {
            Self::Open(epoch) => epoch.is_complete(),
            Self::Untouched => splits == 0,
            Self::Complete => true,
        }
    }

    fn is_untouched(&self) -> bool {
        match self {
            Self::Open(epoch) => epoch.held.is_empty() && epoch.done.is_empty() && epoch.resume_cursors.is_empty(),
            Self::Untouched => true,
            Self::Complete => false,
        }
    }
}

impl Epoch {
    fn fresh(number: u32, splits: u32, order: SplitOrder) -> Self {
        let (held, done, resume_cursors) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        Self {
            free: (0..splits).map(|split| order.turn(number, split)).collect(),
            number,
            order,
            held,
            done,
            resume_cursors,
        }
    }

    fn turn(&self, split: u32) -> Turn {
        self.order.turn(self.number, split)
    }

    /// Takes over what another run has read.
    fn go_on(&mut self, position: &Position) -> Result<(), Refusal> {
        for id in &position.done {
            let index = planned(position, *id)?;
            self.free.remove(&self.turn(index));
            self.done.insert(index);
        }
        for rest in &position.resume_cursors {
            let mut is_needed = false;
            for split in &rest.splits {
                let index = planned(position, split.id)?;
                let is_done = self.done.contains(&index);
                if !self.free.remove(&self.turn(index)) && !is_done {
                    return Err(Refusal::invalid(format!("the position has split {} in two resume cursors", split.id)));
                }
                is_needed |= !is_done;
            }
            if is_needed {
                self.resume_cursors.push(rest.clone());
            }
        }
        Ok(())
    }

    fn take_rest(&mut self, place: usize, slot: MemberSlot) -> ResumeCursor {
        let rest = self.resume_cursors.remove(place);
        let open = rest.splits.iter().map(|split| split.id as u32).filter(|index| !self.done.contains(index));
        self.held.extend(open.map(|index| (index, slot)));
        rest
    }

    /// The index of a split that `slot` may complete.
    fn completable(&self, epoch: u32, id: u64, slot: MemberSlot) -> Result<u32, Refusal> {
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

    fn release(&mut self, slot: MemberSlot) -> usize {
        let before = self.held.len();
        let (free, order, number) = (&mut self.free, self.order, self.number);
        self.held.retain(|index, holder| {
            let stays = *holder != slot;
            if !stays {
                free.insert(order.turn(number, *index));
            }
            stays
        });
        before - self.held.len()
    }

    fn is_complete(&self) -> bool {
        self.free.is_empty() && self.held.is_empty() && self.resume_cursors.is_empty()
    }
}

fn refused_split(epoch: u32, id: u64, why: &str) -> Refusal {
    Refusal::new(RefusalKind::Invalid, format!("split {id} of epoch {epoch} {why}"))
}

/// The plan that a position has, which must be one of splits that follow each other.
fn plan_of(position: &Position, files: usize) -> Result<Vec<SplitRange>, Refusal> {
    let splits = position.plan.len();
    if splits > MOST_SPLITS + files {
        let most = MOST_SPLITS + files;
        return Err(Refusal::invalid(format!(
            "the position has {splits} splits, and a run of {files} files at most {most}"
        )));
    }
    let range = |(index, split): (u32, &Split)| {
        let Split { id, file, start, end } = *split;
        if id != split_id(position.epoch, index) || file as usize >= files || end < start {
            return Err(Refusal::invalid(format!("the position has no split {index} of one of {files} files")));
        }
        Ok(SplitRange { file, start, end })
    };
    (0..).zip(&position.plan).map(range).collect()
}

/// The index of a split of the position's plan.
fn planned(position: &Position, id: u64) -> Result<u32, Refusal> {
    let index = id as u32;
    let is_planned = id == split_id(position.epoch, index) && (index as usize) < position.plan.len();
    if is_planned { Ok(index) } else { Err(Refusal::invalid(format!("the position's plan has no split {id}"))) }
}

/// Unique over all epochs, so that a late completion cannot be taken for one of another epoch.
fn split_id(epoch: u32, index: u32) -> u64 {
    u64::from(epoch) << 32 | u64::from(index)
}

#[cfg(test)]
mod tests;
