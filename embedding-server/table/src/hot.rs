//! The loops over the rows of a request, stripe by stripe: where a server's time goes.

use crate::group::{Group, Scratch};
use crate::prefetch::prefetch;
use crate::stripe::Stripe;
use crate::{PushReport, Table};

/// Rows that go through one stage together. What is asked for in one stage is used in the next, some 16 rows later.
const STEP: usize = 16;
/// Values of the widest vector that every x86-64 of the last ten years has.
const LANES: usize = 8;
/// No slot has this number.
const NONE: u32 = u32::MAX;

impl Table {
    #[inline(always)]
    pub(crate) fn lookup_for_training(&self, ids: &[u64], out: &mut [f32], scratch: &mut Scratch) -> u64 {
        let (layout, mut made) = (*self.layout(), 0);
        scratch.group(ids, self.stripes());
        self.for_each_group(
            scratch,
            #[inline(always)]
            |stripe, group| {
                group.slots.resize(group.keys.len(), NONE);
                pipelined(
                    group.keys.len(),
                    #[inline(always)]
                    |stage, index| match stage {
                        Stage::Ask => stripe.prefetch_entry(group.keys[index]),
                        Stage::Peek => group.slots[index] = ask_slot(stripe, group.keys[index], layout.dim),
                        Stage::Settle if group.slots[index] != NONE => {}
                        Stage::Settle => {
                            let (slot, created) = stripe.find_or_create(group.keys[index], &layout);
                            made += u64::from(created);
                            group.slots[index] = slot;
                            stripe.prefetch_slot(slot, layout.dim);
                        }
                        Stage::Touch => {
                            let weights = &stripe.slot(group.slots[index])[..layout.dim];
                            copy(weights, row_mut(out, group.positions[index], layout.dim));
                        }
                    },
                );
            },
        );
        made
    }

    #[inline(always)]
    pub(crate) fn lookup_for_reading(&self, ids: &[u64], out: &mut [f32], scratch: &mut Scratch) -> u64 {
        let layout = *self.layout();
        scratch.missing.clear();
        scratch.group(ids, self.stripes());
        self.for_each_group(
            scratch,
            #[inline(always)]
            |stripe, group| {
                group.slots.resize(group.keys.len(), NONE);
                pipelined(
                    group.keys.len(),
                    #[inline(always)]
                    |stage, index| match stage {
                        Stage::Ask => stripe.prefetch_entry(group.keys[index]),
                        Stage::Peek => group.slots[index] = ask_slot(stripe, group.keys[index], layout.dim),
                        Stage::Settle if group.slots[index] != NONE => {}
                        Stage::Settle => match stripe.find(group.keys[index]) {
                            Some(slot) => {
                                group.slots[index] = slot;
                                stripe.prefetch_slot(slot, layout.dim);
                            }
                            None => group.missing.push(group.positions[index]),
                        },
                        Stage::Touch if group.slots[index] == NONE => {}
                        Stage::Touch => {
                            let weights = &stripe.slot(group.slots[index])[..layout.dim];
                            copy(weights, row_mut(out, group.positions[index], layout.dim));
                        }
                    },
                );
            },
        );
        for position in &scratch.missing {
            layout.fill_weights(ids[*position as usize], row_mut(out, *position, layout.dim));
        }
        scratch.missing.len() as u64
    }

    #[inline(always)]
    pub(crate) fn update_groups(&self, gradients: &[f32], scratch: &mut Scratch) -> PushReport {
        let (layout, mut report) = (*self.layout(), PushReport::default());
        self.for_each_group(
            scratch,
            #[inline(always)]
            |stripe, group| {
                group.slots.resize(group.keys.len(), NONE);
                pipelined(
                    group.keys.len(),
                    #[inline(always)]
                    |stage, index| match stage {
                        Stage::Ask => stripe.prefetch_entry(group.keys[index]),
                        Stage::Peek => {
                            group.slots[index] = ask_slot(stripe, group.keys[index], layout.stride);
                            prefetch(row(gradients, group.positions[index], layout.dim));
                        }
                        Stage::Settle if group.slots[index] != NONE => {}
                        Stage::Settle => {
                            let (slot, created) = stripe.find_or_create(group.keys[index], &layout);
                            report.created += u64::from(created);
                            group.slots[index] = slot;
                            stripe.prefetch_slot(slot, layout.stride);
                        }
                        Stage::Touch => {
                            let gradient = row(gradients, group.positions[index], layout.dim);
                            layout.update(stripe.slot_mut(group.slots[index]), gradient);
                        }
                    },
                );
                report.updated += group.keys.len() as u64;
            },
        );
        report
    }

    #[inline(always)]
    pub(crate) fn for_each_group(&self, scratch: &mut Scratch, mut work: impl FnMut(&mut Stripe, &mut Group<'_>)) {
        for stripe in 0..self.stripes() {
            let mut group = scratch.at(stripe);
            if !group.keys.is_empty() {
                work(&mut self.lock(stripe), &mut group);
            }
        }
    }
}

/// What is done for a row.
#[derive(Clone, Copy)]
enum Stage {
    /// Ask for its index entry.
    Ask,
    /// Look where the entry should be, and ask for the slot.
    Peek,
    /// Find it, or make it, if it was not there.
    Settle,
    /// Read or change it.
    Touch,
}

/// Takes `count` rows through all stages, a few at a time, each few one stage behind the few after them: while memory
/// is fetched for some rows, others are worked on.
#[inline(always)]
fn pipelined(count: usize, mut run: impl FnMut(Stage, usize)) {
    let steps = count.div_ceil(STEP);
    let rows = |step: usize| step * STEP..count.min(step * STEP + STEP);
    for step in 0..steps + 3 {
        // Loops and not `for_each`, whose body would not be compiled for wide vectors.
        if step < steps {
            for index in rows(step) {
                run(Stage::Ask, index);
            }
        }
        if (1..=steps).contains(&step) {
            for index in rows(step - 1) {
                run(Stage::Peek, index);
            }
        }
        if (2..=steps + 1).contains(&step) {
            for index in rows(step - 2) {
                run(Stage::Settle, index);
            }
        }
        if step >= 3 {
            for index in rows(step - 3) {
                run(Stage::Touch, index);
            }
        }
    }
}

/// The slot of a key if it is found at once, and asks for the memory of its first `values`.
#[inline(always)]
fn ask_slot(stripe: &Stripe, key: u64, values: usize) -> u32 {
    let slot = stripe.peek(key);
    if let Some(slot) = slot {
        stripe.prefetch_slot(slot, values);
    }
    slot.unwrap_or(NONE)
}

/// Copies in vectors of known length: rows are too short for a call of `memcpy`.
#[inline(always)]
fn copy(from: &[f32], to: &mut [f32]) {
    let ((from, from_rest), (to, to_rest)) = (from.as_chunks::<LANES>(), to.as_chunks_mut::<LANES>());
    for (from, to) in std::iter::zip(from, to) {
        *to = *from;
    }
    for (from, to) in std::iter::zip(from_rest, to_rest) {
        *to = *from;
    }
}

#[inline(always)]
pub(crate) fn row(values: &[f32], position: u32, width: usize) -> &[f32] {
    &values[position as usize * width..][..width]
}

#[inline(always)]
pub(crate) fn row_mut(values: &mut [f32], position: u32, width: usize) -> &mut [f32] {
    &mut values[position as usize * width..][..width]
}
