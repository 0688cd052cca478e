//! Deduplication: the distinct ids per table. Each row of a batch crosses the wire once, however many samples share it.

use zagros_protocol::TableId;

use super::bags::TableBags;

#[derive(Clone, Copy, Debug)]
pub struct FeatureIds<'a> {
    pub table: TableId,
    /// Values per row of that table; equal for all features of a table.
    pub dim: u32,
    /// Ids in sample order, with repetitions.
    pub ids: &'a [u64],
}

/// Distinct ids of one table, and which rows or sums a lookup returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableIds {
    pub table: TableId,
    pub dim: u32,
    /// Each id once, in order of first appearance.
    pub ids: Vec<u64>,
    /// The bags whose sums replace rows. `None` if every row is returned.
    pub bags: Option<TableBags>,
}

impl TableIds {
    /// Distinct `ids` whose rows are all returned.
    pub fn new(table: TableId, dim: u32, ids: Vec<u64>) -> Self {
        Self { table, dim, ids, bags: None }
    }

    /// Rows of a result: one per id, or the rows outside of bags and one per bag.
    pub fn result_rows(&self) -> usize {
        self.bags.as_ref().map_or(self.ids.len(), TableBags::result_rows)
    }
}

/// Distinct ids of a batch. Tables are in order of first appearance, so the order depends on the batch alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UniqueIds {
    pub tables: Vec<TableIds>,
}

impl UniqueIds {
    pub fn id_count(&self) -> usize {
        self.tables.iter().map(|table| table.ids.len()).sum()
    }
}

/// Finds the distinct ids of batches. It reuses its memory for the next batch.
///
/// It has the distinct ids of one table at a time: open addressing with linear probing, at most half full, so most searches
/// read one cache line. A slot that an earlier table has filled has an older round number, so slots need not be
/// cleared.
#[derive(Debug, Default)]
pub struct Deduplicator {
    /// Slots. Their number is a power of two, or zero at first.
    slots: Vec<IdSlot>,
    round: u32,
    /// The upper bits of a hash, from this bit on, are its first slot.
    shift: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct IdSlot {
    id: u64,
    /// Position in `TableIds::ids`.
    index: u32,
    round: u32,
}

impl Deduplicator {
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the distinct ids of a batch. Also returns, for each feature and each of its ids, the position of the id
    /// in the distinct ids of the feature's table.
    pub fn dedup_batch(&mut self, features: &[FeatureIds<'_>]) -> (UniqueIds, Vec<Vec<u32>>) {
        let mut unique = UniqueIds::default();
        let tables: Vec<usize> = features.iter().map(|feature| slot_of(&mut unique.tables, feature)).collect();
        let mut inverse = vec![Vec::new(); features.len()];
        for (slot, table) in unique.tables.iter_mut().enumerate() {
            let of_table = || (0..features.len()).filter(|feature| tables[*feature] == slot);
            self.begin_round(of_table().map(|feature| features[feature].ids.len()).sum());
            for feature in of_table() {
                let index = |id: &u64| self.index_of(*id, &mut table.ids);
                inverse[feature] = features[feature].ids.iter().map(index).collect();
            }
        }
        (unique, inverse)
    }

    /// Starts a round without ids, with room for `ids` ids.
    fn begin_round(&mut self, ids: usize) {
        let slots = (2 * ids).next_power_of_two().max(64);
        if self.slots.len() < slots || self.round == u32::MAX {
            self.slots = vec![IdSlot::default(); slots.max(self.slots.len())];
            self.round = 0;
        }
        self.round += 1;
        self.shift = u64::BITS - slots.trailing_zeros();
    }

    /// The position of `id` in `distinct`. Appends an id that is new.
    #[inline]
    fn index_of(&mut self, id: u64, distinct: &mut Vec<u64>) -> u32 {
        let last = (1 << (u64::BITS - self.shift)) - 1;
        let mut place = (hash(id) >> self.shift) as usize;
        loop {
            let slot = &mut self.slots[place];
            if slot.round != self.round {
                let index = distinct.len() as u32;
                *slot = IdSlot { id, index, round: self.round };
                distinct.push(id);
                return index;
            }
            if slot.id == id {
                return slot.index;
            }
            place = (place + 1) & last;
        }
    }
}

/// Scans a list, because a job has only tens of tables.
fn slot_of(tables: &mut Vec<TableIds>, feature: &FeatureIds<'_>) -> usize {
    if let Some(slot) = tables.iter().position(|table| table.table == feature.table) {
        debug_assert_eq!(tables[slot].dim, feature.dim, "features of table {} disagree on its dim", feature.table);
        return slot;
    }
    tables.push(TableIds::new(feature.table, feature.dim, Vec::new()));
    tables.len() - 1
}

/// The high bits of the product depend on all bits of the id. They spread sequential ids more evenly than random
/// numbers.
#[inline]
fn hash(id: u64) -> u64 {
    // 2⁶⁴ divided by the golden ratio. No result depends on it.
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    id.wrapping_mul(MULTIPLIER)
}

/// Values with the tables of [`UniqueIds::tables`]: rows and sums, or their gradients.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchRows {
    /// Per table, row-major `[wanted, dim]`. There is one row per id. With bags there are the rows outside of bags,
    /// then one row per bag ([`TableIds::result_rows`]).
    pub tables: Vec<Vec<f32>>,
}

impl BatchRows {
    pub fn zeros_like(unique: &UniqueIds) -> Self {
        Self { tables: unique.tables.iter().map(|table| vec![0.0; table.result_rows() * table.dim as usize]).collect() }
    }

    pub fn table_slices(&self) -> Vec<&[f32]> {
        self.tables.iter().map(Vec::as_slice).collect()
    }

    pub fn table_slices_mut(&mut self) -> Vec<&mut [f32]> {
        self.tables.iter_mut().map(Vec::as_mut_slice).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use zagros_zip::ZipEq;

    use super::*;

    fn feature(table: u32, ids: &[u64]) -> FeatureIds<'_> {
        FeatureIds { table: TableId(table), dim: 4 + table, ids }
    }

    #[test]
    fn order_is_that_of_first_appearance() {
        let features = [feature(3, &[9, 7, 9]), feature(1, &[5]), feature(3, &[7, 2])];
        let (unique, inverse) = Deduplicator::new().dedup_batch(&features);
        let expected = [TableIds::new(TableId(3), 7, vec![9, 7, 2]), TableIds::new(TableId(1), 5, vec![5])];
        assert_eq!(unique.tables, expected);
        assert_eq!(inverse, [vec![0, 1, 0], vec![0], vec![1, 2]]);
        assert_eq!(unique.id_count(), 4);
    }

    #[test]
    fn sequential_and_strided_ids_do_not_share_hashes() {
        for stride in [1, 8, 1 << 20, 1 << 40] {
            let mut buckets: Vec<u64> = (0..4096_u64).map(|i| hash(i * stride) >> (64 - 13)).collect();
            buckets.sort_unstable();
            buckets.dedup();
            // 4096 balls in 8192 bins leave 3224 occupied on average (σ ≈ 20).
            assert!(buckets.len() > 3000, "stride {stride}: {} buckets", buckets.len());
        }
    }

    #[test]
    fn memory_is_used_again_even_when_its_rounds_run_out() {
        let mut deduplicator = Deduplicator::new();
        deduplicator.dedup_batch(&[feature(1, &[5, 6])]);
        deduplicator.round = u32::MAX - 1;
        for _ in 0..3 {
            let (unique, inverse) = deduplicator.dedup_batch(&[feature(1, &[6, 5, 6]), feature(2, &[5])]);
            assert_eq!((&unique.tables[0].ids[..], &unique.tables[1].ids[..]), (&[6, 5][..], &[5][..]));
            assert_eq!(inverse, [vec![0, 1, 0], vec![0]]);
        }
    }

    proptest! {
        #[test]
        fn the_inverse_restores_every_feature(
            batches in prop::collection::vec(
                prop::collection::vec((0_u32..4, prop::collection::vec(0_u64..40, 0..60)), 0..6), 1..4)
        ) {
            // Several batches share one deduplicator. An earlier batch must not affect a later one.
            let mut deduplicator = Deduplicator::new();
            for batch in batches {
                let features: Vec<_> = batch.iter().map(|(table, ids)| feature(*table, ids)).collect();
                let (unique, inverse) = deduplicator.dedup_batch(&features);
                prop_assert_eq!(inverse.len(), features.len());
                let tables: HashMap<_, _> = unique.tables.iter().map(|t| (t.table, &t.ids)).collect();
                prop_assert_eq!(tables.len(), unique.tables.len());
                for (feature, inverse) in features.iter().zip_eq(&inverse) {
                    let restored: Vec<u64> = inverse.iter().map(|i| tables[&feature.table][*i as usize]).collect();
                    prop_assert_eq!(&restored[..], feature.ids);
                }
                for table in &unique.tables {
                    let mut distinct = table.ids.clone();
                    distinct.sort_unstable();
                    distinct.dedup();
                    prop_assert_eq!(distinct.len(), table.ids.len());
                }
            }
        }
    }
}
