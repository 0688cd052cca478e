//! The loops over the rows of a request, stripe by stripe. A server spends most of its time here.

use crate::config::RowLayout;
use crate::machine::prefetch::prefetch;
use crate::request::group::{RequestBuffers, StripeGroup};
use crate::request::update::RowUpdate;
use crate::row::slab::SlotAddress;
use crate::stripe::Stripe;
use crate::stripe_changes::StripeChanges;
use crate::{PushReport, PushStep, Table, WeightType};

/// Rows that pass through one stage together. A stage uses the memory that the stage before prefetched 16 rows earlier.
/// A core waits for about 16 cache misses at once.
const STEP: usize = 16;

/// What a request does with each row.
trait RowVisitor {
    /// How many words of a row it needs.
    fn words(&self) -> usize;

    /// Prefetches what it reads besides the row. Memory that is only written needs no prefetch: the store buffer hides
    /// the miss, and prefetching it made lookups no faster.
    #[inline(always)]
    fn prefetch(&self, _position: u32) {}

    /// Returns the slot of a row that [`Stripe::peek`] did not find. `None` if there is no row.
    fn find_slot(&mut self, stripe: &mut Stripe, key: u64, position: u32) -> Option<u32>;

    /// Reads or changes a row.
    fn use_row(&mut self, stripe: &mut Stripe, place: SlotAddress, key: u64, position: u32);
}

/// Copies weights, and creates missing rows.
struct TrainingLookup<'a> {
    table: &'a Table,
    layout: RowLayout,
    out: &'a mut [f32],
    made: u64,
}

/// Copies weights, and notes the positions of missing rows.
struct ReadingLookup<'a> {
    layout: RowLayout,
    out: &'a mut [f32],
    missing: &'a mut Vec<u32>,
}

/// Applies gradients, and creates missing rows.
struct GradientPush<'a> {
    table: &'a Table,
    layout: RowLayout,
    update: RowUpdate<'a>,
    gradients: &'a [f32],
    made: u64,
}

/// Copies whole rows in, and adds missing ones.
struct RestoredRows<'a> {
    slots: &'a [u32],
    stride: usize,
}

impl Table {
    /// Replaces the rows of a group by `slots`, row-major in the order of the request, or adds them.
    pub(crate) fn put_group(&self, stripe: &mut Stripe, group: &mut StripeGroup<'_>, slots: &[u32]) {
        pipelined(stripe, group, &mut RestoredRows { slots, stride: self.stride() });
    }

    #[inline(always)]
    pub(crate) fn lookup_for_training(&self, ids: &[u64], out: &mut [f32], scratch: &mut RequestBuffers) -> u64 {
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
    pub(crate) fn lookup_for_reading(&self, ids: &[u64], out: &mut [f32], scratch: &mut RequestBuffers) -> u64 {
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
    pub(crate) fn update_groups(&self, gradients: &[f32], step: PushStep, scratch: &mut RequestBuffers) -> PushReport {
        let mut report = PushReport::default();
        let mut buffer = std::mem::take(&mut scratch.weights);
        let (mut changes, origin, is_logged) = (std::mem::take(&mut scratch.changes), scratch.origin, self.is_logged());
        let logs_steps = self.logs_steps(step);
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
                        stripe.mark_all(group.places);
                        if is_logged {
                            changes.origin = origin;
                            self.log_group(stripe, group, logs_steps, &mut changes);
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
    fn log_group(&self, stripe: &Stripe, group: &StripeGroup<'_>, logs_steps: bool, changes: &mut StripeChanges) {
        for index in 0..group.keys.len() {
            changes.note_row(group.keys[index], stripe.at(group.places[index]), None);
        }
        if logs_steps {
            group.keys.iter().for_each(|key| stripe.step_rows.read(*key, &mut changes.step_rows));
        }
        self.append_changes(stripe.number, changes);
    }

    #[inline(always)]
    pub(crate) fn for_each_group(
        &self,
        scratch: &mut RequestBuffers,
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
    fn find_slot(&mut self, stripe: &mut Stripe, key: u64, _: u32) -> Option<u32> {
        let (slot, created) = find_or_create(stripe, key, self.table);
        self.made += u64::from(created);
        Some(slot)
    }

    #[inline(always)]
    fn use_row(&mut self, stripe: &mut Stripe, place: SlotAddress, _: u64, position: u32) {
        self.layout.read(stripe.at(place), row_mut(self.out, position, self.layout.dim));
    }
}

impl RowVisitor for ReadingLookup<'_> {
    #[inline(always)]
    fn words(&self) -> usize {
        self.layout.weights
    }

    #[inline(always)]
    fn find_slot(&mut self, stripe: &mut Stripe, key: u64, position: u32) -> Option<u32> {
        let slot = find(stripe, key);
        if slot.is_none() {
            self.missing.push(position);
        }
        slot
    }

    #[inline(always)]
    fn use_row(&mut self, stripe: &mut Stripe, place: SlotAddress, _: u64, position: u32) {
        self.layout.read(stripe.at(place), row_mut(self.out, position, self.layout.dim));
    }
}

impl RowVisitor for GradientPush<'_> {
    #[inline(always)]
    fn words(&self) -> usize {
        self.layout.stride
    }

    #[inline(always)]
    fn prefetch(&self, position: u32) {
        prefetch(row(self.gradients, position, self.layout.dim));
    }

    #[inline(always)]
    fn find_slot(&mut self, stripe: &mut Stripe, key: u64, _: u32) -> Option<u32> {
        let (slot, created) = find_or_create(stripe, key, self.table);
        self.made += u64::from(created);
        Some(slot)
    }

    #[inline(always)]
    fn use_row(&mut self, stripe: &mut Stripe, place: SlotAddress, key: u64, position: u32) {
        stripe.update(place, key, &mut self.update, row(self.gradients, position, self.layout.dim));
    }
}

impl RowVisitor for RestoredRows<'_> {
    #[inline(always)]
    fn words(&self) -> usize {
        self.stride
    }

    #[inline(always)]
    fn find_slot(&mut self, stripe: &mut Stripe, key: u64, _: u32) -> Option<u32> {
        Some(stripe.find_or_add(key))
    }

    #[inline(always)]
    fn use_row(&mut self, stripe: &mut Stripe, place: SlotAddress, _: u64, position: u32) {
        stripe.at_mut(place).copy_from_slice(row(self.slots, position, self.stride));
    }
}

/// Not inlined, because few rows get here. It takes no reference to the visitor, so the compiler keeps the visitor's
/// layout constant.
#[inline(never)]
fn find_or_create(stripe: &mut Stripe, key: u64, table: &Table) -> (u32, bool) {
    stripe.find_or_create(key, table.layout())
}

/// Not inlined, as [`find_or_create`].
#[inline(never)]
fn find(stripe: &Stripe, key: u64) -> Option<u32> {
    stripe.find(key)
}

/// Calls `work` with the layout. The commonest widths become constants, so the compiler unrolls loops over a row.
#[inline(always)]
fn with_known_width(layout: RowLayout, mut work: impl FnMut(RowLayout)) {
    match (layout.element, layout.dim) {
        (WeightType::F32, 16) => work(known::<16>(layout)),
        (WeightType::F32, 32) => work(known::<32>(layout)),
        (WeightType::F32, 64) => work(known::<64>(layout)),
        (WeightType::F32, 128) => work(known::<128>(layout)),
        _ => work(layout),
    }
}

/// The same layout, with `DIM` f32 weights as a constant. The caller checked that the layout has them.
#[inline(always)]
fn known<const DIM: usize>(mut layout: RowLayout) -> RowLayout {
    (layout.element, layout.dim, layout.weights) = (WeightType::F32, DIM, DIM);
    layout
}

/// Takes the rows of a group through four stages, [`STEP`] rows at a time. While memory is fetched for some rows, the
/// core works on others:
///
/// 1. Prefetch the index entry.
/// 2. Search the home bucket, and prefetch the slot.
/// 3. Find or create the rows that the home bucket does not have.
/// 4. Read or change the rows.
#[inline(always)]
fn pipelined(stripe: &mut Stripe, group: &mut StripeGroup<'_>, work: &mut impl RowVisitor) {
    let (count, words) = (group.keys.len(), work.words());
    group.places.resize(count, SlotAddress::NONE);
    let (keys, positions, places) = (group.keys, &group.positions[..count], &mut group.places[..count]);
    let steps = count.div_ceil(STEP);
    let rows = |step: usize| step * STEP..count.min(step * STEP + STEP);
    // Loops, not `for_each`: its closure would not be compiled for wide vectors.
    for step in 0..steps + 3 {
        if step < steps {
            for index in rows(step) {
                stripe.prefetch_entry(keys[index]);
            }
        }
        if (1..=steps).contains(&step) {
            for index in rows(step - 1) {
                places[index] = stripe.peek(keys[index], words);
                work.prefetch(positions[index]);
            }
        }
        if (2..=steps + 1).contains(&step) {
            for index in rows(step - 2) {
                if places[index].is_none()
                    && let Some(slot) = work.find_slot(stripe, keys[index], positions[index])
                {
                    places[index] = stripe.place(slot, words);
                }
            }
        }
        if step >= 3 {
            for index in rows(step - 3) {
                if !places[index].is_none() {
                    work.use_row(stripe, places[index], keys[index], positions[index]);
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
