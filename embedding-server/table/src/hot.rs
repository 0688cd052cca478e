//! The loops over the rows of a request, stripe by stripe: where a server's time goes.

use crate::config::Layout;
use crate::group::{Group, Scratch};
use crate::prefetch::prefetch;
use crate::slab::Place;
use crate::stripe::Stripe;
use crate::update::Update;
use crate::{Element, PushReport, Table};

/// Rows that go through one stage together. What is asked for in one stage is used in the next, some 16 rows later: as
/// many misses as a core waits for at once.
const STEP: usize = 16;

impl Table {
    #[inline(always)]
    pub(crate) fn lookup_for_training(&self, ids: &[u64], out: &mut [f32], scratch: &mut Scratch) -> u64 {
        let mut made = 0;
        scratch.group(ids, self.stripes());
        with_known_width(
            *self.layout(),
            #[inline(always)]
            |layout| {
                self.for_each_group(
                    scratch,
                    #[inline(always)]
                    |stripe, group| {
                        let before = made;
                        let mut settle = |stripe: &mut Stripe, key, _| {
                            let (slot, created) = stripe.find_or_create(key, self.layout());
                            made += u64::from(created);
                            Some(slot)
                        };
                        pipelined(
                            stripe,
                            group,
                            Fetch { words: layout.weights, with: &[], width: 0 },
                            &mut settle,
                            #[inline(always)]
                            |stripe, place, _, position| {
                                layout.read(stripe.at(place), row_mut(out, position, layout.dim));
                            },
                        );
                        stripe.count_lookups(group.keys.len(), (made - before) as usize);
                    },
                );
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
        self.for_each_group(
            scratch,
            #[inline(always)]
            |stripe, group| {
                let before = missing.len();
                let mut settle = |stripe: &mut Stripe, key, position| {
                    let slot = stripe.find(key);
                    if slot.is_none() {
                        missing.push(position);
                    }
                    slot
                };
                pipelined(
                    stripe,
                    group,
                    Fetch { words: layout.weights, with: &[], width: 0 },
                    &mut settle,
                    #[inline(always)]
                    |stripe, place, _, position| {
                        layout.read(stripe.at(place), row_mut(out, position, layout.dim));
                    },
                );
                stripe.count_lookups(group.keys.len(), missing.len() - before);
            },
        );
        for position in &missing {
            layout.fill_weights(ids[*position as usize], row_mut(out, *position, layout.dim));
        }
        scratch.missing = missing;
        scratch.missing.len() as u64
    }

    #[inline(always)]
    pub(crate) fn update_groups(&self, gradients: &[f32], step: u64, scratch: &mut Scratch) -> PushReport {
        let mut report = PushReport::default();
        let mut buffer = std::mem::take(&mut scratch.weights);
        with_known_width(
            *self.layout(),
            #[inline(always)]
            |layout| {
                let mut update = Update::new(layout, step, &mut buffer);
                self.for_each_group(
                    scratch,
                    #[inline(always)]
                    |stripe, group| {
                        if stripe.captures() {
                            stripe.keep_all(group.keys);
                        }
                        report.updated += group.keys.len() as u64;
                        let mut settle = |stripe: &mut Stripe, key, _| {
                            let (slot, created) = stripe.find_or_create(key, self.layout());
                            report.created += u64::from(created);
                            Some(slot)
                        };
                        pipelined(
                            stripe,
                            group,
                            Fetch { words: layout.stride, with: gradients, width: layout.dim },
                            &mut settle,
                            #[inline(always)]
                            |stripe, place, key, position| {
                                update.apply(stripe.at_mut(place), key, row(gradients, position, layout.dim));
                            },
                        );
                    },
                );
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

/// Calls `work` with the layout, as a constant where it is one of the commonest: loops over rows of known width need no
/// counting.
#[inline(always)]
fn with_known_width(layout: Layout, mut work: impl FnMut(Layout)) {
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
fn known<const DIM: usize>(mut layout: Layout) -> Layout {
    (layout.element, layout.dim, layout.weights) = (Element::F32, DIM, DIM);
    layout
}

/// What is needed for a row besides its index entry.
#[derive(Clone, Copy)]
struct Fetch<'a> {
    /// So many words of its slot.
    words: usize,
    /// And of these, the `width` values that stand at its position.
    with: &'a [f32],
    width: usize,
}

/// Takes the rows of a group through four stages, a few at a time, each few one stage behind the few after them: while
/// memory is fetched for some rows, others are worked on.
///
/// 1. Ask for the index entry.
/// 2. Look where the entry should be, and ask for the slot.
/// 3. `settle(stripe, key, position)` for rows that were not found there: their slot, if they have one.
/// 4. `touch(stripe, place, key, position)` for rows that have one.
#[inline(always)]
fn pipelined(
    stripe: &mut Stripe,
    group: &mut Group<'_>,
    fetch: Fetch<'_>,
    settle: &mut impl FnMut(&mut Stripe, u64, u32) -> Option<u32>,
    mut touch: impl FnMut(&mut Stripe, Place, u64, u32),
) {
    let count = group.keys.len();
    group.places.resize(count, Place::NONE);
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
                places[index] = stripe.peek(keys[index], fetch.words);
                if fetch.width > 0 {
                    prefetch(row(fetch.with, positions[index], fetch.width));
                }
            }
        }
        if (2..=steps + 1).contains(&step) {
            for index in rows(step - 2) {
                if places[index].is_none()
                    && let Some(slot) = settle(stripe, keys[index], positions[index])
                {
                    places[index] = stripe.place(slot, fetch.words);
                }
            }
        }
        if step >= 3 {
            for index in rows(step - 3) {
                if !places[index].is_none() {
                    touch(stripe, places[index], keys[index], positions[index]);
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
