//! Ids that occur twice in one push. Their gradients are summed first, because two Adagrad updates with g₁ and g₂
//! differ from one update with g₁ + g₂.

use hashbrown::HashTable;

use crate::key::key_of;
use crate::request::group::{RequestBuffers, StripeGroup};

/// Cells per key in the search for repeated ids. With four cells most keys find an empty cell at once.
const CELLS_PER_KEY: usize = 4;

/// Whether some id occurs twice in the first `stripes` groups of `scratch`. Equal ids are in the same stripe. The
/// search goes stripe by stripe through a hash set that fits into the L1 cache.
///
/// The search compares 32 bits of a key and the cell. Very rarely it returns true although no id repeats. Then
/// [`summed`] runs for nothing.
#[inline(always)]
pub(crate) fn may_exist(stripes: usize, scratch: &mut RequestBuffers) -> bool {
    (0..stripes).any(|stripe| may_exist_in(scratch.at(stripe)))
}

#[inline(always)]
fn may_exist_in(group: StripeGroup<'_>) -> bool {
    let StripeGroup { keys, seen, .. } = group;
    if keys.len() < 2 {
        return false;
    }
    let mask = (CELLS_PER_KEY * keys.len()).next_power_of_two() - 1;
    seen.clear();
    seen.resize(mask + 1, 0);
    for key in keys {
        // Zero marks an empty cell. The low bits are equal for all keys of a stripe, so the tag does not use them.
        let tag = (key >> 32) as u32 | 1;
        let mut place = (key >> 16) as usize & mask;
        while seen[place] != 0 {
            if seen[place] == tag {
                return true;
            }
            place = (place + 1) & mask;
        }
        seen[place] = tag;
    }
    false
}

/// Each id once, in the order of first appearance, with the sum of its gradients in the order of appearance.
///
/// A sum beyond `largest` is clipped to `largest`. No single gradient is larger.
pub(crate) fn summed(ids: &[u64], gradients: &[f32], dim: usize, largest: f32) -> (Vec<u64>, Vec<f32>) {
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

    proptest! {
        #[test]
        fn repeats_are_found_exactly_when_there_are_some(
            ids in prop::collection::vec(0_u64..60, 0..30),
            bits in 0_u32..4,
        ) {
            let mut scratch = RequestBuffers::new();
            scratch.group(&ids, 1 << bits);
            let distinct: BTreeSet<u64> = ids.iter().copied().collect();
            // Among these small ids no two keys have equal tags.
            prop_assert_eq!(may_exist(1 << bits, &mut scratch), distinct.len() < ids.len());
        }

        #[test]
        fn sums_lose_nothing(rows in prop::collection::vec((0_u64..9, -9_i8..9, -9_i8..9), 0..40)) {
            let ids: Vec<u64> = rows.iter().map(|row| row.0).collect();
            let gradients: Vec<f32> = rows.iter().flat_map(|row| [f32::from(row.1), f32::from(row.2)]).collect();
            let (unique, sums) = summed(&ids, &gradients, 2, f32::MAX);
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
        let (unique, sums) = summed(&[7, 3, 7, 1], &[1.0, 2.0, 4.0, 8.0], 1, f32::MAX);
        assert_eq!((unique, sums), (vec![7, 3, 1], vec![5.0, 2.0, 8.0]));
    }

    #[test]
    fn a_sum_is_no_larger_than_one_gradient_may_be() {
        for largest in [f32::MAX, 1e12] {
            let (_, sums) = summed(&[1, 1, 2, 2], &[largest, largest, -largest, -largest], 1, largest);
            assert_eq!(sums, [largest, -largest]);
        }
    }
}
