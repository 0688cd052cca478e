//! The ids of one request, grouped by stripe with a counting sort. The caller keeps the buffers.
//!
//! ```text
//! ids of the request      17   4   9   8   3
//! stripe of their keys     1   0   1   0   1
//! keys, by stripe        │ 4 8 │ 17 9 3 │        the order of the request is kept within a stripe
//! positions              │ 1 3 │  0 2 4 │        the position of the id in the request
//! ends                         2        5
//! ```

use crate::PushOrigin;
use crate::key::{key_of, stripe_of};
use crate::request::deadline::RequestDeadline;
use crate::row::slab::SlotAddress;
use crate::stripe_changes::StripeChanges;
use crate::tier::page_in_rows::PageIn;

/// Page-in buffers larger than this many bytes are freed after a request.
const PAGE_IN_KEPT: usize = 128 << 10;

/// The buffers of one request. A caller that passes them to the next request avoids allocations per row.
#[derive(Debug, Default)]
pub struct RequestBuffers {
    /// The deadline of the present request.
    pub(crate) deadline: RequestDeadline,
    /// Key of each id, in the order of the request.
    hashed: Vec<u64>,
    /// Key of each id, grouped by stripe. Within a stripe the order is that of the request.
    keys: Vec<u64>,
    /// Position of each key's id in the request.
    order: Vec<u32>,
    /// Where each stripe ends in `keys` and `order`.
    ends: Vec<u32>,
    /// Addresses of the rows of the current stripe.
    places: Vec<SlotAddress>,
    /// Positions of ids without a row.
    pub(crate) missing: Vec<u32>,
    /// Page-in buffers, for calls that page rows in.
    pub(crate) page_ins: Vec<PageIn>,
    /// A small hash set, for the search for repeated ids.
    seen: Vec<u32>,
    /// The weights of a narrow row during an update.
    pub(crate) weights: Vec<f32>,
    /// The push in progress, for the log.
    pub(crate) origin: Option<PushOrigin>,
    /// Rows of the present stripe, on their way to the log.
    pub(crate) changes: StripeChanges,
}

impl RequestBuffers {
    /// Makes empty buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps page-in buffers for the next request, unless they are large. Each table of a push has its own.
    pub(crate) fn keep(&mut self, page_in: PageIn) {
        if page_in.bytes() <= PAGE_IN_KEPT {
            self.page_ins.push(page_in);
        }
    }

    /// Groups at most `u32::MAX` ids into `stripes` groups. `stripes` is a power of two.
    #[inline(always)]
    pub(crate) fn group(&mut self, ids: &[u64], stripes: usize) {
        let count = ids.len();
        self.ends.clear();
        self.ends.resize(stripes, 0);
        // This request overwrites everything that an earlier request left in the buffers.
        self.hashed.resize(count, 0);
        self.keys.resize(count, 0);
        self.order.resize(count, 0);
        let (ends, hashed) = (&mut self.ends[..stripes], &mut self.hashed[..count]);
        for index in 0..count {
            hashed[index] = key_of(ids[index]);
            ends[stripe_of(hashed[index], stripes)] += 1;
        }
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

    /// Takes ids as the group of one stripe. `None` if one of them is of another stripe.
    pub(crate) fn only(&mut self, ids: &[u64], stripe: usize, stripes: usize) -> Option<StripeGroup<'_>> {
        self.keys.clear();
        self.keys.extend(ids.iter().map(|id| key_of(*id)));
        self.order.clear();
        self.order.extend(0..ids.len() as u32);
        let are_of_it = self.keys.iter().all(|key| stripe_of(*key, stripes) == stripe);
        are_of_it.then_some(StripeGroup {
            keys: &self.keys,
            positions: &self.order,
            places: &mut self.places,
            seen: &mut self.seen,
        })
    }

    /// The group of one stripe.
    #[inline]
    pub(crate) fn at(&mut self, stripe: usize) -> StripeGroup<'_> {
        let start = if stripe == 0 { 0 } else { self.ends[stripe - 1] };
        let range = start as usize..self.ends[stripe] as usize;
        StripeGroup {
            keys: &self.keys[range.clone()],
            positions: &self.order[range],
            places: &mut self.places,
            seen: &mut self.seen,
        }
    }
}

/// The ids of a request in one stripe, and buffers for them.
pub(crate) struct StripeGroup<'a> {
    /// Keys of the ids.
    pub(crate) keys: &'a [u64],
    /// Positions of the ids in the request, `[keys.len()]`.
    pub(crate) positions: &'a [u32],
    /// Buffer for the addresses of the rows, in the same order.
    pub(crate) places: &'a mut Vec<SlotAddress>,
    /// Buffer for the search for repeated ids.
    pub(crate) seen: &'a mut Vec<u32>,
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
            scratch.group(&[1, 2, 3, 4, 5], 16);
            scratch.group(&ids, stripes);
            let mut positions = Vec::new();
            for stripe in 0..stripes {
                let group = scratch.at(stripe);
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
    }

    #[test]
    fn sequential_ids_spread_over_the_stripes() {
        let mut scratch = RequestBuffers::new();
        let ids: Vec<u64> = (0..64_000).collect();
        scratch.group(&ids, 64);
        let sizes: Vec<usize> = (0..64).map(|stripe| scratch.at(stripe).positions.len()).collect();
        // The size is binomial with mean 1000 and standard deviation 31.
        assert!(sizes.iter().all(|size| (800..1200).contains(size)), "{sizes:?}");
    }
}
