//! Where each row of a table lies in the log: an ordered map from cold key to address, in memory.
//!
//! Keys are exact, so a cold key without a row costs no read. The map is a B-tree of two levels: ordered leaves of some
//! hundred entries, and above them one list of leaves for each part of the key space.
//!
//! ```text
//! part 0 … 255     the eight highest bits of the cold key
//!   ├─ firsts      │ first key of leaf 0 │ of leaf 1 │ …                    says which leaf has a key
//!   └─ leaves      │ its place, number and size of entries │ …              so a search touches of a leaf only the entries it compares
//!        └─ leaf   │ key − first key of the leaf, in as few bytes as the largest one needs │ address, 4 bytes │ …
//! ```
//!
//! Cold keys are hashes, so they are spread evenly. From the first keys of a leaf and of the next one follows where a key is about: one or two cache
//! lines, which [`KeyIndex::prefetch_ahead`] brings in for several keys at once. Leaves of a table with more rows are closer together, and
//! their entries shorter: 12 bytes a row at 10^7 rows, 11 at 10^8. A clone shares all leaves. What changes afterwards is copied leaf
//! by leaf, so a view of the whole map costs no time when it is taken.

mod leaf;

use std::ops::RangeInclusive;
use std::sync::Arc;

use leaf::{IndexLeaf, LeafEnd};

/// The most entries of a leaf. A leaf that exceeds it becomes two.
const MOST: usize = 512;
/// Keys whose places are brought into the cache together.
const CHUNK: usize = 16;
/// Parts of the key space, by the highest bits of a key.
const PARTS: usize = 1 << PART_BITS;
const PART_BITS: u32 = 8;
/// Bytes of a leaf beside its entries: what its part knows of it, and what the allocator adds.
const LEAF_BYTES: usize = size_of::<u64>() + size_of::<IndexLeaf>() + 32;

#[derive(Clone, Debug)]
pub(crate) struct KeyIndex {
    parts: Box<[Arc<IndexPart>]>,
    rows: usize,
    bytes: usize,
}

/// The leaves of a part in the order of their keys.
#[derive(Clone, Debug, Default)]
struct IndexPart {
    /// `firsts[n]` is the lowest key that `leaves[n]` may have.
    firsts: Vec<u64>,
    leaves: Vec<IndexLeaf>,
}

impl Default for KeyIndex {
    fn default() -> Self {
        Self { parts: (0..PARTS).map(|_| Arc::default()).collect(), rows: 0, bytes: 0 }
    }
}

impl KeyIndex {
    pub(crate) fn get(&self, key: u64) -> Option<u32> {
        let part = &self.parts[part_of(key)];
        let index = part.leaf_of(key)?;
        let leaf = &part.leaves[index];
        leaf.find(key - part.firsts[index], part.end(index)).ok().map(|place| leaf.address(place))
    }

    /// Before the keys from a multiple of [`CHUNK`] on are looked for: brings their places into the cache. A search waits for memory a
    /// few times, and the waits of several keys overlap so.
    pub(crate) fn prefetch_ahead(&self, keys: &[u64], position: usize) {
        if position.is_multiple_of(CHUNK) {
            keys[position..].iter().take(CHUNK).for_each(|key| self.prefetch(*key));
        }
    }

    fn prefetch(&self, key: u64) {
        let part = &self.parts[part_of(key)];
        if let Some(at) = part.leaf_of(key) {
            part.leaves[at].prefetch(key - part.firsts[at], part.end(at));
        }
    }

    pub(crate) fn insert(&mut self, key: u64, address: u32) -> Option<u32> {
        let part = Arc::make_mut(&mut self.parts[part_of(key)]);
        let index = part.leaf_of(key).unwrap_or_else(|| {
            part.insert_leaf(0, key & !(u64::MAX >> PART_BITS), IndexLeaf::default());
            self.bytes += LEAF_BYTES;
            0
        });
        let (first, end) = (part.firsts[index], part.end(index));
        let leaf = &mut part.leaves[index];
        let old_bytes = leaf.memory_bytes();
        let old = leaf.insert(key - first, address, end);
        let upper = (leaf.len() > MOST).then(|| leaf.split());
        self.bytes = self.bytes + leaf.memory_bytes() - old_bytes;
        if let Some((above, upper)) = upper {
            self.bytes += LEAF_BYTES + upper.memory_bytes();
            part.insert_leaf(index + 1, first + above, upper);
        }
        self.rows += usize::from(old.is_none());
        old
    }

    pub(crate) fn remove(&mut self, key: u64) -> Option<u32> {
        self.get(key)?;
        let part = Arc::make_mut(&mut self.parts[part_of(key)]);
        let index = part.leaf_of(key)?;
        let (first, end) = (part.firsts[index], part.end(index));
        let leaf = &mut part.leaves[index];
        let old_bytes = leaf.memory_bytes();
        let old = leaf.remove(key - first, end)?;
        self.bytes = self.bytes + leaf.memory_bytes() - old_bytes;
        if leaf.len() == 0 {
            self.bytes -= LEAF_BYTES + leaf.memory_bytes();
            part.firsts.remove(index);
            part.leaves.remove(index);
        }
        self.rows -= 1;
        Some(old)
    }

    /// Appends keys and addresses of a range in ascending order, at most `limit` of them. Answers the key to go on from.
    pub(crate) fn scan(&self, range: RangeInclusive<u64>, limit: usize, into: &mut Vec<(u64, u32)>) -> Option<u64> {
        if range.is_empty() {
            return None;
        }
        let (start, end) = range.into_inner();
        let enough = into.len() + limit;
        for part in part_of(start)..=part_of(end) {
            let part = &self.parts[part];
            for at in part.leaf_of(start).unwrap_or(0)..part.leaves.len() {
                let (first, leaf) = (part.firsts[at], &part.leaves[at]);
                let find = |least| leaf.find(least, part.end(at)).unwrap_or_else(|place| place);
                for place in start.checked_sub(first).map_or(0, find)..leaf.len() {
                    let key = first + leaf.key(place);
                    if key > end {
                        return None;
                    }
                    if into.len() == enough {
                        return Some(key);
                    }
                    into.push((key, leaf.address(place)));
                }
            }
        }
        None
    }

    pub(crate) fn row_count(&self) -> usize {
        self.rows
    }

    /// Bytes in memory, without the leaves that only a clone has.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes
    }
}

impl IndexPart {
    fn leaf_of(&self, key: u64) -> Option<usize> {
        self.firsts.partition_point(|first| *first <= key).checked_sub(1)
    }

    fn end(&self, at: usize) -> LeafEnd {
        let first = self.firsts[at];
        let last = self.firsts.get(at + 1).map_or(first | (u64::MAX >> PART_BITS), |next| next - 1);
        LeafEnd(last - first)
    }

    fn insert_leaf(&mut self, at: usize, first: u64, leaf: IndexLeaf) {
        self.firsts.insert(at, first);
        self.leaves.insert(at, leaf);
    }
}

fn part_of(key: u64) -> usize {
    (key >> (u64::BITS - PART_BITS)) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum IndexChange {
        Insert(u64, u32),
        Remove(u64),
        /// Takes a clone, which must stay as it is.
        Clone,
    }

    fn key() -> impl Strategy<Value = u64> {
        prop_oneof![0_u64..700, Just(u64::MAX), any::<u64>(), (0_u32..64).prop_map(|bit| 1 << bit)]
    }

    fn change() -> impl Strategy<Value = IndexChange> {
        prop_oneof![
            200 => (key(), any::<u32>()).prop_map(|(key, address)| IndexChange::Insert(key, address)),
            80 => key().prop_map(IndexChange::Remove),
            1 => Just(IndexChange::Clone),
        ]
    }

    fn content(index: &KeyIndex, limit: usize) -> Vec<(u64, u32)> {
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(start) = from {
            let old_len = all.len();
            from = index.scan(start..=u64::MAX, limit, &mut all);
            assert!(all.len() - old_len <= limit);
        }
        all
    }

    /// What the counter of bytes should be.
    fn bytes(index: &KeyIndex) -> usize {
        let leaves = index.parts.iter().flat_map(|part| &part.leaves);
        leaves.map(|leaf| LEAF_BYTES + leaf.memory_bytes()).sum()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn the_index_is_an_ordered_map(changes in prop::collection::vec(change(), 1..3000), limit in 1_usize..400) {
            let (mut index, mut model) = (KeyIndex::default(), BTreeMap::new());
            let mut clones = Vec::new();
            for change in changes {
                match change {
                    IndexChange::Insert(key, address) => prop_assert_eq!(index.insert(key, address), model.insert(key, address)),
                    IndexChange::Remove(key) => prop_assert_eq!(index.remove(key), model.remove(&key)),
                    IndexChange::Clone => clones.push((index.clone(), model.clone())),
                }
                prop_assert_eq!(index.row_count(), model.len());
            }
            prop_assert_eq!(index.memory_bytes(), bytes(&index));
            model.iter().for_each(|(key, address)| assert_eq!(index.get(*key), Some(*address)));
            clones.push((index, model));
            for (index, model) in clones {
                prop_assert_eq!(content(&index, limit), model.into_iter().collect::<Vec<_>>());
            }
        }

        #[test]
        fn a_scan_has_what_its_range_has(
            keys in prop::collection::btree_set(key(), 0..900),
            (start, end) in (key(), key()),
        ) {
            let mut index = KeyIndex::default();
            keys.iter().for_each(|key| _ = index.insert(*key, *key as u32));
            let mut found = Vec::new();
            prop_assert_eq!(index.scan(start..=end, usize::MAX / 2, &mut found), None);
            let expected = keys.into_iter().filter(|key| (start..=end).contains(key));
            prop_assert_eq!(found, expected.map(|key| (key, key as u32)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn hashed_keys_cost_twelve_bytes_a_row_and_fewer_with_more_rows() {
        let mut index = KeyIndex::default();
        let mut cost = Vec::new();
        for row in 0..4_000_000_u64 {
            index.insert(row.wrapping_mul(0x9e37_79b9_7f4a_7c15), row as u32);
            if row + 1 == 30_000 || row + 1 == 4_000_000 {
                cost.push(index.memory_bytes() as f64 / (row + 1) as f64);
            }
        }
        assert!(cost[0] < 14.0 && cost[1] < 12.5 && cost[1] < cost[0], "{cost:?}");
    }

    #[test]
    fn an_index_whose_rows_are_removed_has_no_memory() {
        let mut index = KeyIndex::default();
        (0..5000).for_each(|key| _ = index.insert(key << 50, key as u32));
        (0..5000).for_each(|key| assert_eq!(index.remove(key << 50), Some(key as u32)));
        assert_eq!((index.row_count(), index.memory_bytes(), index.remove(3)), (0, 0, None));
    }
}
