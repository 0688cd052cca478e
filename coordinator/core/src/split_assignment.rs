//! Which worker reads which split of which epoch: the ledger from which splits are dealt to the workers that ask.
//!
//! A split goes free → held → done. It goes back to free when its holder is gone. A resumed run also has resume cursors.
//! The splits of a resume cursor are reserved for the worker that takes the cursor, which then holds them.

mod epoch;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use zagros_protocol::Refusal;
use zagros_protocol::control::{AssignRequest, AssignResponse, EpochDone, Position, Wait, assign_response::Work};
use zagros_zip::number_from;

use crate::MemberSlot;
use crate::split_plan::SplitRange;
pub(crate) use epoch::SplitShares;
use epoch::{EpochLedger, OpenEpoch, SplitDeal, plan_of, refused_split, split_id};

/// How long a worker waits before it asks again.
const RETRY_MS: u32 = 200;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct SplitLedger {
    pub(crate) plan: Vec<SplitRange>,
    epochs: Vec<EpochLedger>,
    shares: SplitShares,
    /// Holders whose lease has expired. Their splits stay theirs until another worker has nothing else to read.
    suspended: BTreeSet<MemberSlot>,
    /// The newest numbered question of each worker.
    answered: BTreeMap<MemberSlot, AnsweredQuestion>,
}

/// A question whose answer may be lost. Asked again, it gets the same answer: another split would be dealt to no reader
/// (invariant SP-4).
#[derive(Debug, Serialize, Deserialize)]
struct AnsweredQuestion {
    incarnation: u32,
    question: u64,
    answer: AssignResponse,
}

impl AnsweredQuestion {
    /// The answer to a repetition; `None` for a question that is new.
    /// Refuses a repetition that arrives after the next question: its sender does not wait any more.
    fn answer_again(&self, request: &AssignRequest) -> Result<Option<AssignResponse>, Refusal> {
        if request.incarnation != self.incarnation {
            return Ok(None);
        }
        match request.question.cmp(&self.question) {
            Ordering::Greater => Ok(None),
            Ordering::Equal => Ok(Some(self.answer.clone())),
            Ordering::Less => {
                let (late, newest) = (request.question, self.question);
                Err(Refusal::invalid(format!("question {late} comes after question {newest}, which was asked later")))
            }
        }
    }
}

impl SplitLedger {
    pub(crate) fn new(plan: Vec<SplitRange>, epochs: u32, shares: SplitShares) -> Self {
        let epochs = (0..epochs).map(|_| EpochLedger::Untouched).collect();
        Self { epochs, plan, shares, suspended: BTreeSet::new(), answered: BTreeMap::new() }
    }

    /// The plan is that of the earlier run, for all epochs. It must fit a run over `files` files.
    pub(crate) fn from_position(
        position: &Position,
        epochs: u32,
        shares: SplitShares,
        files: usize,
    ) -> Result<Self, Refusal> {
        let plan = plan_of(position, files)?;
        let mut ledger = Self::new(plan, epochs, shares);
        ledger.check_epoch(position.epoch)?;
        ledger.epochs[..position.epoch as usize].fill_with(|| EpochLedger::Complete);
        if let Some(epoch) = ledger.open(position.epoch) {
            epoch.go_on(position)?;
        }
        Ok(ledger)
    }

    /// What a worker reads next. The first of these that exists:
    /// 1. a resume cursor, unless the worker is in the middle of a stream;
    /// 2. [`Wait`] while the worker holds as many splits as each of the `present` workers would have of all, and shares are not
    ///    fixed: a worker whose shuffle window takes in the whole file would leave nothing for one that starts a moment later;
    /// 3. the first free split of the worker's share;
    /// 4. the first free split, unless shares are fixed;
    /// 5. [`Wait`] while other workers hold splits, which come back when a holder is lost;
    /// 6. [`EpochDone`]: each split that is not done is held by this worker, or belongs to the fixed share of another.
    ///
    /// A repeated question gets the answer that it got before.
    pub(crate) fn assign_split(
        &mut self,
        request: &AssignRequest,
        slot: MemberSlot,
        present: usize,
    ) -> Result<AssignResponse, Refusal> {
        let AssignRequest { incarnation, epoch, continuing, question, .. } = *request;
        self.check_epoch(epoch)?;
        let is_numbered = question > 0;
        let newest = self.answered.get(&slot).filter(|_| is_numbered);
        if let Some(answer) = newest.map(|newest| newest.answer_again(request)).transpose()?.flatten() {
            return Ok(answer);
        }
        self.free_splits_of_suspended_holders(epoch, slot);
        let (shares, most) = (self.shares, self.plan.len().div_ceil(present.max(1)));
        let deal = self.open(epoch).map_or(SplitDeal::Nothing, |open| open.deal_next(shares, slot, (continuing, most)));
        let work = match deal {
            SplitDeal::Cursor(cursor) => Work::ResumeCursor(cursor),
            SplitDeal::Split(index) => Work::Split(self.plan[index as usize].on_wire(split_id(epoch, index))),
            SplitDeal::Wait { splits, holder } => {
                let reason = format!("{splits} splits of epoch {epoch} are held by others, one by {holder}");
                Work::Wait(Wait { retry_ms: RETRY_MS, reason })
            }
            SplitDeal::Full { splits } => {
                let reason =
                    format!("{slot} holds its part of epoch {epoch}, {splits} splits, and has not trained on them yet");
                Work::Wait(Wait { retry_ms: RETRY_MS, reason })
            }
            SplitDeal::Nothing => Work::EpochDone(EpochDone { leave: false }),
        };
        let answer = AssignResponse { work: Some(work) };
        if is_numbered {
            self.answered.insert(slot, AnsweredQuestion { incarnation, question, answer: answer.clone() });
        }
        Ok(answer)
    }

    /// All of them or none. A repeated call changes nothing. Returns whether the epoch became complete.
    pub(crate) fn complete_splits(&mut self, epoch: u32, ids: &[u64], slot: MemberSlot) -> Result<bool, Refusal> {
        self.check_epoch(epoch)?;
        let splits = self.plan.len() as u32;
        let Some(open) = self.open(epoch) else {
            // Every split was completed before, unless the id is wrong.
            let unknown = ids.iter().find(|id| **id != split_id(epoch, **id as u32) || **id as u32 >= splits);
            return unknown.map_or(Ok(false), |id| Err(refused_split(epoch, *id, "does not exist")));
        };
        let indices = ids.iter().map(|id| open.completable_index(epoch, *id, slot)).collect::<Result<Vec<_>, _>>()?;
        open.complete_splits(&indices);
        let is_complete = open.is_complete();
        if is_complete {
            self.epochs[epoch as usize] = EpochLedger::Complete;
        }
        Ok(is_complete)
    }

    pub(crate) fn is_done(&self, epoch: u32, id: u64) -> bool {
        let index = id as u32;
        let is_planned = id == split_id(epoch, index) && (index as usize) < self.plan.len();
        is_planned && self.epochs.get(epoch as usize).is_some_and(|epoch| epoch.is_done(index))
    }

    /// Returns how many splits the holder has.
    pub(crate) fn suspend_holder(&mut self, slot: MemberSlot) -> usize {
        self.suspended.insert(slot);
        self.held_by(slot)
    }

    /// Returns whether the holder still holds its splits.
    pub(crate) fn reclaim_splits(&mut self, slot: MemberSlot) -> bool {
        self.suspended.remove(&slot)
    }

    /// Frees the splits of suspended holders for a worker that has nothing else to read (invariant SP-2), unless shares are
    /// fixed.
    fn free_splits_of_suspended_holders(&mut self, epoch: u32, asker: MemberSlot) {
        let Some(open) = self.epochs[epoch as usize].under_way() else { return };
        if let Some(holder) = open.silent_holder(self.shares, asker, &self.suspended) {
            self.release_splits(holder);
        }
    }

    /// Frees the splits of a member, so that others read them (invariant SP-2). Returns how many.
    pub(crate) fn release_splits(&mut self, slot: MemberSlot) -> usize {
        self.suspended.remove(&slot);
        self.answered.remove(&slot);
        self.epochs.iter_mut().filter_map(EpochLedger::under_way).map(|epoch| epoch.release_splits(slot)).sum()
    }

    pub(crate) fn held_by(&self, slot: MemberSlot) -> usize {
        self.epochs.iter().map(|epoch| epoch.held_by(slot).count()).sum()
    }

    /// Ids of the splits of an epoch that a member holds.
    pub(crate) fn held_in(&self, epoch: u32, slot: MemberSlot) -> Vec<u64> {
        let held = self.epochs.get(epoch as usize).into_iter().flat_map(|ledger| ledger.held_by(slot));
        held.map(|index| split_id(epoch, index)).collect()
    }

    /// The first epoch that is not complete (the last one when all are), and how many of its splits are complete.
    pub(crate) fn current_epoch(&self) -> (u32, u32) {
        let splits = self.plan.len();
        let open = self.epochs.iter().position(|epoch| !epoch.is_complete(splits));
        let index = open.unwrap_or(self.epochs.len().saturating_sub(1));
        (index as u32, self.epochs.get(index).map_or(0, |epoch| epoch.done_splits(splits).count() as u32))
    }

    /// How much of an epoch has been read, without the workers' resume cursors and the bad rows.
    pub(crate) fn epoch_position(&self, epoch: u32) -> Result<Position, Refusal> {
        self.check_epoch(epoch)?;
        let plan = number_from(0, &self.plan).map(|(index, range)| range.on_wire(split_id(epoch, index)));
        let done = self.epochs[epoch as usize].done_splits(self.plan.len()).map(|index| split_id(epoch, index));
        Ok(Position { epoch, plan: plan.collect(), done: done.collect(), ..Position::default() })
    }

    pub(crate) fn is_untouched(&self) -> bool {
        self.epochs.iter().all(EpochLedger::is_untouched)
    }

    /// An epoch that the job has, opened; `None` once it is complete.
    fn open(&mut self, epoch: u32) -> Option<&mut OpenEpoch> {
        self.epochs[epoch as usize].open(epoch, self.plan.len(), self.shares)
    }

    fn check_epoch(&self, epoch: u32) -> Result<(), Refusal> {
        if epoch as usize >= self.epochs.len() {
            return Err(Refusal::invalid(format!("epoch {epoch}: the job has {} (counted from 0)", self.epochs.len())));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
