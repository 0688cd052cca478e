//! Making room: rows of the lowest rank leave a stripe, for the cold tier or for good.
//!
//! Rows that go to the cold tier are copied under the stripe's lock, written without it, and taken out under it again,
//! unless they were used meanwhile. One thread at a time does so for a stripe (its door), so that a copy written later
//! is never an older one (invariant TI-1).

use std::time::Duration;

use parking_lot::MutexGuard;

use crate::machine::prefetch::prefetch;
use crate::stripe::Stripe;
use crate::tier::visit::{Todo, place_of};
use crate::{ColdError, Table};

/// Rows that every stripe may hold, whatever the budget says.
pub(crate) const FLOOR: usize = crate::tier::visit::AT_ONCE;
/// Rows compared to find those of the lowest rank. All of a stripe's where it has no more; else as many neighbours in
/// its index, which is as good as random, from where the search before ended.
const COMPARED: usize = 4096;
/// Most rows that leave at a time, unless a request needs room for more.
const BATCH: usize = 256;
/// A stripe makes room for one row in this many at a time.
const SHARE: usize = 16;
/// Times that a request makes room in vain, because others take it, before it takes memory beyond the budget.
const ROUNDS: usize = 8;
/// Longest wait for a snapshot to be taken, before memory beyond the budget is used.
const SHORT_WAIT: Duration = Duration::from_millis(10);
/// Longest wait for another thread that makes room in the same stripe, or where such memory is used up; and the part of
/// a request's timeout that it may take: all rounds together take no more than half of it.
const WAIT: Duration = Duration::from_secs(1);
const WAIT_SHARE: u32 = 2 * ROUNDS as u32;

/// Rows on their way out, and room to work on them; reused.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    pub(crate) scanned: Vec<(u64, u32)>,
    /// Keys of rows that are needed now, ascending.
    needed: Vec<u64>,
    pub(crate) ranked: Vec<Ranked>,
    places: Vec<u64>,
    /// `[rows * (stride + 1)]`, with marks.
    words: Vec<u32>,
}

/// A row that leaves: before all others of higher rank, and of two alike the one whose place comes first. Places and
/// not keys: the order of keys is that of the index, which rows would leave from one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ranked {
    rank: u32,
    place: u64,
    slot: u32,
}

impl Ranked {
    pub(crate) fn new(rank: u32, key: u64, slot: u32) -> Self {
        Self { rank, place: place_of(key), slot }
    }

    fn key(&self) -> u64 {
        place_of(self.place)
    }
}

/// What came of trying to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relief {
    /// This many rows left.
    Left(u64),
    /// Another thread was at it, and is done.
    Others,
    /// The cold tier is being frozen for a snapshot: nothing may go there.
    Frozen,
}

impl Table {
    /// Room in a stripe for those of the first `now` rows to do that are not in memory. The lock may be given up and
    /// taken again. Where rows cannot leave, memory grows beyond the budget.
    pub(crate) fn make_room(&self, stripe: &mut MutexGuard<'_, Stripe>, todo: &mut [Todo], now: usize) {
        for _ in 0..ROUNDS {
            let missing = todo[..now].iter().filter(|todo| stripe.find(todo.key).is_none()).count();
            if self.reserve(stripe, missing) {
                return;
            }
            let count = missing.max((stripe.rows() / SHARE).min(BATCH));
            match self.evict(stripe, todo, now, count) {
                Ok(Relief::Left(_) | Relief::Others) => {}
                Ok(Relief::Frozen) if self.wait_for_thaw(stripe) => {}
                Ok(Relief::Frozen) | Err(_) => return,
            }
        }
    }

    /// Whether rows may go to the cold tier again soon. Where memory still is, the wait is short.
    fn wait_for_thaw(&self, stripe: &mut MutexGuard<'_, Stripe>) -> bool {
        let wait = if self.shared().budget.is_exhausted() { self.wait() } else { SHORT_WAIT };
        MutexGuard::unlocked(stripe, || self.shared().moves.try_read_for(wait).is_some())
    }

    /// The longest wait of one round.
    fn wait(&self) -> Duration {
        self.shared().capacity.wait(WAIT, WAIT_SHARE)
    }

    /// Whether this many rows more fit in, with memory that the budget allows if need be.
    fn reserve(&self, stripe: &mut Stripe, rows: usize) -> bool {
        let (growth, budget) = (stripe.growth(rows), &self.shared().budget);
        if growth == 0 {
            return true;
        }
        if stripe.rows() + rows <= FLOOR {
            budget.force(growth);
        } else if !budget.reserve(growth, self.shared().arena.idle()) {
            return false;
        }
        stripe.charged += growth;
        true
    }

    /// Tells the budget what a stripe really takes.
    pub(crate) fn charge(&self, stripe: &mut Stripe) {
        let (bytes, budget) = (stripe.bytes(), &self.shared().budget);
        if bytes > stripe.charged {
            budget.force(bytes - stripe.charged);
        } else {
            budget.release(stripe.charged - bytes);
        }
        stripe.charged = bytes;
    }

    /// Lets the `count` rows of the lowest rank leave, but none of the first `now` to do, which are of this stripe.
    pub(crate) fn evict(
        &self,
        stripe: &mut MutexGuard<'_, Stripe>,
        todo: &mut [Todo],
        now: usize,
        count: usize,
    ) -> Result<Relief, ColdError> {
        let tick = self.tick();
        self.with_leaving(|leaving| {
            leaving.needed.clear();
            leaving.needed.extend(todo[..now].iter().map(|todo| todo.key));
            leaving.needed.sort_unstable();
            let choose = |stripe: &mut Stripe, leaving: &mut Leaving| leaving.choose(self, stripe, count, tick);
            self.send_away(stripe, leaving, todo, choose)
        })
    }

    /// Lets rows leave that `choose` puts among the ranked. Those past their time to live go for good.
    pub(crate) fn send_away(
        &self,
        stripe: &mut MutexGuard<'_, Stripe>,
        leaving: &mut Leaving,
        todo: &mut [Todo],
        choose: impl FnOnce(&mut Stripe, &mut Leaving),
    ) -> Result<Relief, ColdError> {
        if !self.is_tiered() {
            choose(stripe, leaving);
            return Ok(Relief::Left(self.drop_ranked(stripe, leaving)));
        }
        let door = self.door(stripe.number);
        let Some(_inside) = door.try_lock() else {
            MutexGuard::unlocked(stripe, || drop(door.try_lock_for(self.wait())));
            return Ok(Relief::Others);
        };
        let Some(_moving) = self.shared().moves.try_read() else {
            return Ok(Relief::Frozen);
        };
        choose(stripe, leaving);
        let forgotten = self.forget_expired(stripe, leaving);
        leaving.copy(stripe);
        let written = MutexGuard::unlocked(stripe, || self.write_cold(leaving));
        let left = written.map(|()| leaving.depart(stripe))?;
        note_departure(stripe, leaving, todo);
        Ok(Relief::Left(forgotten + left))
    }

    fn drop_ranked(&self, stripe: &mut Stripe, leaving: &Leaving) -> u64 {
        for row in &leaving.ranked {
            stripe.remove(row.key());
            let counted = if row.rank == 0 { &mut stripe.counts.expired } else { &mut stripe.counts.dropped };
            *counted += 1;
        }
        leaving.ranked.len() as u64
    }

    fn forget_expired(&self, stripe: &mut Stripe, leaving: &mut Leaving) -> u64 {
        let before = leaving.ranked.len();
        leaving.ranked.retain(|row| {
            if row.rank == 0 {
                stripe.remove(row.key());
            }
            row.rank > 0
        });
        let forgotten = (before - leaving.ranked.len()) as u64;
        // No departure: a cold copy of such a row is past its time to live as well.
        stripe.counts.expired += forgotten;
        forgotten
    }

    fn write_cold(&self, leaving: &Leaving) -> Result<(), ColdError> {
        let Some(store) = self.cold().filter(|_| !leaving.places.is_empty()) else {
            return Ok(());
        };
        let written = store.write(self.number(), &leaving.places, &leaving.words);
        self.shared().note(written.as_ref().err());
        written
    }
}

impl Leaving {
    /// Ranks rows of a stripe and keeps the `count` lowest.
    fn choose(&mut self, table: &Table, stripe: &mut Stripe, count: usize, tick: u64) {
        self.scanned.clear();
        if stripe.rows() <= COMPARED {
            stripe.scan(0, usize::MAX, &mut self.scanned);
        } else {
            let next = stripe.scan(stripe.hand, COMPARED, &mut self.scanned);
            stripe.hand = next.unwrap_or(0);
        }
        self.ranked.clear();
        let needed = &self.needed;
        let others = self.scanned.iter().filter(|(key, _)| needed.binary_search(key).is_err());
        let rank = |slot: u32| table.marks().rank(stripe.mark(slot), tick);
        self.ranked.extend(others.map(|(key, slot)| Ranked::new(rank(*slot), *key, *slot)));
        if count < self.ranked.len() {
            self.ranked.select_nth_unstable(count);
            self.ranked.truncate(count);
        }
    }

    /// Copies the ranked rows with their marks, in ascending order of places.
    fn copy(&mut self, stripe: &Stripe) {
        self.ranked.sort_unstable_by_key(|row| row.place);
        self.ranked.iter().for_each(|row| prefetch(stripe.slot(row.slot)));
        self.places.clear();
        self.words.clear();
        for Ranked { place, slot, .. } in &self.ranked {
            self.places.push(*place);
            self.words.extend_from_slice(stripe.slot(*slot));
            self.words.push(stripe.mark(*slot));
        }
    }

    /// Takes out the rows that are still what was copied.
    fn depart(&self, stripe: &mut Stripe) -> u64 {
        self.ranked.iter().for_each(|row| stripe.prefetch_entry(row.key()));
        let width = self.words.len() / self.ranked.len().max(1);
        let mut left = 0;
        for (row, Ranked { place, slot, .. }) in self.ranked.iter().enumerate() {
            let key = place_of(*place);
            let (words, mark) = self.words[row * width..][..width].split_at(width - 1);
            if stripe.find(key) == Some(*slot) && stripe.slot(*slot) == words && stripe.mark(*slot) == mark[0] {
                stripe.remove(key);
                left += 1;
            }
        }
        stripe.counts.evicted += left;
        left
    }
}

/// The stripe's count of departures moves on, and with it what the request at hand knows to be of now: the cold copies
/// of all rows but those that just left.
fn note_departure(stripe: &mut Stripe, leaving: &Leaving, todo: &mut [Todo]) {
    let before = stripe.departures;
    stripe.departures = before.wrapping_add(1);
    let left = |key: u64| leaving.places.binary_search(&place_of(key)).is_ok();
    for todo in todo {
        if todo.departures == before && !left(todo.key) {
            todo.departures = stripe.departures;
        }
    }
}
