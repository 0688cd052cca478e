//! Distinct ids per table: each row of a batch crosses the wire once, however many samples share it.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use zagros_protocol::TableId;

use super::bags::Bags;

/// The ids of one feature in a batch.
#[derive(Clone, Copy, Debug)]
pub struct FeatureIds<'a> {
    /// The table that serves the feature.
    pub table: TableId,
    /// Values per row of that table; equal for all features of a table.
    pub dim: u32,
    /// Ids in sample order, with repetitions.
    pub ids: &'a [u64],
}

/// Distinct ids of one table, and what is wanted of their rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableIds {
    /// The table.
    pub table: TableId,
    /// Values per row.
    pub dim: u32,
    /// Each id once, in order of first appearance.
    pub ids: Vec<u64>,
    /// Sums that are wanted in place of rows; `None` when every row is wanted itself.
    pub bags: Option<Bags>,
}

impl TableIds {
    /// Every row of distinct `ids` itself.
    #[must_use]
    pub fn rows(table: TableId, dim: u32, ids: Vec<u64>) -> Self {
        Self { table, dim, ids, bags: None }
    }

    /// Rows of an answer: one per id, or what the bags leave of them and one per bag.
    #[must_use]
    pub fn wanted(&self) -> usize {
        self.bags.as_ref().map_or(self.ids.len(), Bags::wanted)
    }
}

/// Distinct ids of a batch, tables in order of first appearance. The order depends on the batch alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UniqueIds {
    /// One entry per table that the batch touches.
    pub tables: Vec<TableIds>,
}

impl UniqueIds {
    /// Rows over all tables.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.tables.iter().map(|table| table.ids.len()).sum()
    }
}

/// Finds the distinct ids of batches; keeps its hash tables from batch to batch.
#[derive(Debug, Default)]
pub struct Deduplicator {
    /// Position in `TableIds::ids` by id, one per table of the current batch.
    seen: Vec<HashTable<u32>>,
}

impl Deduplicator {
    /// With empty hash tables, which grow to the size of a batch and stay.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The distinct ids of a batch, and for each feature, for each position of its `ids`, the index of that id in
    /// the `ids` of the feature's table.
    pub fn dedup(&mut self, features: &[FeatureIds<'_>]) -> (UniqueIds, Vec<Vec<u32>>) {
        self.seen.iter_mut().for_each(HashTable::clear);
        let mut unique = UniqueIds::default();
        let inverse = features.iter().map(|feature| self.add(&mut unique.tables, feature)).collect();
        (unique, inverse)
    }

    fn add(&mut self, tables: &mut Vec<TableIds>, feature: &FeatureIds<'_>) -> Vec<u32> {
        let slot = slot_of(tables, feature);
        if self.seen.len() <= slot {
            self.seen.resize_with(slot + 1, HashTable::new);
        }
        let (seen, distinct) = (&mut self.seen[slot], &mut tables[slot].ids);
        feature.ids.iter().map(|id| index_of(*id, seen, distinct)).collect()
    }
}

/// A job has tens of tables, so a scan beats a map.
fn slot_of(tables: &mut Vec<TableIds>, feature: &FeatureIds<'_>) -> usize {
    if let Some(slot) = tables.iter().position(|table| table.table == feature.table) {
        debug_assert_eq!(tables[slot].dim, feature.dim, "features of table {} disagree on its dim", feature.table);
        return slot;
    }
    tables.push(TableIds::rows(feature.table, feature.dim, Vec::new()));
    tables.len() - 1
}

#[inline]
fn index_of(id: u64, seen: &mut HashTable<u32>, distinct: &mut Vec<u64>) -> u32 {
    let same = |index: &u32| distinct[*index as usize] == id;
    match seen.entry(hash(id), same, |index| hash(distinct[*index as usize])) {
        Entry::Occupied(found) => *found.get(),
        Entry::Vacant(free) => {
            let index = distinct.len() as u32;
            free.insert(index);
            distinct.push(id);
            index
        }
    }
}

/// Fold, multiply, fold: one multiplication mixes all 64 bits, where ids may be sequential or already hashed.
#[inline]
fn hash(id: u64) -> u64 {
    // 2^64 over the golden ratio; no result depends on it.
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = (id ^ (id >> 32)).wrapping_mul(MULTIPLIER);
    mixed ^ (mixed >> 29)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn feature(table: u32, ids: &[u64]) -> FeatureIds<'_> {
        FeatureIds { table: TableId(table), dim: 4 + table, ids }
    }

    #[test]
    fn order_is_that_of_first_appearance() {
        let features = [feature(3, &[9, 7, 9]), feature(1, &[5]), feature(3, &[7, 2])];
        let (unique, inverse) = Deduplicator::new().dedup(&features);
        let expected = [TableIds::rows(TableId(3), 7, vec![9, 7, 2]), TableIds::rows(TableId(1), 5, vec![5])];
        assert_eq!(unique.tables, expected);
        assert_eq!(inverse, [vec![0, 1, 0], vec![0], vec![1, 2]]);
        assert_eq!(unique.rows(), 4);
    }

    #[test]
    fn sequential_and_strided_ids_do_not_share_hashes() {
        for stride in [1, 8, 1 << 20, 1 << 40] {
            // hashbrown takes the bucket from the low bits and the tag from the high ones.
            let mut buckets: Vec<u64> = (0..4096_u64).map(|i| hash(i * stride) & 8191).collect();
            buckets.sort_unstable();
            buckets.dedup();
            // 4096 balls in 8192 bins leave 3224 occupied on average (σ ≈ 20).
            assert!(buckets.len() > 3000, "stride {stride}: {} buckets", buckets.len());
        }
    }

    proptest! {
        #[test]
        fn the_inverse_restores_every_feature(
            batches in prop::collection::vec(
                prop::collection::vec((0_u32..4, prop::collection::vec(0_u64..40, 0..60)), 0..6), 1..4)
        ) {
            // One deduplicator over several batches: nothing of an earlier batch may shine through.
            let mut deduplicator = Deduplicator::new();
            for batch in batches {
                let features: Vec<_> = batch.iter().map(|(table, ids)| feature(*table, ids)).collect();
                let (unique, inverse) = deduplicator.dedup(&features);
                prop_assert_eq!(inverse.len(), features.len());
                let tables: HashMap<_, _> = unique.tables.iter().map(|t| (t.table, &t.ids)).collect();
                prop_assert_eq!(tables.len(), unique.tables.len());
                for (feature, inverse) in features.iter().zip(&inverse) {
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
