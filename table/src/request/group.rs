//! The ids of one request, grouped by stripe with a counting sort. The caller keeps the buffers.
//!
//! ```text
//! ids of the request      17   4   9   8   3
//! stripe of their keys     1   0   1   0   1
//! keys, by stripe        │ 4 8 │ 17 9 3 │        the order of the request is kept within a stripe
//! positions              │ 1 3 │  0 2 4 │        the position of the id in the request
//! ends                         2        5
//! ```
//!
//! Ids that come in the order of their stripes are not sorted again: their positions are 0, 1, 2, …, so
//! answers are written and gradients are read in the order of memory.

use crate::PushOrigin;
use crate::key::{key_of, stripe_of};
use crate::request::RequestDeadline;
use crate::request::repeated_ids::SeenKeys;
use crate::row::slab::SlotAddress;
use crate::tier::page_in_rows::PageIn;
use crate::update_log::StripeChanges;

/// Stripes that a request holds at once: one for each stage of the walk over its rows.
pub(crate) const HELD: usize = 4;

/// Page-in buffers larger than this many bytes are freed after a request.
const PAGE_IN_KEPT: usize = 128 << 10;

/// The buffers of one request. A caller that passes them to the next request avoids allocations per row.
#[derive(Debug, Default)]
pub struct RequestBuffers {
    pub(crate) deadline: RequestDeadline,
    /// Key of each id, in the order of the request. Unused if the ids came in the order of their stripes.
    hashed: Vec<u64>,
    /// Key of each id, grouped by stripe. Within a stripe the order is that of the request.
    keys: Vec<u64>,
    /// Position of each key's id in the request.
    order: Vec<u32>,
    /// The numbers from 0 on: the positions of ids that came in the order of their stripes.
    ascending: Vec<u32>,
    came: IdOrder,
    /// Where each stripe ends in `keys` and `order`.
    ends: Vec<u32>,
    /// Addresses of the rows of the current stripe.
    places: Vec<SlotAddress>,
    /// Addresses of the rows of each stripe that is held.
    held_places: [Vec<SlotAddress>; HELD],
    /// Positions of ids without a row.
    pub(crate) missing: Vec<u32>,
    /// Page-in buffers, for calls that page rows in.
    pub(crate) page_ins: Vec<PageIn>,
    pub(crate) seen: SeenKeys,
    /// The weights of a narrow row during an update.
    pub(crate) weights: Vec<f32>,
    pub(crate) origin: Option<PushOrigin>,
    /// Rows of the present stripe, on their way to the log.
    pub(crate) changes: StripeChanges,
}

impl RequestBuffers {
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps page-in buffers for the next request, unless they are large. Each table of a push has its own.
    pub(crate) fn keep_page_in(&mut self, page_in: PageIn) {
        if page_in.memory_bytes() <= PAGE_IN_KEPT {
            self.page_ins.push(page_in);
        }
    }

    /// Groups at most `u32::MAX` ids into `stripes` groups. `stripes` is a power of two.
    #[inline(always)]
    pub(crate) fn group_ids(&mut self, ids: &[u64], stripes: usize) {
        let count = ids.len();
        self.ends.clear();
        self.ends.resize(stripes, 0);
        // This request overwrites everything that an earlier request left in the buffers.
        self.keys.resize(count, 0);
        let keys = &mut self.keys[..count];
        for index in 0..count {
            keys[index] = key_of(ids[index]);
        }
        if take_ends(keys, &mut self.ends) {
            self.came = IdOrder::Stripes;
            self.ascending.extend(self.ascending.len() as u32..count as u32);
        } else {
            self.came = IdOrder::Any;
            std::mem::swap(&mut self.keys, &mut self.hashed);
            self.sort(stripes);
        }
    }

    #[inline(always)]
    fn sort(&mut self, stripes: usize) {
        let count = self.hashed.len();
        self.keys.resize(count, 0);
        self.order.resize(count, 0);
        let (ends, hashed) = (&mut self.ends[..stripes], &self.hashed[..count]);
        ends.fill(0);
        hashed.iter().for_each(|key| ends[stripe_of(*key, stripes)] += 1);
        let mut start = 0;
        for end in &mut *ends {
            start += std::mem::replace(end, start);
        }
        // Each entry of `ends` is the start of its stripe now. It moves to the end as keys are written.
        let (keys, order) = (&mut self.keys[..count], &mut self.order[..count]);
        for (position, key) in hashed.iter().enumerate() {
            let next = &mut ends[stripe_of(*key, stripes)];
            keys[*next as usize] = *key;
            order[*next as usize] = position as u32;
            *next += 1;
        }
    }

    /// All groups, and a buffer of addresses for each stripe that is held.
    #[inline(always)]
    pub(crate) fn grouped_ids(&mut self) -> (GroupedIds<'_>, &mut [Vec<SlotAddress>; HELD]) {
        let positions = match self.came {
            IdOrder::Stripes => &self.ascending[..self.keys.len()],
            IdOrder::Any => &self.order[..self.keys.len()],
        };
        (GroupedIds { keys: &self.keys, positions, ends: &self.ends }, &mut self.held_places)
    }

    #[inline(always)]
    pub(crate) fn has_repeats(&mut self) -> bool {
        self.seen.has_repeats(&self.keys, &self.ends)
    }

    /// Takes ids as the group of one stripe. `None` if one of them is of another stripe.
    pub(crate) fn group_of_stripe(&mut self, ids: &[u64], stripe: usize, stripes: usize) -> Option<StripeGroup<'_>> {
        self.keys.clear();
        self.keys.extend(ids.iter().map(|id| key_of(*id)));
        self.order.clear();
        self.order.extend(0..ids.len() as u32);
        let are_of_it = self.keys.iter().all(|key| stripe_of(*key, stripes) == stripe);
        are_of_it.then_some(StripeGroup { keys: &self.keys, positions: &self.order, places: &mut self.places })
    }

    #[inline]
    pub(crate) fn stripe_group(&mut self, stripe: usize) -> StripeGroup<'_> {
        let start = if stripe == 0 { 0 } else { self.ends[stripe - 1] };
        let range = start as usize..self.ends[stripe] as usize;
        let positions = match self.came {
            IdOrder::Stripes => &self.ascending[range.clone()],
            IdOrder::Any => &self.order[range.clone()],
        };
        StripeGroup { keys: &self.keys[range], positions, places: &mut self.places }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum IdOrder {
    #[default]
    Any,
    /// The order of their stripes.
    Stripes,
}

/// Notes where each stripe ends, if the keys are in the order of their stripes. Otherwise it soon returns false.
#[inline(always)]
fn take_ends(keys: &[u64], ends: &mut [u32]) -> bool {
    let (stripes, mut place) = (ends.len(), 0);
    for (stripe, end) in ends.iter_mut().enumerate() {
        while place < keys.len() && stripe_of(keys[place], stripes) == stripe {
            place += 1;
        }
        *end = place as u32;
    }
    place == keys.len()
}

/// The ids of a request, stripe after stripe.
pub(crate) struct GroupedIds<'a> {
    pub(crate) keys: &'a [u64],
    /// Positions of the ids in the request, `[keys.len()]`.
    pub(crate) positions: &'a [u32],
    pub(crate) ends: &'a [u32],
}

/// The ids of a request in one stripe, and buffers for them.
pub(crate) struct StripeGroup<'a> {
    pub(crate) keys: &'a [u64],
    /// Positions of the ids in the request, `[keys.len()]`.
    pub(crate) positions: &'a [u32],
    /// Buffer for the addresses of the rows, in the same order.
    pub(crate) places: &'a mut Vec<SlotAddress>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zagros_zip::ZipEq;

    use super::*;

    proptest! {
        #[test]
        fn every_position_is_in_its_stripes_group_once(ids: Vec<u64>, bits in 0_u32..8) {
            let stripes = 1 << bits;
            let mut scratch = RequestBuffers::new();
            // An earlier request leaves old values in the buffers. They must not matter.
            scratch.group_ids(&[1, 2, 3, 4, 5], 16);
            scratch.group_ids(&ids, stripes);
            let mut positions = Vec::new();
            for stripe in 0..stripes {
                let group = scratch.stripe_group(stripe);
                prop_assert!(group.positions.is_sorted(), "request order is kept inside a stripe");
                prop_assert_eq!(group.positions.len(), group.keys.len());
                for (position, key) in group.positions.iter().zip_eq(group.keys) {
                    prop_assert_eq!(*key, key_of(ids[*position as usize]));
                    prop_assert_eq!(stripe_of(*key, stripes), stripe);
                }
                positions.extend_from_slice(group.positions);
            }
            positions.sort_unstable();
            prop_assert_eq!(positions, (0..ids.len() as u32).collect::<Vec<_>>());
        }

        /// Ids in the order of their stripes keep their positions. Any swap across stripes is noticed.
        #[test]
        fn ids_in_the_order_of_their_stripes_are_not_sorted_again(
            ids in prop::collection::vec(any::<u64>(), 0..200),
            bits in 0_u32..8,
            swap: (prop::sample::Index, prop::sample::Index),
        ) {
            let stripes = 1 << bits;
            let stripe = |id: &u64| stripe_of(key_of(*id), stripes);
            let mut ids = ids;
            ids.sort_by_key(stripe);
            let mut scratch = RequestBuffers::new();
            scratch.group_ids(&ids, stripes);
            prop_assert_eq!(scratch.came, IdOrder::Stripes);
            prop_assert!(scratch.grouped_ids().0.positions.iter().copied().eq(0..ids.len() as u32));
            if !ids.is_empty() {
                let (first, second) = (swap.0.index(ids.len()), swap.1.index(ids.len()));
                ids.swap(first, second);
            }
            scratch.group_ids(&ids, stripes);
            prop_assert_eq!(scratch.came == IdOrder::Stripes, ids.is_sorted_by_key(stripe));
            let (grouped, _) = scratch.grouped_ids();
            for (key, position) in grouped.keys.iter().zip_eq(grouped.positions) {
                prop_assert_eq!(*key, key_of(ids[*position as usize]));
            }
            prop_assert!(grouped.keys.is_sorted_by_key(|key| stripe_of(*key, stripes)));
        }
    }

    #[test]
    fn sequential_ids_spread_over_the_stripes() {
        let mut scratch = RequestBuffers::new();
        let ids: Vec<u64> = (0..64_000).collect();
        scratch.group_ids(&ids, 64);
        let sizes: Vec<usize> = (0..64).map(|stripe| scratch.stripe_group(stripe).positions.len()).collect();
        // The size is binomial with mean 1000 and standard deviation 31.
        assert!(sizes.iter().all(|size| (800..1200).contains(size)), "{sizes:?}");
    }
}
