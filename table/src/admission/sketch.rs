//! A count-min sketch: counts any number of keys in memory of constant size.
//!
//! A sketch has `depth` rows of `width` cells. A key has one cell in each row. A hash chooses it. The count of a key is
//! the smallest of its cells:
//!
//! ```text
//!          cells of key a: ▲   of key b: ▼    both keys share the cell ◆
//! row 0    0  ▲3  0  0  ▼1  0                 count of a = min(3, 4, 3) = 3
//! row 1    0  0  ◆4  0  0   0                 count of b = min(1, 4, 1) = 1
//! row 2   ▼1  0   0  0  ▲3  0
//! ```
//!
//! Invariant: a count is never too low, because other keys can only raise a cell. With width ⌈e/ε⌉ and depth ⌈ln(1/δ)⌉,
//! a count is too high by more than ε times the sum of all counts with probability at most δ (Cormode and
//! Muthukrishnan, "An improved data stream summary: the count-min sketch and its applications", 2005).
//!
//! The update is conservative: it raises only the cells that are below the new count (Estan and Varghese, "New
//! directions in traffic measurement and accounting", 2002). The errors become smaller, and the bound still holds.

use crate::key::key_of;

/// Makes the hash of the cells independent of the hash that chooses the stripe.
const SALT: u64 = 0x6A09_E667_F3BC_C908;

/// A count-min sketch. A count that reaches 65535 stays there.
#[derive(Clone, Debug)]
pub(crate) struct CountMinSketch {
    width: u32,
    depth: u32,
    /// Cells of 16 bits, row after row. Each word holds two cells.
    words: Box<[u32]>,
}

impl CountMinSketch {
    /// The sketch of one of `stripes` stripes. All sketches of a table together keep the bound with ε = `error` and δ =
    /// `failure`.
    pub(super) fn new(error: f32, failure: f32, stripes: usize) -> Self {
        let [width, depth] = Self::shape_for(error, failure, stripes);
        let words = vec![0; width as usize / 2 * depth as usize].into_boxed_slice();
        Self { width, depth, words }
    }

    /// Cells of a row, and number of rows.
    fn shape_for(error: f32, failure: f32, stripes: usize) -> [u32; 2] {
        let width = (1.0_f64.exp() / f64::from(error)).ceil() / stripes as f64;
        let depth = (1.0 / f64::from(failure)).ln().ceil().max(1.0);
        // The width is even, so a row is a whole number of words.
        let width = (width.ceil() as u32).next_multiple_of(2).max(2);
        [width, depth as u32]
    }

    /// Bytes of the cells of all stripes.
    pub(super) fn bytes_for(error: f32, failure: f32, stripes: usize) -> u64 {
        let [width, depth] = Self::shape_for(error, failure, stripes).map(u64::from);
        2 * width * depth * stripes as u64
    }

    /// Counts a key once more and returns its count.
    pub(super) fn add(&mut self, key: u64) -> u32 {
        self.add_times(key, 1)
    }

    pub(super) fn add_times(&mut self, key: u64, times: u32) -> u32 {
        let (columns, depth) = (self.columns(key), self.depth);
        let cells: &mut [u16] = bytemuck::cast_slice_mut(&mut self.words);
        let least = (0..depth).map(|row| cells[columns.cell_index(row)]).min().unwrap_or(0);
        let count = least.saturating_add(u16::try_from(times).unwrap_or(u16::MAX));
        for row in 0..depth {
            let cell = &mut cells[columns.cell_index(row)];
            *cell = (*cell).max(count);
        }
        u32::from(count)
    }

    pub(super) fn count(&self, key: u64) -> u32 {
        let (columns, cells) = (self.columns(key), bytemuck::cast_slice::<u32, u16>(&self.words));
        (0..self.depth).map(|row| u32::from(cells[columns.cell_index(row)])).min().unwrap_or(0)
    }

    /// Raises the cells from word `from` on to at least those of another sketch of the same shape. Returns what was added to these cells:
    /// [`Self::merge`] does the same with it.
    /// `Err` has the number of words of the sketch, if `words` are not within it.
    pub(super) fn raise(&mut self, from: usize, words: &[u32]) -> Result<Vec<u32>, usize> {
        let mut added = vec![0_u32; words.len()];
        let other: &[u16] = bytemuck::cast_slice(words);
        let cells = self.cells_from(from, words.len())?;
        let differences: &mut [u16] = bytemuck::cast_slice_mut(&mut added);
        for index in 0..cells.len() {
            differences[index] = other[index].saturating_sub(cells[index]);
            cells[index] += differences[index];
        }
        Ok(added)
    }

    /// Adds the counts of another sketch of the same shape to the cells from word `from` on.
    /// `Err` has the number of words of the sketch, if `words` are not within it.
    pub(super) fn merge(&mut self, from: usize, words: &[u32]) -> Result<(), usize> {
        let other: &[u16] = bytemuck::cast_slice(words);
        let cells = self.cells_from(from, words.len())?;
        for index in 0..cells.len() {
            cells[index] = cells[index].saturating_add(other[index]);
        }
        Ok(())
    }

    fn cells_from(&mut self, from: usize, words: usize) -> Result<&mut [u16], usize> {
        let all = self.words.len();
        let range = from..from.checked_add(words).ok_or(all)?;
        Ok(bytemuck::cast_slice_mut(self.words.get_mut(range).ok_or(all)?))
    }

    pub(super) fn clear(&mut self) {
        self.words.fill(0);
    }

    /// The cells. Each word holds two cells.
    pub(super) fn words(&self) -> &[u32] {
        &self.words
    }

    pub(super) fn shape(&self) -> [u32; 2] {
        [self.width, self.depth]
    }

    /// Combines two hashes into one hash for each row (Kirsch and Mitzenmacher, "Less hashing, same performance",
    /// 2008).
    fn columns(&self, key: u64) -> CellColumns {
        let hash = key_of(key ^ SALT);
        CellColumns { first: hash as u32, second: (hash >> 32) as u32 | 1, width: self.width }
    }
}

/// The columns of a key's cells, one for each row.
struct CellColumns {
    first: u32,
    second: u32,
    width: u32,
}

impl CellColumns {
    fn cell_index(&self, row: u32) -> usize {
        let hash = self.first.wrapping_add(row.wrapping_mul(self.second));
        // The hash as a fraction of 2³², times the width.
        let column = (u64::from(hash) * u64::from(self.width)) >> 32;
        row as usize * self.width as usize + column as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn counted(sketch: &mut CountMinSketch, ids: &[u64]) -> HashMap<u64, u32> {
        let mut exact = HashMap::new();
        for id in ids {
            let count = exact.entry(*id).or_insert(0);
            *count += 1;
            assert!(sketch.add(key_of(*id)) >= *count, "id {id} was counted {count} times");
        }
        exact
    }

    fn count(sketch: &CountMinSketch, id: u64) -> u32 {
        let count = sketch.count(key_of(id));
        assert_eq!(sketch.clone().add(key_of(id)), count + 1);
        count
    }

    proptest! {
        #[test]
        fn a_count_is_never_too_low(ids in prop::collection::vec(0_u64..50, 0..300), error in 0.01_f32..0.5) {
            let mut sketch = CountMinSketch::new(error, 0.1, 1);
            for (id, exact) in counted(&mut sketch, &ids) {
                prop_assert!(count(&sketch, id) >= exact);
            }
        }

        #[test]
        fn a_merged_count_is_at_least_that_of_both(
            left in prop::collection::vec(0_u64..50, 0..200),
            right in prop::collection::vec(0_u64..50, 0..200),
        ) {
            let [mut first, mut second] = [(); 2].map(|()| CountMinSketch::new(0.1, 0.1, 4));
            let (left, right) = (counted(&mut first, &left), counted(&mut second, &right));
            let most = left.keys().chain(right.keys()).map(|id| (*id, count(&first, *id) + count(&second, *id)));
            let most: HashMap<u64, u32> = most.collect();
            first.merge(0, second.words()).unwrap();
            for id in 0..50 {
                let [left, right] = [&left, &right].map(|counts| counts.get(&id).copied().unwrap_or(0));
                prop_assert!(count(&first, id) >= left + right);
                // The minimum of sums is at least the sum of the minimums.
                prop_assert!(most.get(&id).is_none_or(|most| count(&first, id) >= *most));
            }
        }

        /// What was added, and added again to a copy, gives the same cells. To raise twice changes nothing.
        #[test]
        fn a_raised_count_is_at_least_the_higher_one_and_at_most_the_sum(
            left in prop::collection::vec(0_u64..50, 0..200),
            right in prop::collection::vec(0_u64..50, 0..200),
            cut in 0_usize..100,
        ) {
            let [mut first, mut second] = [(); 2].map(|()| CountMinSketch::new(0.1, 0.1, 4));
            counted(&mut first, &left);
            counted(&mut second, &right);
            let (mut copy, mut sum, words) = (first.clone(), first.clone(), second.words());
            let (low, high) = words.split_at(cut.min(words.len()));
            let higher: Vec<u32> = (0..50).map(|id| count(&first, id).max(count(&second, id))).collect();
            for (from, words) in [(0, low), (low.len(), high)] {
                copy.merge(from, &first.raise(from, words).unwrap()).unwrap();
            }
            prop_assert_eq!(first.words(), copy.words());
            prop_assert!(first.raise(0, words).unwrap().iter().all(|added| *added == 0));
            sum.merge(0, words).unwrap();
            for id in 0..50 {
                prop_assert!(count(&first, id) >= higher[id as usize] && count(&first, id) <= count(&sum, id));
            }
            let all = first.words().len();
            prop_assert_eq!((first.raise(1, words), first.raise(usize::MAX, &[1])), (Err(all), Err(all)));
        }

        #[test]
        fn uses_that_are_added_at_once_count_as_one_by_one(ids in prop::collection::vec((0_u64..20, 0_u32..5), 0..50)) {
            let [mut first, mut second] = [(); 2].map(|()| CountMinSketch::new(0.1, 0.1, 1));
            for (id, times) in ids {
                (0..times).for_each(|_| _ = first.add(key_of(id)));
                second.add_times(key_of(id), times);
                prop_assert_eq!(count(&first, id), count(&second, id));
            }
        }
    }

    /// With 2000 ids, far fewer counts are too high than the bound allows.
    #[test]
    fn the_error_is_as_small_as_promised() {
        let (error, failure) = (0.005, 0.05);
        let mut sketch = CountMinSketch::new(error, failure, 1);
        // Id n occurs n mod 17 times. All ids together occur 16,000 times.
        let ids: Vec<u64> = (0..2000_u64).flat_map(|id| vec![id; id as usize % 17]).collect();
        let exact = counted(&mut sketch, &ids);
        let allowed = f64::from(error) * ids.len() as f64;
        let bad = (0..2000).filter(|id| {
            let exact = exact.get(id).copied().unwrap_or(0);
            f64::from(count(&sketch, *id)) > f64::from(exact) + allowed
        });
        assert!(bad.count() <= (2000.0 * failure) as usize);
        // With the conservative update most counts are exact. A plain count-min sketch would add a fifth of a cell's 30
        // other uses to each count.
        let right = exact.iter().filter(|(id, exact)| count(&sketch, **id) <= **exact + 16).count();
        assert!(right > 1700, "{right}");
    }

    #[test]
    fn the_shape_follows_from_the_promise() {
        assert_eq!(CountMinSketch::new(0.01, 0.01, 1).shape(), [272, 5]);
        assert_eq!(CountMinSketch::new(0.01, 0.01, 64).shape(), [6, 5]);
        assert_eq!(CountMinSketch::new(0.5, 0.5, 64).shape(), [2, 1]);
        let stripe = CountMinSketch::new(0.01, 0.01, 64);
        assert_eq!(CountMinSketch::bytes_for(0.01, 0.01, 64), 64 * 4 * stripe.words().len() as u64);
        let mut sketch = CountMinSketch::new(0.5, 0.5, 1);
        assert_eq!((sketch.words().len(), sketch.merge(0, &[0; 7])), (3, Err(3)));
    }

    #[test]
    fn a_count_stays_at_its_largest() {
        let mut sketch = CountMinSketch::new(0.1, 0.1, 1);
        let last = (0..70_000).map(|_| sketch.add(3)).last();
        assert_eq!(last, Some(65_535));
        let words = sketch.words().to_vec();
        sketch.merge(0, &words).unwrap();
        assert_eq!(sketch.add(3), 65_535);
    }
}
