//! Ids of one request, grouped by stripe with a counting sort, in buffers that live as long as their owner likes.

/// Working memory of one request; keep it and pass it again, so that a request allocates nothing per row.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Hash of each id.
    hashes: Vec<u64>,
    /// Positions of the ids, stripe after stripe; within a stripe in the order of the request.
    order: Vec<u32>,
    /// Where each stripe's positions end in `order`.
    ends: Vec<u32>,
    /// Slots of the stripe at hand.
    slots: Vec<u32>,
    /// Positions of ids that have no row.
    pub(crate) missing: Vec<u32>,
    /// Small hash set of the search for repeated ids.
    seen: Vec<u32>,
}

impl Scratch {
    /// Empty buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Groups `ids`, at most `u32::MAX` of them, into `stripes` groups, a power of two.
    pub(crate) fn group(&mut self, ids: &[u64], stripes: usize) {
        self.hashes.clear();
        self.hashes.extend(ids.iter().map(|id| hash_of(*id)));
        self.ends.clear();
        self.ends.resize(stripes, 0);
        for hash in &self.hashes {
            self.ends[stripe_of(*hash, stripes)] += 1;
        }
        let mut start = 0;
        for end in &mut self.ends {
            start += std::mem::replace(end, start);
        }
        // Each entry of `ends` now is its stripe's start and moves to its end as positions are written.
        self.order.clear();
        self.order.resize(ids.len(), 0);
        for (position, hash) in self.hashes.iter().enumerate() {
            let next = &mut self.ends[stripe_of(*hash, stripes)];
            self.order[*next as usize] = position as u32;
            *next += 1;
        }
    }

    /// The group of one stripe.
    #[inline]
    pub(crate) fn at(&mut self, stripe: usize) -> Group<'_> {
        let start = if stripe == 0 { 0 } else { self.ends[stripe - 1] };
        let positions = &self.order[start as usize..self.ends[stripe] as usize];
        Group {
            positions,
            hashes: &self.hashes,
            slots: &mut self.slots,
            missing: &mut self.missing,
            seen: &mut self.seen,
        }
    }
}

/// The ids of a request that belong to one stripe, and the buffers to work on them.
pub(crate) struct Group<'a> {
    /// Their positions in the request.
    pub(crate) positions: &'a [u32],
    /// Hash of each id of the request.
    pub(crate) hashes: &'a [u64],
    /// For the group's slots, in the order of `positions`.
    pub(crate) slots: &'a mut Vec<u32>,
    /// For positions of the request that have no row.
    pub(crate) missing: &'a mut Vec<u32>,
    /// For the search for repeated ids.
    pub(crate) seen: &'a mut Vec<u32>,
}

/// The finaliser of MurmurHash3: every bit of the id reaches every bit of the hash, for three multiplications less
/// than a hash of bytes. Not pinned: it never leaves the process.
#[inline]
pub(crate) fn hash_of(id: u64) -> u64 {
    let mut hash = id ^ (id >> 33);
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// The index takes the position of an entry from the low bits and its fingerprint from the top seven: the stripe comes
/// from the bits between, else all entries of a stripe would crowd in one part of its index.
#[inline]
pub(crate) fn stripe_of(hash: u64, stripes: usize) -> usize {
    (hash >> 32) as usize & (stripes - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_position_is_in_its_stripes_group_once(ids: Vec<u64>, bits in 0_u32..8) {
            let stripes = 1 << bits;
            let mut scratch = Scratch::new();
            // What an earlier request left behind must not matter.
            scratch.group(&[1, 2, 3, 4, 5], 16);
            scratch.group(&ids, stripes);
            let mut positions = Vec::new();
            for stripe in 0..stripes {
                let group = scratch.at(stripe).positions;
                prop_assert!(group.is_sorted(), "request order is kept inside a stripe");
                for position in group {
                    prop_assert_eq!(stripe_of(hash_of(ids[*position as usize]), stripes), stripe);
                }
                positions.extend_from_slice(group);
            }
            positions.sort_unstable();
            prop_assert_eq!(positions, (0..ids.len() as u32).collect::<Vec<_>>());
        }
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
