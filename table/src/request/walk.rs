//! The walk over the rows of a request, from stripe to stripe.
//!
//! Rows go through four stages, [`UNIT`] rows of one stripe at a time. While memory is fetched for some rows, the core works
//! on others:
//!
//! 1. Prefetch the index entry.
//! 2. Search the home bucket, and prefetch the slot.
//! 3. Find or create the rows that the home bucket does not have.
//! 4. Read or change the rows.
//!
//! ```text
//! turn      1    2    3    4    5    6
//! stage 1   a₁   a₂   b₁   c₁   d₁   …     a₁, a₂: the units of stripe a
//! stage 2        a₁   a₂   b₁   c₁   d₁
//! stage 3             a₁   a₂   b₁   c₁
//! stage 4                  a₁   a₂   b₁    after turn 5 stripe a is done: its lock is released
//! ```
//!
//! The stages do not run empty between stripes, which is most of the time of a request with few rows in each. So the locks of
//! up to four stripes are held at once. They are taken in ascending order, and no thread that holds one waits for a smaller one.

use parking_lot::MutexGuard;

use crate::Table;
use crate::request::group::{GroupedIds, HELD, RequestBuffers, StripeGroup};
use crate::row::slab::SlotAddress;
use crate::stripe::Stripe;

/// Rows that pass through one stage together. A stage uses the memory that the stage before prefetched 16 rows earlier.
/// A core waits for about 16 cache misses at once.
const UNIT: usize = 16;
/// What a request does with each row.
pub(super) trait RowVisitor {
    fn words(&self) -> usize;

    /// Prefetches what it reads besides the row. Memory that is only written needs no prefetch: the store buffer hides
    /// the miss, and prefetching it made lookups no faster.
    #[inline(always)]
    fn prefetch(&self, _position: u32) {}

    /// Called for each stripe with the keys of its rows, before anything else.
    #[inline(always)]
    fn begin(&mut self, _stripe: &mut Stripe, _keys: &[u64]) {}

    /// Returns the slot of a row that [`Stripe::peek`] did not find. `None` if there is no row.
    fn find_slot(&mut self, stripe: &mut Stripe, key: u64, position: u32) -> Option<u32>;

    fn use_row(&mut self, stripe: &mut Stripe, place: SlotAddress, key: u64, position: u32);

    /// Called for each stripe with its keys and the addresses of their rows, after its last row.
    #[inline(always)]
    fn end(&mut self, _stripe: &mut Stripe, _keys: &[u64], _places: &[SlotAddress]) {}
}

struct HeldStripe<'t> {
    stripe: MutexGuard<'t, Stripe>,
    /// Where its rows begin and end in the keys of the request.
    start: usize,
    end: usize,
}

/// Rows of one stripe that pass through a stage together.
#[derive(Clone, Copy, Default)]
struct RowUnit {
    held: usize,
    start: usize,
    end: usize,
}

/// The rows that have not entered the first stage.
struct RowsAhead {
    stripe: usize,
    next: usize,
    held: usize,
}

impl RowUnit {
    #[inline(always)]
    fn is_empty(self) -> bool {
        self.start == self.end
    }
}

impl Table {
    /// Visits all rows of a request. Locks each stripe once.
    #[inline(always)]
    pub(super) fn visit(&self, scratch: &mut RequestBuffers, work: &mut impl RowVisitor) {
        let (ids, places) = scratch.grouped_ids();
        let mut held: [Option<HeldStripe<'_>>; HELD] = [const { None }; HELD];
        let mut units = [RowUnit::default(); HELD];
        let mut position = RowsAhead { stripe: 0, next: 0, held: HELD - 1 };
        // Turns until the last unit has left the last stage.
        let mut turns = 1;
        // Loops, not `for_each`: its closure would not be compiled for wide vectors.
        while turns > 0 {
            units.rotate_right(1);
            units[0] = self.enter(&ids, places, &mut held, &mut position, work);
            turns = if units[0].is_empty() { turns - 1 } else { HELD - 1 };
            for (stage, unit) in units.iter().enumerate() {
                if unit.is_empty() {
                    continue;
                }
                let Some(of) = &mut held[unit.held] else { continue };
                let (stripe, places) = (&mut *of.stripe, &mut places[unit.held][..of.end - of.start]);
                let (keys, positions) = (&ids.keys[unit.start..unit.end], &ids.positions[unit.start..unit.end]);
                let of_unit = &mut places[unit.start - of.start..unit.end - of.start];
                match stage {
                    0 => prefetch_entries(stripe, keys),
                    1 => peek_all(stripe, keys, positions, of_unit, work),
                    2 => find_absent(stripe, keys, positions, of_unit, work),
                    _ => use_all(stripe, keys, positions, of_unit, work),
                }
                if stage == HELD - 1 && unit.end == of.end {
                    work.end(stripe, &ids.keys[of.start..of.end], places);
                    held[unit.held] = None;
                }
            }
        }
    }

    /// The next rows. Locks their stripe if they are its first.
    #[inline(always)]
    fn enter<'t>(
        &'t self,
        ids: &GroupedIds<'_>,
        places: &mut [Vec<SlotAddress>; HELD],
        held: &mut [Option<HeldStripe<'t>>; HELD],
        ahead: &mut RowsAhead,
        work: &mut impl RowVisitor,
    ) -> RowUnit {
        let start = ahead.next;
        if start == ids.keys.len() {
            return RowUnit { held: ahead.held, start, end: start };
        }
        if start == 0 || start == ids.ends[ahead.stripe] as usize {
            ahead.stripe += usize::from(start > 0);
            while ids.ends[ahead.stripe] as usize == start {
                ahead.stripe += 1;
            }
            ahead.held = (ahead.held + 1) % HELD;
            let mut stripe = self.lock(ahead.stripe);
            let end = ids.ends[ahead.stripe] as usize;
            places[ahead.held].resize(end - start, SlotAddress::NONE);
            work.begin(&mut stripe, &ids.keys[start..end]);
            held[ahead.held] = Some(HeldStripe { stripe, start, end });
        }
        ahead.next = (start + UNIT).min(ids.ends[ahead.stripe] as usize);
        RowUnit { held: ahead.held, start, end: ahead.next }
    }
}

/// Takes the rows of one group through the stages.
#[inline(always)]
pub(super) fn visit_group(stripe: &mut Stripe, group: &mut StripeGroup<'_>, work: &mut impl RowVisitor) {
    let count = group.keys.len();
    group.places.resize(count, SlotAddress::NONE);
    let (keys, positions, places) = (group.keys, &group.positions[..count], &mut group.places[..count]);
    let units = count.div_ceil(UNIT);
    let rows = |unit: usize| unit * UNIT..count.min(unit * UNIT + UNIT);
    for turn in 0..units + HELD - 1 {
        if turn < units {
            prefetch_entries(stripe, &keys[rows(turn)]);
        }
        if (1..=units).contains(&turn) {
            let rows = rows(turn - 1);
            peek_all(stripe, &keys[rows.clone()], &positions[rows.clone()], &mut places[rows], work);
        }
        if (2..=units + 1).contains(&turn) {
            let rows = rows(turn - 2);
            find_absent(stripe, &keys[rows.clone()], &positions[rows.clone()], &mut places[rows], work);
        }
        if turn >= 3 {
            let rows = rows(turn - 3);
            use_all(stripe, &keys[rows.clone()], &positions[rows.clone()], &places[rows], work);
        }
    }
}

#[inline(always)]
fn prefetch_entries(stripe: &Stripe, keys: &[u64]) {
    for key in keys {
        stripe.prefetch_entry(*key);
    }
}

#[inline(always)]
fn peek_all(stripe: &Stripe, keys: &[u64], positions: &[u32], places: &mut [SlotAddress], work: &impl RowVisitor) {
    let (words, count) = (work.words(), keys.len());
    let (positions, places) = (&positions[..count], &mut places[..count]);
    for index in 0..count {
        places[index] = stripe.peek(keys[index], words);
        work.prefetch(positions[index]);
    }
}

#[inline(always)]
fn find_absent(
    stripe: &mut Stripe,
    keys: &[u64],
    positions: &[u32],
    places: &mut [SlotAddress],
    work: &mut impl RowVisitor,
) {
    let (words, count) = (work.words(), keys.len());
    let (positions, places) = (&positions[..count], &mut places[..count]);
    for index in 0..count {
        if places[index].is_none()
            && let Some(slot) = work.find_slot(stripe, keys[index], positions[index])
        {
            places[index] = stripe.place(slot, words);
        }
    }
}

#[inline(always)]
fn use_all(stripe: &mut Stripe, keys: &[u64], positions: &[u32], places: &[SlotAddress], work: &mut impl RowVisitor) {
    let count = keys.len();
    let (positions, places) = (&positions[..count], &places[..count]);
    for index in 0..count {
        if !places[index].is_none() {
            work.use_row(stripe, places[index], keys[index], positions[index]);
        }
    }
}
