//! Ids of one request, grouped by stripe with a counting sort, in buffers that live as long as their owner likes.

use crate::row::slab::Place;
use crate::tier::visit::Visit;

/// Bytes of a visit that is kept from request to request.
const VISIT_KEPT: usize = 128 << 10;

/// Working memory of one request; keep it and pass it again, so that a request allocates nothing per row.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Key of each id, in the order of the request.
    hashed: Vec<u64>,
    /// Key of each id, stripe after stripe; within a stripe in the order of the request.
    keys: Vec<u64>,
    /// Position of each key's id in the request.
    order: Vec<u32>,
    /// Where each stripe's positions end in `order`.
    ends: Vec<u32>,
    /// Where the rows of the stripe at hand lie.
    places: Vec<Place>,
    /// Positions of ids that have no row.
    pub(crate) missing: Vec<u32>,
    /// Working memory of the calls that bring rows to memory.
    pub(crate) visits: Vec<Visit>,
    /// Small hash set of the search for repeated ids.
    seen: Vec<u32>,
    /// Weights of a narrow row while they change.
    pub(crate) weights: Vec<f32>,
}

impl Scratch {
    /// Empty buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps the working memory of a visit for the next one, unless it holds many rows: each table of a push has one.
    pub(crate) fn keep(&mut self, visit: Visit) {
        if visit.bytes() <= VISIT_KEPT {
            self.visits.push(visit);
        }
    }

    /// Groups `ids`, at most `u32::MAX` of them, into `stripes` groups, a power of two.
    #[inline(always)]
    pub(crate) fn group(&mut self, ids: &[u64], stripes: usize) {
        let count = ids.len();
        self.ends.clear();
        self.ends.resize(stripes, 0);
        // What an earlier request left in the buffers is overwritten whole.
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
        // Each entry of `ends` now is its stripe's start and moves to its end as keys are written.
        let (keys, order) = (&mut self.keys[..count], &mut self.order[..count]);
        for (position, key) in hashed.iter().enumerate() {
            let next = &mut ends[stripe_of(*key, stripes)];
            keys[*next as usize] = *key;
            order[*next as usize] = position as u32;
            *next += 1;
        }
    }

    /// The group of one stripe.
    #[inline]
    pub(crate) fn at(&mut self, stripe: usize) -> Group<'_> {
        let start = if stripe == 0 { 0 } else { self.ends[stripe - 1] };
        let range = start as usize..self.ends[stripe] as usize;
        Group {
            keys: &self.keys[range.clone()],
            positions: &self.order[range],
            places: &mut self.places,
            seen: &mut self.seen,
        }
    }
}

/// The ids of a request that belong to one stripe, and the buffers to work on them.
pub(crate) struct Group<'a> {
    /// Their keys.
    pub(crate) keys: &'a [u64],
    /// Their positions in the request, as many.
    pub(crate) positions: &'a [u32],
    /// For where their rows lie, in the same order.
    pub(crate) places: &'a mut Vec<Place>,
    /// For the search for repeated ids.
    pub(crate) seen: &'a mut Vec<u32>,
}

/// The finaliser of MurmurHash3: every bit of the id reaches every bit of the key, for three multiplications less
/// than a hash of bytes. One-to-one, so that a key stands for its id. Pinned: saved sketches of
/// sightings, rows of the cold tier and the rounding of narrow weights depend on it.
#[inline(always)]
pub(crate) fn key_of(id: u64) -> u64 {
    let mut key = (id ^ (id >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    key = (key ^ (key >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ (key >> 33)
}

/// The id of a key: the same steps backwards, with the inverses of both factors modulo 2⁶⁴.
#[inline]
pub(crate) fn id_of(key: u64) -> u64 {
    let mut id = (key ^ (key >> 33)).wrapping_mul(0x9cb4_b2f8_1293_37db);
    id = (id ^ (id >> 33)).wrapping_mul(0x4f74_430c_22a5_4005);
    id ^ (id >> 33)
}

/// The index takes a key's home from its upper half: the stripe comes from its low bits, else all keys of a stripe
/// would crowd in one part of its index.
#[inline(always)]
pub(crate) fn stripe_of(key: u64, stripes: usize) -> usize {
    key as usize & (stripes - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_key_stands_for_its_id(id: u64) {
            prop_assert_eq!(id_of(key_of(id)), id);
        }

        #[test]
        fn every_position_is_in_its_stripes_group_once(ids: Vec<u64>, bits in 0_u32..8) {
            let stripes = 1 << bits;
            let mut scratch = Scratch::new();
            // What an earlier request left behind must not matter.
            scratch.group(&[1, 2, 3, 4, 5], 16);
            scratch.group(&ids, stripes);
            let mut positions = Vec::new();
            for stripe in 0..stripes {
                let group = scratch.at(stripe);
                prop_assert!(group.positions.is_sorted(), "request order is kept inside a stripe");
                prop_assert_eq!(group.positions.len(), group.keys.len());
                for (position, key) in group.positions.iter().zip(group.keys) {
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
    fn keys_are_pinned() {
        assert_eq!([0, 1, 2].map(key_of), [0, 0xB456_BCFC_34C2_CB2C, 0x3ABF_2A20_6506_83E7]);
    }

    #[test]
    fn sequential_ids_spread_over_the_stripes() {
        let mut scratch = Scratch::new();
        let ids: Vec<u64> = (0..64_000).collect();
        scratch.group(&ids, 64);
        let sizes: Vec<usize> = (0..64).map(|stripe| scratch.at(stripe).positions.len()).collect();
        // Binomial with mean 1000 and deviation 31.
        assert!(sizes.iter().all(|size| (800..1200).contains(size)), "{sizes:?}");
    }
}
