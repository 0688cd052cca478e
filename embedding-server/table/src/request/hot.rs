//! The loops over the rows of a request, stripe by stripe: where a server's time goes.

use crate::config::RowLayout;
use crate::machine::prefetch::prefetch;
use crate::request::group::{Scratch, StripeGroup};
use crate::request::update::RowUpdate;
use crate::row::slab::SlotAddress;
use crate::stripe::Stripe;
use crate::stripe_changes::StripeChanges;
use crate::{Element, PushReport, PushStep, Table};

/// Rows that go through one stage together. What is asked for in one stage is used in the next, some 16 rows later: as
/// many misses as a core waits for at once.
const STEP: usize = 16;

/// What a request does with its rows.
trait RowVisitor {
    /// Words of a row that are needed.
    fn words(&self) -> usize;

    /// Asks for the memory of what is read of a row besides itself. Memory that is only written need not be asked for:
    /// stores wait by themselves, and asking made lookups no faster.
    #[inline(always)]
    fn ask(&self, _position: u32) {}

    /// The slot of a row that was not found at once, if it has one.
    fn settle(&mut self, stripe: &mut Stripe, key: u64, position: u32) -> Option<u32>;

    /// Reads or changes a row.
    fn touch(&mut self, stripe: &mut Stripe, place: SlotAddress, key: u64, position: u32);
}

/// Copies weights; rows that do not exist are made.
struct TrainingLookup<'a> {
    table: &'a Table,
    layout: RowLayout,
    out: &'a mut [f32],
    made: u64,
}

/// Copies weights, and notes the positions of rows that do not exist.
struct ReadingLookup<'a> {
    layout: RowLayout,
    out: &'a mut [f32],
    missing: &'a mut Vec<u32>,
}

/// Applies gradients; rows that do not exist are made.
struct GradientPush<'a> {
    table: &'a Table,
    layout: RowLayout,
    update: RowUpdate<'a>,
    gradients: &'a [f32],
    made: u64,
}

impl Table {
    #[inline(always)]
    pub(crate) fn lookup_for_training(&self, ids: &[u64], out: &mut [f32], scratch: &mut Scratch) -> u64 {
        let mut made = 0;
        scratch.group(ids, self.stripes());
        with_known_width(
            *self.layout(),
            #[inline(always)]
            |layout| {
                let mut work = TrainingLookup { table: self, layout, out: &mut *out, made: 0 };
                self.for_each_group(
                    scratch,
                    #[inline(always)]
                    |stripe, group| {
                        let before = work.made;
                        pipelined(stripe, group, &mut work);
                        stripe.count_lookups(group.keys.len(), (work.made - before) as usize);
                    },
                );
                made = work.made;
            },
        );
        made
    }

    #[inline(always)]
    pub(crate) fn lookup_for_reading(&self, ids: &[u64], out: &mut [f32], scratch: &mut Scratch) -> u64 {
        let layout = *self.layout();
        let mut missing = std::mem::take(&mut scratch.missing);
        missing.clear();
        scratch.group(ids, self.stripes());
        let mut work = ReadingLookup { layout, out: &mut *out, missing: &mut missing };
        self.for_each_group(
            scratch,
            #[inline(always)]
            |stripe, group| {
                let before = work.missing.len();
                pipelined(stripe, group, &mut work);
                stripe.count_lookups(group.keys.len(), work.missing.len() - before);
            },
        );
        for position in &missing {
            layout.fill_weights(ids[*position as usize], row_mut(out, *position, layout.dim));
        }
        scratch.missing = missing;
        scratch.missing.len() as u64
    }

    #[inline(always)]
    pub(crate) fn update_groups(&self, gradients: &[f32], step: PushStep, scratch: &mut Scratch) -> PushReport {
        let mut report = PushReport::default();
        let mut buffer = std::mem::take(&mut scratch.weights);
        let (mut changes, origin, is_logged) = (std::mem::take(&mut scratch.changes), scratch.origin, self.is_logged());
        with_known_width(
            *self.layout(),
            #[inline(always)]
            |layout| {
                let update = RowUpdate::new(layout, step, &mut buffer);
                let mut work = GradientPush { table: self, layout, update, gradients, made: 0 };
                self.for_each_group(
                    scratch,
                    #[inline(always)]
                    |stripe, group| {
                        if stripe.is_captured() {
                            stripe.preserve_all(group.keys);
                        }
                        pipelined(stripe, group, &mut work);
                        if is_logged {
                            changes.origin = origin;
                            self.log_group(stripe, group, &mut changes);
                        }
                        report.updated += group.keys.len() as u64;
                    },
                );
                report.created = work.made;
            },
        );
        (scratch.weights, scratch.changes) = (buffer, changes);
        report
    }

    /// Appends the rows of a group to the log, after their change. They are in the cache still.
    #[inline(never)]
    fn log_group(&self, stripe: &Stripe, group: &StripeGroup<'_>, changes: &mut StripeChanges) {
        for index in 0..group.keys.len() {
            changes.note_row(group.keys[index], stripe.at(group.places[index]), None);
        }
        self.append_changes(stripe.number, changes);
    }

    #[inline(always)]
    pub(crate) fn for_each_group(
        &self,
        scratch: &mut Scratch,
        mut work: impl FnMut(&mut Stripe, &mut StripeGroup<'_>),
    ) {
        for stripe in 0..self.stripes() {
            let mut group = scratch.at(stripe);
            if !group.keys.is_empty() {
                work(&mut self.lock(stripe), &mut group);
            }
        }
    }
}

impl RowVisitor for TrainingLookup<'_> {
    #[inline(always)]
    fn words(&self) -> usize {
        self.layout.weights
    }

    #[inline(always)]
    fn settle(&mut self, stripe: &mut Stripe, key: u64, _: u32) -> Option<u32> {
        let (slot, created) = find_or_create(stripe, key, self.table);
        self.made += u64::from(created);
        Some(slot)
    }

    #[inline(always)]
    fn touch(&mut self, stripe: &mut Stripe, place: SlotAddress, _: u64, position: u32) {
        self.layout.read(stripe.at(place), row_mut(self.out, position, self.layout.dim));
    }
}

impl RowVisitor for ReadingLookup<'_> {
    #[inline(always)]
    fn words(&self) -> usize {
        self.layout.weights
    }

    #[inline(always)]
    fn settle(&mut self, stripe: &mut Stripe, key: u64, position: u32) -> Option<u32> {
        let slot = find(stripe, key);
        if slot.is_none() {
            self.missing.push(position);
        }
        slot
    }

    #[inline(always)]
    fn touch(&mut self, stripe: &mut Stripe, place: SlotAddress, _: u64, position: u32) {
        self.layout.read(stripe.at(place), row_mut(self.out, position, self.layout.dim));
    }
}

impl RowVisitor for GradientPush<'_> {
    #[inline(always)]
    fn words(&self) -> usize {
        self.layout.stride
    }

    #[inline(always)]
    fn ask(&self, position: u32) {
        prefetch(row(self.gradients, position, self.layout.dim));
    }

    #[inline(always)]
    fn settle(&mut self, stripe: &mut Stripe, key: u64, _: u32) -> Option<u32> {
        let (slot, created) = find_or_create(stripe, key, self.table);
        self.made += u64::from(created);
        Some(slot)
    }

    #[inline(always)]
    fn touch(&mut self, stripe: &mut Stripe, place: SlotAddress, key: u64, position: u32) {
        self.update.apply(stripe.at_mut(place), key, row(self.gradients, position, self.layout.dim));
    }
}

/// Not inlined, for the few rows that come here; and without a look at the caller's work, whose layout stays constant.
#[inline(never)]
fn find_or_create(stripe: &mut Stripe, key: u64, table: &Table) -> (u32, bool) {
    stripe.find_or_create(key, table.layout())
}

/// As [`find_or_create`].
#[inline(never)]
fn find(stripe: &Stripe, key: u64) -> Option<u32> {
    stripe.find(key)
}

/// Calls `work` with the layout, as a constant where it is one of the commonest: loops over rows of known width need no
/// counting.
#[inline(always)]
fn with_known_width(layout: RowLayout, mut work: impl FnMut(RowLayout)) {
    match (layout.element, layout.dim) {
        (Element::F32, 16) => work(known::<16>(layout)),
        (Element::F32, 32) => work(known::<32>(layout)),
        (Element::F32, 64) => work(known::<64>(layout)),
        (Element::F32, 128) => work(known::<128>(layout)),
        _ => work(layout),
    }
}

/// The layout of a table of `DIM` weights of f32, which it is.
#[inline(always)]
fn known<const DIM: usize>(mut layout: RowLayout) -> RowLayout {
    (layout.element, layout.dim, layout.weights) = (Element::F32, DIM, DIM);
    layout
}

/// Takes the rows of a group through four stages, a few at a time, each few one stage behind the few after them: while
/// memory is fetched for some rows, others are worked on.
///
/// 1. Ask for the index entry.
/// 2. Look where the entry should be, and ask for the slot.
/// 3. Find, or make, the rows that were not found there.
/// 4. Read or change them.
#[inline(always)]
fn pipelined(stripe: &mut Stripe, group: &mut StripeGroup<'_>, work: &mut impl RowVisitor) {
    let (count, words) = (group.keys.len(), work.words());
    group.places.resize(count, SlotAddress::NONE);
    let (keys, positions, places) = (group.keys, &group.positions[..count], &mut group.places[..count]);
    let steps = count.div_ceil(STEP);
    let rows = |step: usize| step * STEP..count.min(step * STEP + STEP);
    // Loops and not `for_each`, whose body would not be compiled for wide vectors.
    for step in 0..steps + 3 {
        if step < steps {
            for index in rows(step) {
                stripe.prefetch_entry(keys[index]);
            }
        }
        if (1..=steps).contains(&step) {
            for index in rows(step - 1) {
                places[index] = stripe.peek(keys[index], words);
                work.ask(positions[index]);
            }
        }
        if (2..=steps + 1).contains(&step) {
            for index in rows(step - 2) {
                if places[index].is_none()
                    && let Some(slot) = work.settle(stripe, keys[index], positions[index])
                {
                    places[index] = stripe.place(slot, words);
                }
            }
        }
        if step >= 3 {
            for index in rows(step - 3) {
                if !places[index].is_none() {
                    work.touch(stripe, places[index], keys[index], positions[index]);
                }
            }
        }
    }
}

#[inline(always)]
pub(crate) fn row<T>(values: &[T], position: u32, width: usize) -> &[T] {
    &values[position as usize * width..][..width]
}

#[inline(always)]
pub(crate) fn row_mut(values: &mut [f32], position: u32, width: usize) -> &mut [f32] {
    &mut values[position as usize * width..][..width]
}
