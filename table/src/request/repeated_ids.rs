//! Ids that occur twice in one push. Their gradients are summed first, because two Adagrad updates with g₁ and g₂
//! differ from one update with g₁ + g₂.

use hashbrown::HashTable;

use crate::key::key_of;

/// Cells per key in the search for repeated ids. With eight cells most keys find an empty cell.
const CELLS_PER_KEY: usize = 8;

/// Buffers of the search for repeated ids.
///
/// Equal ids are in the same stripe. The search goes stripe by stripe through a hash table that fits into the L1 cache. A cell
/// holds the last key of the stripe that fell into it, and each key the key before it in its cell:
///
/// ```text
/// keys     │ … │ a b c d │      cells   · c · · d ·       b, c fell into one cell: older(c) = b
/// ```
///
/// A key is written without a branch on what is in its cell, so few branches go wrong.
#[derive(Debug, Default)]
pub(crate) struct SeenKeys {
    /// Positions of keys, counted from 1. Those of earlier stripes are smaller than all of the present stripe.
    cells: Vec<u32>,
    /// For each key of the stripe, what was in its cell.
    older: Vec<u32>,
}

impl SeenKeys {
    /// Whether some key occurs twice. `keys` are grouped by stripe, and `ends` says where each stripe ends.
    #[inline(always)]
    pub(crate) fn has_repeats(&mut self, keys: &[u64], ends: &[u32]) -> bool {
        let (mut start, mut largest) = (0, 0);
        for end in ends {
            (largest, start) = ((end - start).max(largest), *end);
        }
        let largest = largest as usize;
        if largest < 2 {
            return false;
        }
        self.cells.clear();
        self.cells.resize((CELLS_PER_KEY * largest).next_power_of_two(), 0);
        self.older.resize(self.older.len().max(largest), 0);
        let mut start = 0;
        for end in ends {
            if self.repeats_in(keys, start, *end as usize) {
                return true;
            }
            start = *end as usize;
        }
        false
    }

    #[inline(always)]
    fn repeats_in(&mut self, keys: &[u64], start: usize, end: usize) -> bool {
        let (mask, older) = (self.cells.len() - 1, &mut self.older[..end - start]);
        for (index, key) in keys[start..end].iter().enumerate() {
            // The low bits are equal for all keys of a stripe.
            let cell = &mut self.cells[(key >> 16) as usize & mask];
            let mut other = std::mem::replace(cell, (start + index + 1) as u32) as usize;
            older[index] = other as u32;
            while other > start {
                if keys[other - 1] == *key {
                    return true;
                }
                other = older[other - 1 - start] as usize;
            }
        }
        false
    }
}

/// Each id once, in the order of first appearance, with the sum of its gradients in the order of appearance.
///
/// A sum beyond `largest` is clipped to `largest`. No single gradient is larger.
pub(crate) fn sum_repeated(ids: &[u64], gradients: &[f32], dim: usize, largest: f32) -> (Vec<u64>, Vec<f32>) {
    let mut rows: HashTable<usize> = HashTable::with_capacity(ids.len());
    let (mut unique, mut sums) = (Vec::<u64>::new(), Vec::new());
    for (position, id) in ids.iter().enumerate() {
        let gradient = &gradients[position * dim..][..dim];
        let hash = key_of(*id);
        if let Some(row) = rows.find(hash, |row| unique[*row] == *id) {
            add(&mut sums[row * dim..][..dim], gradient, largest);
        } else {
            rows.insert_unique(hash, unique.len(), |row| key_of(unique[*row]));
            unique.push(*id);
            sums.extend_from_slice(gradient);
        }
    }
    (unique, sums)
}

fn add(sum: &mut [f32], gradient: &[f32], largest: f32) {
    for index in 0..sum.len() {
        sum[index] = (sum[index] + gradient[index]).clamp(-largest, largest);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::request::group::RequestBuffers;

    proptest! {
        #[test]
        fn repeats_are_found_exactly_when_there_are_some(
            ids in prop::collection::vec(0_u64..60, 0..30),
            bits in 0_u32..4,
        ) {
            let mut scratch = RequestBuffers::new();
            // An earlier request leaves old values in the buffers. They must not matter.
            scratch.group_ids(&[7, 7, 8, 9, 30, 31, 32], 2);
            prop_assert!(scratch.has_repeats());
            scratch.group_ids(&ids, 1 << bits);
            let distinct: BTreeSet<u64> = ids.iter().copied().collect();
            prop_assert_eq!(scratch.has_repeats(), distinct.len() < ids.len());
        }

        #[test]
        fn sums_lose_nothing(rows in prop::collection::vec((0_u64..9, -9_i8..9, -9_i8..9), 0..40)) {
            let ids: Vec<u64> = rows.iter().map(|row| row.0).collect();
            let gradients: Vec<f32> = rows.iter().flat_map(|row| [f32::from(row.1), f32::from(row.2)]).collect();
            let (unique, sums) = sum_repeated(&ids, &gradients, 2, f32::MAX);
            for (row, id) in unique.iter().enumerate() {
                let of_id = || rows.iter().filter(|row| row.0 == *id);
                let want: [f32; 2] = [of_id().map(|row| f32::from(row.1)).sum(), of_id().map(|row| f32::from(row.2)).sum()];
                prop_assert_eq!(&sums[2 * row..2 * row + 2], &want);
            }
            prop_assert_eq!(unique.iter().collect::<BTreeSet<_>>().len(), unique.len());
            prop_assert_eq!(sums.len(), 2 * unique.len());
        }
    }

    #[test]
    fn the_order_is_that_of_first_appearance() {
        let (unique, sums) = sum_repeated(&[7, 3, 7, 1], &[1.0, 2.0, 4.0, 8.0], 1, f32::MAX);
        assert_eq!((unique, sums), (vec![7, 3, 1], vec![5.0, 2.0, 8.0]));
    }

    #[test]
    fn a_sum_is_no_larger_than_one_gradient_may_be() {
        for largest in [f32::MAX, 1e12] {
            let (_, sums) = sum_repeated(&[1, 1, 2, 2], &[largest, largest, -largest, -largest], 1, largest);
            assert_eq!(sums, [largest, -largest]);
        }
    }
}
