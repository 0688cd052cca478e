//! The loops over the rows of a request, stripe by stripe. A server spends most of its time here.

use zagros_zip::ZipEq;

use crate::config::RowLayout;
use crate::machine::prefetch;
use crate::request::group::{RequestBuffers, StripeGroup};
use crate::request::update::RowUpdate;
use crate::request::walk::{RowVisitor, visit_group};
use crate::row::slab::SlotAddress;
use crate::stripe::Stripe;
use crate::update_log::StripeChanges;
use crate::{PushOrigin, PushReport, PushStep, Table, WeightType};

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
    /// `None` if the table has no log.
    log: Option<PushLog<'a>>,
    report: PushReport,
}

struct PushLog<'a> {
    changes: &'a mut StripeChanges,
    origin: Option<PushOrigin>,
    /// Whether what is kept until the end of the step is logged too.
    logs_steps: bool,
}

/// Copies whole rows in, and adds missing ones.
struct RestoredRows<'a> {
    slots: &'a [u32],
    stride: usize,
}

impl Table {
    /// Replaces the rows of a group by `slots`, row-major in the order of the request, or adds them.
    pub(crate) fn put_group(&self, stripe: &mut Stripe, group: &mut StripeGroup<'_>, slots: &[u32]) {
        visit_group(stripe, group, &mut RestoredRows { slots, stride: self.stride() });
    }

    #[inline(always)]
    pub(crate) fn lookup_for_training(&self, ids: &[u64], out: &mut [f32], scratch: &mut RequestBuffers) -> u64 {
        let mut made = 0;
        scratch.group_ids(ids, self.stripes());
        with_known_width(
            self.layout,
            #[inline(always)]
            |layout| {
                let mut work = TrainingLookup { table: self, layout, out: &mut *out, made: 0 };
                self.visit(scratch, &mut work);
                made = work.made;
            },
        );
        made
    }

    #[inline(always)]
    pub(crate) fn lookup_for_reading(&self, ids: &[u64], out: &mut [f32], scratch: &mut RequestBuffers) -> u64 {
        let layout = self.layout;
        let mut missing = std::mem::take(&mut scratch.missing);
        missing.clear();
        scratch.group_ids(ids, self.stripes());
        let mut work = ReadingLookup { layout, out: &mut *out, missing: &mut missing };
        self.visit(scratch, &mut work);
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
        let mut changes = std::mem::take(&mut scratch.changes);
        let (origin, is_logged, logs_steps) = (scratch.origin, self.is_logged(), self.logs_steps(step));
        with_known_width(
            self.layout,
            #[inline(always)]
            |layout| {
                let update = RowUpdate::new(layout, step, &mut buffer);
                let log = is_logged.then_some(PushLog { changes: &mut changes, origin, logs_steps });
                let mut work = GradientPush { table: self, layout, update, gradients, log, report };
                self.visit(scratch, &mut work);
                report = work.report;
            },
        );
        (scratch.weights, scratch.changes) = (buffer, changes);
        report
    }

    /// Appends the rows of a stripe to the log, after their change. They are in the cache still.
    #[inline(never)]
    fn log_rows(&self, stripe: &Stripe, keys: &[u64], places: &[SlotAddress], log: &mut PushLog<'_>) {
        log.changes.origin = log.origin;
        for (key, place) in keys.iter().zip_eq(places) {
            log.changes.note_row(*key, stripe.words_at(*place), None);
        }
        if log.logs_steps {
            keys.iter().for_each(|key| stripe.step_rows.read(*key, &mut log.changes.step_rows));
        }
        self.append_changes(stripe.number, log.changes);
    }

    #[inline(always)]
    pub(crate) fn for_each_group(
        &self,
        scratch: &mut RequestBuffers,
        mut work: impl FnMut(&mut Stripe, &mut StripeGroup<'_>),
    ) {
        for stripe in 0..self.stripes() {
            let mut group = scratch.stripe_group(stripe);
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
    fn begin(&mut self, stripe: &mut Stripe, keys: &[u64]) {
        stripe.count_lookups(keys.len(), 0);
    }

    #[inline(always)]
    fn find_slot(&mut self, stripe: &mut Stripe, key: u64, _: u32) -> Option<u32> {
        let (slot, created) = find_or_create(stripe, key, self.table);
        if created {
            stripe.was_miss();
            self.made += 1;
        }
        Some(slot)
    }

    #[inline(always)]
    fn use_row(&mut self, stripe: &mut Stripe, place: SlotAddress, _: u64, position: u32) {
        self.layout.read_weights(stripe.words_at(place), row_mut(self.out, position, self.layout.dim));
    }
}

impl RowVisitor for ReadingLookup<'_> {
    #[inline(always)]
    fn words(&self) -> usize {
        self.layout.weights
    }

    #[inline(always)]
    fn begin(&mut self, stripe: &mut Stripe, keys: &[u64]) {
        stripe.count_lookups(keys.len(), 0);
    }

    #[inline(always)]
    fn find_slot(&mut self, stripe: &mut Stripe, key: u64, position: u32) -> Option<u32> {
        let slot = find(stripe, key);
        if slot.is_none() {
            stripe.was_miss();
            self.missing.push(position);
        }
        slot
    }

    #[inline(always)]
    fn use_row(&mut self, stripe: &mut Stripe, place: SlotAddress, _: u64, position: u32) {
        self.layout.read_weights(stripe.words_at(place), row_mut(self.out, position, self.layout.dim));
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
    fn begin(&mut self, stripe: &mut Stripe, keys: &[u64]) {
        if stripe.is_captured() {
            stripe.preserve_all(keys);
        }
    }

    #[inline(always)]
    fn find_slot(&mut self, stripe: &mut Stripe, key: u64, _: u32) -> Option<u32> {
        let (slot, created) = find_or_create(stripe, key, self.table);
        self.report.created += u64::from(created);
        Some(slot)
    }

    #[inline(always)]
    fn use_row(&mut self, stripe: &mut Stripe, place: SlotAddress, key: u64, position: u32) {
        stripe.update(place, key, &mut self.update, row(self.gradients, position, self.layout.dim));
    }

    #[inline(always)]
    fn end(&mut self, stripe: &mut Stripe, keys: &[u64], places: &[SlotAddress]) {
        stripe.mark_all(places);
        self.report.updated += keys.len() as u64;
        if let Some(log) = &mut self.log {
            self.table.log_rows(stripe, keys, places, log);
        }
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
        stripe.words_at_mut(place).copy_from_slice(row(self.slots, position, self.stride));
    }
}

/// Not inlined, because few rows get here. It takes no reference to the visitor, so the compiler keeps the visitor's
/// layout constant.
#[inline(never)]
fn find_or_create(stripe: &mut Stripe, key: u64, table: &Table) -> (u32, bool) {
    stripe.find_or_create(key, &table.layout)
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

#[inline(always)]
pub(crate) fn row<T>(values: &[T], position: u32, width: usize) -> &[T] {
    &values[position as usize * width..][..width]
}

#[inline(always)]
pub(crate) fn row_mut(values: &mut [f32], position: u32, width: usize) -> &mut [f32] {
    &mut values[position as usize * width..][..width]
}
