//! The loops over the rows of a request, stripe by stripe: where a server's time goes.

use crate::group::{Group, Scratch};
use crate::prefetch::prefetch;
use crate::stripe::Stripe;
use crate::update::Update;
use crate::{PushReport, Table};

/// Rows that go through one stage together: more than a core can wait for at once, few enough for its first cache.
const AT_ONCE: usize = 64;
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
                let before = made;
                group.slots.clear();
                staged(
                    group.keys.len(),
                    #[inline(always)]
                    |stage, index| match stage {
                        Stage::Ask => stripe.prefetch_entry(group.keys[index]),
                        Stage::Find => {
                            let (slot, created) = stripe.find_or_create(group.keys[index], &layout);
                            made += u64::from(created);
                            group.slots.push(slot);
                        }
                        Stage::Fetch => stripe.prefetch_slot(group.slots[index], layout.weights),
                        Stage::Touch => {
                            let weights = row_mut(out, group.positions[index], layout.dim);
                            layout.read(stripe.slot(group.slots[index]), weights);
                        }
                    },
                );
                stripe.count_lookups(group.keys.len(), (made - before) as usize);
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
                let before = group.missing.len();
                group.slots.clear();
                staged(
                    group.keys.len(),
                    #[inline(always)]
                    |stage, index| match stage {
                        Stage::Ask => stripe.prefetch_entry(group.keys[index]),
                        Stage::Find => {
                            let slot = stripe.find(group.keys[index]).unwrap_or(NONE);
                            if slot == NONE {
                                group.missing.push(group.positions[index]);
                            }
                            group.slots.push(slot);
                        }
                        Stage::Fetch | Stage::Touch if group.slots[index] == NONE => {}
                        Stage::Fetch => stripe.prefetch_slot(group.slots[index], layout.weights),
                        Stage::Touch => {
                            let weights = row_mut(out, group.positions[index], layout.dim);
                            layout.read(stripe.slot(group.slots[index]), weights);
                        }
                    },
                );
                stripe.count_lookups(group.keys.len(), group.missing.len() - before);
            },
        );
        for position in &scratch.missing {
            layout.fill_weights(ids[*position as usize], row_mut(out, *position, layout.dim));
        }
        scratch.missing.len() as u64
    }

    #[inline(always)]
    pub(crate) fn update_groups(&self, gradients: &[f32], step: u64, scratch: &mut Scratch) -> PushReport {
        let (layout, mut report) = (*self.layout(), PushReport::default());
        let mut buffer = std::mem::take(&mut scratch.weights);
        let mut update = Update::new(layout, step, &mut buffer);
        self.for_each_group(
            scratch,
            #[inline(always)]
            |stripe, group| {
                if stripe.captures() {
                    stripe.keep_all(group.keys);
                }
                group.slots.clear();
                staged(
                    group.keys.len(),
                    #[inline(always)]
                    |stage, index| match stage {
                        Stage::Ask => stripe.prefetch_entry(group.keys[index]),
                        Stage::Find => {
                            let (slot, created) = stripe.find_or_create(group.keys[index], &layout);
                            report.created += u64::from(created);
                            group.slots.push(slot);
                        }
                        Stage::Fetch => {
                            stripe.prefetch_slot(group.slots[index], layout.stride);
                            prefetch(row(gradients, group.positions[index], layout.dim));
                        }
                        Stage::Touch => {
                            let gradient = row(gradients, group.positions[index], layout.dim);
                            update.apply(stripe.slot_mut(group.slots[index]), group.keys[index], gradient);
                        }
                    },
                );
                report.updated += group.keys.len() as u64;
            },
        );
        scratch.weights = buffer;
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
    /// Find its slot.
    Find,
    /// Ask for its slot.
    Fetch,
    /// Read or change it.
    Touch,
}

/// Takes `count` rows through all stages, some at a time. Each stage is a loop of its own and short: a request for
/// memory waits for its page to be found, and only in a short loop do many of them wait together.
#[inline(always)]
fn staged(count: usize, mut run: impl FnMut(Stage, usize)) {
    for start in (0..count).step_by(AT_ONCE) {
        let end = count.min(start + AT_ONCE);
        // Loops and not `for_each`, whose body would not be compiled for wide vectors.
        for index in start..end {
            run(Stage::Ask, index);
        }
        for index in start..end {
            run(Stage::Find, index);
        }
        for index in start..end {
            run(Stage::Fetch, index);
        }
        for index in start..end {
            run(Stage::Touch, index);
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
