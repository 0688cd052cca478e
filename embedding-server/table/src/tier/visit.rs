//! Rows that are not simply there: read from the cold tier in one go, brought to memory or made, while others come and
//! go.
//!
//! Between the moment in which a row is found missing and the moment in which its cold copy is here, another thread
//! may have brought it to memory, changed it and sent it away again: the copy is void then. Each stripe counts its
//! departures; a copy that was read before the last one is read again (invariant TI-1). After some rounds it is read
//! under the stripe's lock, so that a request comes to an end.

use std::ops::Range;

use crate::request::group::stripe_of;
use crate::stripe::Stripe;
use crate::{ColdError, ColdRows, Table, TableError};

/// Rows brought to memory under one lock; every stripe has room for them.
pub(crate) const AT_ONCE: usize = 64;
/// Reads without a lock before the one with it.
const ROUNDS: usize = 3;
/// The cold copy of the row is not needed: it was in memory.
const UNREAD: u32 = u32::MAX;
/// The cold copy is to be read.
const WANTED: u32 = u32::MAX - 1;

/// The rows of one table that a request has yet to deal with.
#[derive(Debug, Default)]
pub(crate) struct Visit {
    /// Stripe after stripe.
    pub(crate) todo: Vec<Todo>,
    /// What has to be read again.
    again: Vec<Todo>,
    places: Vec<u64>,
    cold: ColdRows,
    /// Rows made.
    pub(crate) created: u64,
    /// Whether the request counts as a sighting of the ids that have no row.
    pub(crate) sighting: bool,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Todo {
    pub(crate) key: u64,
    /// Position in the request.
    pub(crate) position: u32,
    /// Departures of its stripe when it was last found missing.
    pub(crate) departures: u32,
    /// Its row among those read.
    cold: u32,
}

/// What is done with a row once it is in memory; no slot if it is not admitted.
pub(crate) type Act<'a> = dyn FnMut(&mut Stripe, Todo, Option<u32>) + 'a;

/// Where a row was found.
enum Seat {
    Slot(u32),
    Refused,
    /// Its cold copy may be void.
    Stale,
}

impl Todo {
    /// Whether its cold copy has yet to be read.
    pub(crate) fn is_missing(&self) -> bool {
        self.cold == WANTED
    }
}

impl Visit {
    /// Bytes that it holds, used or not.
    pub(crate) fn bytes(&self) -> usize {
        let cold = self.cold.rows.capacity() * size_of::<u32>() + self.cold.found.capacity();
        let rows = (self.todo.capacity() + self.again.capacity()) * size_of::<Todo>();
        cold + rows + self.places.capacity() * size_of::<u64>()
    }

    pub(crate) fn clear(&mut self) {
        self.todo.clear();
        self.again.clear();
        self.created = 0;
        self.sighting = false;
    }

    pub(crate) fn add(&mut self, key: u64, position: u32, departures: u32, missing: bool) {
        let cold = if missing { WANTED } else { UNREAD };
        self.todo.push(Todo { key, position, departures, cold });
    }

    /// Some row that was not in memory.
    pub(crate) fn missing(&self) -> Option<Todo> {
        self.todo.iter().copied().find(Todo::is_missing)
    }

    /// Reads the cold copies of all rows that were not in memory.
    pub(crate) fn read(&mut self, table: &Table) -> Result<(), ColdError> {
        let Self { todo, places, cold, .. } = self;
        read_into(table, todo, places, cold)
    }

    /// The cold copy of a row: its words, and its mark unless it is past its time to live.
    pub(crate) fn cold_copy(&self, todo: &Todo, table: &Table, tick: u64) -> Option<&[u32]> {
        cold_copy(&self.cold, todo, table.stride()).filter(|row| !table.marks().expired(row[table.stride()], tick))
    }
}

impl Table {
    /// Brings the rows of `visit` to memory, those that do not exist made, and hands each once to `act`. What the cold
    /// tier holds of them has been read. After an error, the rows that are still to do are in `visit`.
    pub(crate) fn settle(&self, visit: &mut Visit, act: &mut Act<'_>) -> Result<(), TableError> {
        for _ in 0..ROUNDS {
            self.seat_all(visit, act);
            if visit.todo.is_empty() {
                return Ok(());
            }
            visit.read(self).map_err(|source| self.unreadable(source))?;
        }
        while !visit.todo.is_empty() {
            self.seat_locked(visit, act).map_err(|source| self.unreadable(source))?;
        }
        Ok(())
    }

    /// One round: what is stale stays in `visit`.
    fn seat_all(&self, visit: &mut Visit, act: &mut Act<'_>) {
        let mut todo = std::mem::take(&mut visit.todo);
        let tick = self.tick();
        self.for_each_lot(&mut todo, &mut |stripe, todo| self.seat_one(stripe, todo, visit, tick, act));
        todo.clear();
        visit.todo = std::mem::replace(&mut visit.again, todo);
    }

    /// Takes rows, stripe after stripe, in lots that every stripe has room for, with room made for each lot.
    pub(crate) fn for_each_lot(&self, todo: &mut [Todo], work: &mut dyn FnMut(&mut Stripe, Todo)) {
        let mut start = 0;
        while start < todo.len() {
            let run = self.run_of(todo, start);
            let end = run.end.min(start + AT_ONCE);
            let mut stripe = self.lock(self.stripe_of(todo[start].key));
            todo[start..end].iter().for_each(|todo| stripe.prefetch_entry(todo.key));
            self.make_room(&mut stripe, &mut todo[run], end - start);
            todo[start..end].iter().for_each(|todo| work(&mut stripe, *todo));
            self.charge(&mut stripe);
            start = end;
        }
    }

    /// The last resort: reads the rows of the last stripe while it is locked.
    fn seat_locked(&self, visit: &mut Visit, act: &mut Act<'_>) -> Result<(), ColdError> {
        let Some(last) = visit.todo.last().copied() else {
            return Ok(());
        };
        let number = self.stripe_of(last.key);
        let start = visit.todo.iter().position(|todo| self.stripe_of(todo.key) == number).unwrap_or(0);
        let mut stripe = self.lock(number);
        let mut todo = visit.todo.split_off(start);
        for todo in &mut todo {
            (todo.departures, todo.cold) = (stripe.departures, WANTED);
        }
        if let Err(error) = read_into(self, &mut todo, &mut visit.places, &mut visit.cold) {
            visit.todo.append(&mut todo);
            return Err(error);
        }
        let tick = self.tick();
        todo.into_iter().for_each(|todo| self.seat_one(&mut stripe, todo, visit, tick, act));
        self.charge(&mut stripe);
        Ok(())
    }

    fn seat_one(&self, stripe: &mut Stripe, todo: Todo, visit: &mut Visit, tick: u64, act: &mut Act<'_>) {
        match self.seat(stripe, &todo, visit, tick) {
            Seat::Slot(slot) => act(stripe, todo, Some(slot)),
            Seat::Refused => act(stripe, todo, None),
            Seat::Stale => visit.again.push(Todo { departures: stripe.departures, cold: WANTED, ..todo }),
        }
    }

    /// Invariant TI-1: the hot row if there is one, else the cold copy if it is of now, else a new row.
    fn seat(&self, stripe: &mut Stripe, todo: &Todo, visit: &mut Visit, tick: u64) -> Seat {
        if !(self.is_selective() && self.forget_if_expired(stripe, todo.key, tick))
            && let Some(seat) = self.seat_existing(stripe, todo, visit, tick)
        {
            return seat;
        }
        let Some(slot) = self.create(stripe, todo.key, tick, visit.sighting) else {
            return Seat::Refused;
        };
        visit.created += 1;
        Seat::Slot(slot)
    }

    /// Takes a row out that is past its time to live: where not every id gets a row, it has to be admitted again. Answers
    /// whether there was one. No departure: a cold copy of it is past its time as well.
    fn forget_if_expired(&self, stripe: &mut Stripe, key: u64, tick: u64) -> bool {
        let expired = stripe.find(key).is_some_and(|slot| self.marks().expired(stripe.mark(slot), tick));
        if expired {
            stripe.remove(key);
            stripe.counts.expired += 1;
        }
        expired
    }

    /// Marks a row in memory as used. One past its time to live starts again; answers whether it did.
    fn use_slot(&self, stripe: &mut Stripe, key: u64, slot: u32, tick: u64) -> bool {
        let mark = stripe.mark(slot);
        let expired = self.marks().expired(mark, tick);
        if expired {
            stripe.restart(key, slot, self.layout());
        }
        *stripe.mark_mut(slot) = if expired { self.marks().first(tick) } else { self.marks().used(mark, tick) };
        expired
    }

    fn promote(&self, stripe: &mut Stripe, key: u64, words: &[u32], mark: u32) -> u32 {
        let slot = stripe.put(key, words);
        *stripe.mark_mut(slot) = mark;
        stripe.counts.promoted += 1;
        self.pay(stripe, key, slot);
        slot
    }

    /// Where a row is that exists, or may exist.
    fn seat_existing(&self, stripe: &mut Stripe, todo: &Todo, visit: &mut Visit, tick: u64) -> Option<Seat> {
        if let Some(slot) = stripe.find(todo.key) {
            visit.created += u64::from(self.use_slot(stripe, todo.key, slot, tick));
            return Some(Seat::Slot(slot));
        }
        if self.is_tiered() && stripe.departures != todo.departures {
            return Some(Seat::Stale);
        }
        let row = cold_copy(&visit.cold, todo, self.stride())?;
        stripe.counts.cold_reads += 1;
        let (words, mark) = (&row[..self.stride()], row[self.stride()]);
        if !self.marks().expired(mark, tick) {
            return Some(Seat::Slot(self.promote(stripe, todo.key, words, self.marks().used(mark, tick))));
        }
        stripe.counts.expired += 1;
        None
    }

    /// Makes a row, if the id is admitted.
    fn create(&self, stripe: &mut Stripe, key: u64, tick: u64, sighting: bool) -> Option<u32> {
        let admitted = if sighting { stripe.doorkeeper.sight(key) } else { stripe.doorkeeper.admits(key) };
        if !admitted {
            stripe.counts.refused += 1;
            return None;
        }
        stripe.counts.admitted += u64::from(self.is_selective());
        let (slot, _) = stripe.find_or_create(key, self.layout());
        *stripe.mark_mut(slot) = self.marks().first(tick);
        self.pay(stripe, key, slot);
        Some(slot)
    }

    /// The rows from `start` on that are of one stripe.
    fn run_of(&self, todo: &[Todo], start: usize) -> Range<usize> {
        let number = self.stripe_of(todo[start].key);
        let length = todo[start..].iter().take_while(|todo| self.stripe_of(todo.key) == number).count();
        start..start + length
    }

    pub(crate) fn stripe_of(&self, key: u64) -> usize {
        stripe_of(key, self.stripes())
    }

    pub(crate) fn unreadable(&self, source: ColdError) -> TableError {
        TableError::Cold { table: self.number(), source }
    }
}

fn read_into(table: &Table, todo: &mut [Todo], places: &mut Vec<u64>, cold: &mut ColdRows) -> Result<(), ColdError> {
    let Some(store) = table.cold() else {
        return Ok(());
    };
    places.clear();
    for todo in todo.iter_mut().filter(|todo| todo.cold == WANTED) {
        todo.cold = places.len() as u32;
        places.push(place_of(todo.key));
    }
    if places.is_empty() { Ok(()) } else { store.read(table.number(), places, cold) }
}

fn cold_copy<'a>(cold: &'a ColdRows, todo: &Todo, stride: usize) -> Option<&'a [u32]> {
    let found = cold.found.get(todo.cold as usize).copied().unwrap_or(false);
    found.then(|| &cold.rows[todo.cold as usize * (stride + 1)..][..stride + 1])
}

/// Where a row lies in the cold tier: the bits that choose the stripe come first, so that a stripe is one range.
#[inline]
pub(crate) fn place_of(key: u64) -> u64 {
    key.reverse_bits()
}
