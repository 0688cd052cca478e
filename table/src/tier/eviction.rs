//! Eviction: rows of the lowest rank leave a stripe when memory is short. They go to the cold tier or are dropped.
//!
//! A row goes to the cold tier in three stages:
//!
//! ```text
//! 1. stripe locked     choose the rows of lowest rank, copy them
//! 2. stripe unlocked   write the copies to the cold tier          requests go on and may change the rows
//! 3. stripe locked     remove each row that equals its copy       a changed row stays in memory, its copy is void
//!                      increase the cold version of the stripe
//! ```
//!
//! One thread at a time evicts from a stripe. It holds the stripe's *eviction lock* through all stages. Otherwise an
//! older copy could be written after a newer one (invariant TI-1).

use std::time::Duration;

use parking_lot::MutexGuard;

use crate::config::STRIPE_FLOOR;
use crate::stripe::Stripe;
use crate::tier::eviction_buffer::{EvictionBuffer, EvictionCandidate};
use crate::tier::page_in_rows::PageInEntry;
use crate::{ColdError, RequestDeadline, Table};

/// Eviction compares this many rows for each one that it evicts, to find those of the lowest rank, or all rows of a smaller stripe. The
/// rows are neighbours in the stripe's index, which are as good as random rows. Each search starts where the last one ended. If it took most of
/// the rows that it compares, the index would have holes in some places, and so too many keys in the others.
const COMPARED: usize = 16;
const LEAST_COMPARED: usize = 1024;
/// How many rows are evicted at a time, unless a request needs room for more.
const BATCH: usize = 256;
/// A stripe makes room for one part in this many of its rows at a time.
const SHARE: usize = 16;
/// How often a request makes room that other threads take. After that it uses memory beyond the budget.
const ROUNDS: usize = 8;
/// The longest wait for the instant of a snapshot. After that a request uses memory beyond the budget.
const SHORT_WAIT: Duration = Duration::from_millis(10);
/// The longest wait for another thread that evicts from the same stripe, or for a snapshot while memory is exhausted.
const WAIT: Duration = Duration::from_secs(1);
/// One wait takes one part in this many of the request's timeout, so all rounds together take half of it.
const WAIT_SHARE: u32 = 2 * ROUNDS as u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoomFor {
    /// A request, which needs it now: any row may leave.
    Request,
    /// A hint: rows that a batch is known to need stay, so that hints of more rows than fit do not displace each other's.
    Hint,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EvictionOutcome {
    Evicted(u64),
    /// Another thread evicted from the stripe and has ended.
    OtherThread,
    /// The cold tier is being frozen for a snapshot: nothing may be written to it.
    Frozen,
}

impl Table {
    /// Makes room in a stripe for those of the entries that are not in memory. It may release the lock and take it again. If
    /// rows cannot be evicted, memory grows beyond the budget. It waits until `deadline` at most.
    pub(crate) fn make_room(
        &self,
        stripe: &mut MutexGuard<'_, Stripe>,
        entries: &[PageInEntry],
        room: RoomFor,
        deadline: RequestDeadline,
    ) {
        // As a rule maintenance has made room. Then this function need not know how many of the rows are missing.
        if stripe.growth_bytes(entries.len()) == 0 {
            return;
        }
        for _ in 0..ROUNDS {
            let missing = entries.iter().filter(|entry| stripe.find(entry.key).is_none()).count();
            if self.reserve(stripe, missing) {
                return;
            }
            let count = missing.max((stripe.row_count() / SHARE).min(BATCH));
            match self.evict_rows(stripe, entries, count, room, deadline) {
                Ok(EvictionOutcome::Evicted(0)) if room == RoomFor::Hint => return,
                Ok(EvictionOutcome::Evicted(_) | EvictionOutcome::OtherThread) => {}
                Ok(EvictionOutcome::Frozen) if self.wait_for_thaw(stripe, deadline) => {}
                Ok(EvictionOutcome::Frozen) | Err(_) => return,
            }
        }
    }

    /// Waits until rows may go to the cold tier again. Returns whether they may. The wait is short unless memory is
    /// exhausted.
    fn wait_for_thaw(&self, stripe: &mut MutexGuard<'_, Stripe>, deadline: RequestDeadline) -> bool {
        let wait = self.eviction_wait(deadline);
        let wait = if self.shared.budget.is_exhausted() { wait } else { wait.min(SHORT_WAIT) };
        MutexGuard::unlocked(stripe, || self.shared.cold_writes.try_read_for(wait).is_some())
    }

    /// The longest wait of one round: a part of the timeout, and never longer than the sender of a request waits.
    fn eviction_wait(&self, deadline: RequestDeadline) -> Duration {
        let shared = &self.shared;
        shared.wait_until(deadline, shared.capacity.longest_wait(WAIT, WAIT_SHARE))
    }

    /// Whether `rows` more rows fit. Reserves memory from the budget if they need it.
    fn reserve(&self, stripe: &mut Stripe, rows: usize) -> bool {
        let (growth, budget) = (stripe.growth_bytes(rows), &self.shared.budget);
        if growth == 0 {
            return true;
        }
        if stripe.row_count() + rows <= STRIPE_FLOOR {
            budget.force_reserve(growth);
        } else if !budget.reserve(growth, self.shared.arena.idle_bytes()) {
            return false;
        }
        stripe.charged += growth;
        true
    }

    /// Corrects the reserved bytes to the memory that a stripe really uses.
    pub(crate) fn charge(&self, stripe: &mut Stripe) {
        let (bytes, budget) = (stripe.memory_bytes(), &self.shared.budget);
        if bytes > stripe.charged {
            budget.force_reserve(bytes - stripe.charged);
        } else {
            budget.release(stripe.charged - bytes);
        }
        stripe.charged = bytes;
    }

    /// Evicts the `count` rows of the lowest rank, except rows of the entries, which are of this stripe. Waits for another thread that evicts from the stripe, but not longer than one round until `deadline`.
    pub(crate) fn evict_rows(
        &self,
        stripe: &mut MutexGuard<'_, Stripe>,
        entries: &[PageInEntry],
        count: usize,
        room: RoomFor,
        deadline: RequestDeadline,
    ) -> Result<EvictionOutcome, ColdError> {
        let tick = self.current_tick();
        self.with_eviction_buffer(|buffer| {
            buffer.needed.clear();
            buffer.needed.extend(entries.iter().map(|entry| entry.key));
            buffer.needed.sort_unstable();
            let choose =
                |stripe: &mut Stripe, buffer: &mut EvictionBuffer| buffer.choose(self, stripe, (count, room), tick);
            self.evict_chosen(stripe, buffer, deadline, choose)
        })
    }

    /// Evicts the candidates that `choose` puts into the buffer. Rows past their time to live are removed for good.
    pub(crate) fn evict_chosen(
        &self,
        stripe: &mut MutexGuard<'_, Stripe>,
        buffer: &mut EvictionBuffer,
        deadline: RequestDeadline,
        choose: impl FnOnce(&mut Stripe, &mut EvictionBuffer),
    ) -> Result<EvictionOutcome, ColdError> {
        if !self.is_tiered {
            choose(stripe, buffer);
            let dropped = drop_candidates(stripe, buffer);
            self.log_removed(stripe, buffer.candidates.iter().map(EvictionCandidate::key));
            return Ok(EvictionOutcome::Evicted(dropped));
        }
        let eviction_lock = self.eviction_lock(stripe.number);
        let Some(_only) = eviction_lock.try_lock() else {
            MutexGuard::unlocked(stripe, || drop(eviction_lock.try_lock_for(self.eviction_wait(deadline))));
            return Ok(EvictionOutcome::OtherThread);
        };
        let Some(_writing) = self.shared.cold_writes.try_read() else { return Ok(EvictionOutcome::Frozen) };
        choose(stripe, buffer);
        let old = buffer.candidates.iter().filter(|row| row.rank == 0).map(EvictionCandidate::key);
        self.log_removed(stripe, old);
        let expired = remove_expired(stripe, buffer);
        buffer.copy(stripe);
        MutexGuard::unlocked(stripe, || self.write_cold(buffer))?;
        let removed = buffer.remove_unchanged(stripe);
        let rows = stripe.row_count();
        stripe.cold_versions.note_eviction(&buffer.cold_keys, rows);
        Ok(EvictionOutcome::Evicted(expired + removed))
    }

    fn log_removed(&self, stripe: &mut Stripe, keys: impl Iterator<Item = u64>) {
        if self.is_logged() {
            keys.for_each(|key| stripe.changes.note_removed(key));
            self.log_stripe(stripe);
        }
    }

    fn write_cold(&self, buffer: &EvictionBuffer) -> Result<(), ColdError> {
        let Some(store) = self.cold_store().filter(|_| !buffer.cold_keys.is_empty()) else { return Ok(()) };
        // Else the cold tier could have a row whose change the log has lost.
        let flushed = self.shared.log.get().map_or(Ok(()), |log| log.flush());
        let written = flushed.and_then(|()| store.write(self.number, &buffer.cold_keys, &buffer.words));
        self.shared.note_cold_write(written.as_ref().err());
        self.shared.budget.set_beside(store.memory());
        written
    }
}

impl EvictionBuffer {
    /// Ranks rows of a stripe and keeps the `count` lowest.
    fn choose(&mut self, table: &Table, stripe: &mut Stripe, (count, room): (usize, RoomFor), tick: u64) {
        self.scanned.clear();
        let compared = (count * COMPARED).max(LEAST_COMPARED);
        if stripe.row_count() <= compared {
            stripe.scan(0, usize::MAX, &mut self.scanned);
        } else {
            let next = stripe.scan(stripe.eviction_cursor, compared, &mut self.scanned);
            stripe.eviction_cursor = next.unwrap_or(0);
        }
        self.candidates.clear();
        let (needed, hints) = (&self.needed, &table.shared.hints);
        let mark = |slot: u32| stripe.hinted.get(slot);
        let others = || self.scanned.iter().filter(|(key, _)| needed.binary_search(key).is_err());
        for (key, slot) in others().filter(|(_, slot)| !hints.is_kept(mark(*slot))) {
            let rank = table.access_codec.rank(stripe.access(*slot), tick);
            self.candidates.push(EvictionCandidate::new(rank, *key, *slot));
        }
        // Rows that a batch is known to need leave when there are not enough others, those that are needed last first.
        let mut sure = 0;
        if self.candidates.len() < count && room == RoomFor::Request {
            sure = self.candidates.len();
            for (key, slot) in others().filter(|(_, slot)| hints.is_kept(mark(*slot))) {
                self.candidates.push(EvictionCandidate::new(hints.age(mark(*slot)) + 1, *key, *slot));
            }
        }
        if count - sure < self.candidates.len() - sure {
            self.candidates[sure..].select_nth_unstable(count - sure);
            self.candidates.truncate(count);
        }
    }
}

/// Removes all candidates for good and returns their number. Rows past their time to live have rank 0.
fn drop_candidates(stripe: &mut Stripe, buffer: &EvictionBuffer) -> u64 {
    for row in &buffer.candidates {
        stripe.remove(row.key());
        let counted = if row.rank == 0 { &mut stripe.counts.expired } else { &mut stripe.counts.dropped };
        *counted += 1;
    }
    buffer.candidates.len() as u64
}

/// Removes the candidates that are past their time to live. The cold version stays: a cold copy of such a row is past
/// its time to live as well.
fn remove_expired(stripe: &mut Stripe, buffer: &mut EvictionBuffer) -> u64 {
    let old_len = buffer.candidates.len();
    buffer.candidates.retain(|row| {
        if row.rank == 0 {
            stripe.remove(row.key());
        }
        row.rank > 0
    });
    let expired = (old_len - buffer.candidates.len()) as u64;
    stripe.counts.expired += expired;
    expired
}
