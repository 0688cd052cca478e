//! Where each row of a table lies in the log: an ordered map from cold key to address, in memory.
//!
//! Keys are exact, so a cold key without a row costs no read. The map is a B-tree of two levels: ordered leaves of some
//! hundred entries, and above them one ordered map of leaves for each part of the key space.
//!
//! ```text
//! part 0 … 63      the six highest bits of the cold key
//!   └─ leaf        │ key − first key of the leaf, in as few bytes as the largest one needs │ address, 4 bytes │ …
//! ```
//!
//! Cold keys are hashes, so the leaves of a table with more rows are closer together, and their entries shorter: 12 bytes
//! a row at 10^7 rows, 11 at 10^8. A clone shares all leaves. What changes afterwards is copied leaf by leaf, so a view
//! of the whole map costs no time when it is taken.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The most entries of a leaf. A leaf that exceeds it becomes two.
const MOST: usize = 512;
/// A leaf grows by room for this many entries.
const ROOM: usize = 16;
/// How far from its expected place a key is looked for first.
const NEAR: usize = 8;
/// Keys whose places are brought into the cache together.
const CHUNK: usize = 16;
/// Parts of the key space, by the highest bits of a key.
const PARTS: usize = 1 << PART_BITS;
const PART_BITS: u32 = 6;
/// Bytes of an address.
const ADDRESS: usize = size_of::<u32>();
/// Bytes of a leaf beside its entries: its place in the map above, its head, and what the allocator adds to each.
const LEAF_BYTES: usize = 112;

/// Addresses of the rows of one table by cold key.
#[derive(Clone, Debug)]
pub(crate) struct KeyIndex {
    parts: Box<[Arc<IndexPart>]>,
    rows: usize,
    bytes: usize,
}

/// Leaves by the lowest key that they may have. The first one may have every key of the part that is below the second.
type IndexPart = BTreeMap<u64, Arc<IndexLeaf>>;

/// Entries in the order of their keys, each `width` bytes of a key and an address. The keys are relative to the leaf's.
#[derive(Clone, Debug)]
struct IndexLeaf {
    width: usize,
    entries: Vec<u8>,
}

impl Default for KeyIndex {
    fn default() -> Self {
        Self { parts: (0..PARTS).map(|_| Arc::default()).collect(), rows: 0, bytes: 0 }
    }
}

impl KeyIndex {
    /// The address of a key's row.
    pub(crate) fn get(&self, key: u64) -> Option<u32> {
        let (first, leaf) = self.parts[part_of(key)].range(..=key).next_back()?;
        leaf.find(key - first).ok().map(|place| leaf.address(place))
    }

    /// Before the keys from a multiple of [`CHUNK`] on are looked for: brings their places into the cache. A search waits for memory a
    /// few times, and the waits of several keys overlap so.
    pub(crate) fn prefetch_ahead(&self, keys: &[u64], position: usize) {
        if position.is_multiple_of(CHUNK) {
            keys[position..].iter().take(CHUNK).for_each(|key| self.prefetch(*key));
        }
    }

    fn prefetch(&self, key: u64) {
        if let Some((first, leaf)) = self.parts[part_of(key)].range(..=key).next_back() {
            leaf.prefetch(key - first);
        }
    }

    /// Sets the address of a key's row, and answers the address before.
    pub(crate) fn insert(&mut self, key: u64, address: u32) -> Option<u32> {
        let part = Arc::make_mut(&mut self.parts[part_of(key)]);
        if part.first_key_value().is_none_or(|(first, _)| *first > key) {
            part.insert(part_start(key), Arc::new(IndexLeaf { width: 1, entries: Vec::new() }));
            self.bytes += LEAF_BYTES;
        }
        let (first, leaf) = part.range_mut(..=key).next_back()?;
        // Before the leaf is copied, because a copy has no room.
        let before = leaf.entries.capacity();
        let (first, leaf) = (*first, Arc::make_mut(leaf));
        let old = leaf.insert(key - first, address);
        let upper = (leaf.len() > MOST).then(|| leaf.split());
        self.bytes = self.bytes + leaf.entries.capacity() - before;
        if let Some((above, upper)) = upper {
            self.bytes += LEAF_BYTES + upper.entries.capacity();
            part.insert(first + above, Arc::new(upper));
        }
        self.rows += usize::from(old.is_none());
        old
    }

    /// Removes a key, and answers its address.
    pub(crate) fn remove(&mut self, key: u64) -> Option<u32> {
        self.get(key)?;
        let part = Arc::make_mut(&mut self.parts[part_of(key)]);
        let (first, leaf) = part.range_mut(..=key).next_back()?;
        // Before the leaf is copied, because a copy has no room.
        let before = leaf.entries.capacity();
        let (first, leaf) = (*first, Arc::make_mut(leaf));
        let old = leaf.remove(key - first)?;
        self.bytes = self.bytes + leaf.entries.capacity() - before;
        if leaf.entries.is_empty() {
            self.bytes -= LEAF_BYTES + leaf.entries.capacity();
            part.remove(&first);
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
            let leaves = &self.parts[part];
            let from = leaves.range(..=start).next_back().map_or(start, |(first, _)| *first);
            for (first, leaf) in leaves.range(from.min(end)..=end) {
                let skipped =
                    start.checked_sub(*first).map_or(0, |least| leaf.find(least).unwrap_or_else(|place| place));
                for place in skipped..leaf.len() {
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

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes in memory, without the leaves that only a clone has.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl IndexLeaf {
    fn size(&self) -> usize {
        self.width + ADDRESS
    }

    fn len(&self) -> usize {
        self.entries.len() / self.size()
    }

    /// The key in an entry.
    #[inline]
    fn key(&self, place: usize) -> u64 {
        let start = place * self.size();
        // One load instead of a call that copies a few bytes: a search reads some ten keys.
        let word = match self.entries.get(start..start + size_of::<u64>()) {
            Some(bytes) => u64::from_le_bytes(bytes.try_into().unwrap_or_default()),
            // The last entries of narrow keys end before a whole word does.
            None => self.entries[start..].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        };
        word & (u64::MAX >> (u64::BITS as usize - 8 * self.width))
    }

    fn address(&self, place: usize) -> u32 {
        let mut bytes = [0; ADDRESS];
        bytes.copy_from_slice(&self.entries[place * self.size() + self.width..][..ADDRESS]);
        u32::from_le_bytes(bytes)
    }

    /// Where a key is looked for first, if the last entry is not below it.
    fn guess(&self, key: u64, end: usize) -> usize {
        let last = self.key(end);
        (u128::from(key.min(last)) * end as u128 / u128::from(last.max(1))) as usize
    }

    fn prefetch(&self, key: u64) {
        let Some(end) = self.len().checked_sub(1) else { return };
        let start = self.guess(key, end).saturating_sub(NEAR) * self.size();
        let near = &self.entries[start..self.entries.len().min(start + 2 * NEAR * self.size())];
        zagros_table::prefetch::prefetch(near);
    }

    /// The entry of a key, or the place where it would be.
    ///
    /// Cold keys are evenly spread, so the search begins where the key would then be, and widens from there: one or two cache
    /// lines of a leaf instead of five. Other keys are found as well, in a few more steps.
    fn find(&self, key: u64) -> Result<usize, usize> {
        let Some(end) = self.len().checked_sub(1) else { return Err(0) };
        let last = self.key(end);
        if key > last {
            return Err(end + 1);
        }
        let guess = self.guess(key, end);
        let (mut low, mut high, mut step) = (0, end + 1, NEAR);
        if self.key(guess) < key {
            low = guess + 1;
            while low + step < high && self.key(low + step) < key {
                low += step + 1;
                step *= 2;
            }
            high = high.min(low + step + 1);
        } else {
            high = guess + 1;
            while high > low + step && self.key(high - 1 - step) >= key {
                high -= step;
                step *= 2;
            }
            low = low.max(high.saturating_sub(step + 1));
        }
        while low < high {
            let middle = low.midpoint(high);
            if self.key(middle) < key { low = middle + 1 } else { high = middle }
        }
        if low <= end && self.key(low) == key { Ok(low) } else { Err(low) }
    }

    fn insert(&mut self, key: u64, address: u32) -> Option<u32> {
        match self.find(key) {
            Ok(place) => {
                let old = self.address(place);
                let start = place * self.size() + self.width;
                self.entries[start..][..ADDRESS].copy_from_slice(&address.to_le_bytes());
                Some(old)
            }
            Err(place) => {
                if width_of(key) > self.width {
                    *self = self.part(0, self.len(), 0, width_of(key));
                }
                let (size, start) = (self.size(), place * self.size());
                if self.entries.capacity() < self.entries.len() + size {
                    self.entries.reserve_exact(ROOM * size);
                }
                let end = self.entries.len();
                self.entries.resize(end + size, 0);
                self.entries.copy_within(start..end, start + size);
                self.entries[start..][..self.width].copy_from_slice(&key.to_le_bytes()[..self.width]);
                self.entries[start + self.width..][..ADDRESS].copy_from_slice(&address.to_le_bytes());
                None
            }
        }
    }

    fn remove(&mut self, key: u64) -> Option<u32> {
        let place = self.find(key).ok()?;
        let (old, size) = (self.address(place), self.size());
        self.entries.copy_within((place + 1) * size.., place * size);
        self.entries.truncate(self.entries.len() - size);
        if self.entries.capacity() > self.entries.len() * 5 / 4 + 2 * ROOM * size {
            self.entries.shrink_to(self.entries.len() + ROOM * size);
        }
        Some(old)
    }

    /// Takes the upper half out. Answers it with its first key.
    fn split(&mut self) -> (u64, Self) {
        let (middle, last) = (self.len() / 2, self.len() - 1);
        let above = self.key(middle);
        let upper = self.part(middle, self.len(), above, width_of(self.key(last) - above));
        *self = self.part(0, middle, 0, width_of(self.key(middle - 1)));
        (above, upper)
    }

    /// Some entries with keys relative to `base`, in `width` bytes.
    fn part(&self, from: usize, to: usize, base: u64, width: usize) -> Self {
        let mut entries = Vec::with_capacity((to - from + ROOM) * (width + ADDRESS));
        for place in from..to {
            entries.extend_from_slice(&(self.key(place) - base).to_le_bytes()[..width]);
            entries.extend_from_slice(&self.address(place).to_le_bytes());
        }
        Self { width, entries }
    }
}

fn part_of(key: u64) -> usize {
    (key >> (u64::BITS - PART_BITS)) as usize
}

/// The lowest key of a key's part.
fn part_start(key: u64) -> u64 {
    key & !(u64::MAX >> PART_BITS)
}

/// Bytes of a key, at least one.
fn width_of(key: u64) -> usize {
    ((u64::BITS - key.leading_zeros()).div_ceil(8) as usize).max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Change {
        Insert(u64, u32),
        Remove(u64),
        /// Takes a clone, which must stay as it is.
        Clone,
    }

    fn key() -> impl Strategy<Value = u64> {
        prop_oneof![0_u64..700, Just(u64::MAX), any::<u64>(), (0_u32..64).prop_map(|bit| 1 << bit)]
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            200 => (key(), any::<u32>()).prop_map(|(key, address)| Change::Insert(key, address)),
            80 => key().prop_map(Change::Remove),
            1 => Just(Change::Clone),
        ]
    }

    fn content(index: &KeyIndex, limit: usize) -> Vec<(u64, u32)> {
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(start) = from {
            let before = all.len();
            from = index.scan(start..=u64::MAX, limit, &mut all);
            assert!(all.len() - before <= limit);
        }
        all
    }

    /// What the counter of bytes should be.
    fn bytes(index: &KeyIndex) -> usize {
        let leaves = index.parts.iter().flat_map(|part| part.values());
        leaves.map(|leaf| LEAF_BYTES + leaf.entries.capacity()).sum()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn the_index_is_an_ordered_map(changes in prop::collection::vec(change(), 1..3000), limit in 1_usize..400) {
            let (mut index, mut model) = (KeyIndex::default(), BTreeMap::new());
            let mut clones = Vec::new();
            for change in changes {
                match change {
                    Change::Insert(key, address) => prop_assert_eq!(index.insert(key, address), model.insert(key, address)),
                    Change::Remove(key) => prop_assert_eq!(index.remove(key), model.remove(&key)),
                    Change::Clone => clones.push((index.clone(), model.clone())),
                }
                prop_assert_eq!(index.rows(), model.len());
            }
            prop_assert_eq!(index.bytes(), bytes(&index));
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
                cost.push(index.bytes() as f64 / (row + 1) as f64);
            }
        }
        assert!(cost[0] < 14.0 && cost[1] < 12.5 && cost[1] < cost[0], "{cost:?}");
    }

    #[test]
    fn an_index_whose_rows_are_removed_has_no_memory() {
        let mut index = KeyIndex::default();
        (0..5000).for_each(|key| _ = index.insert(key << 50, key as u32));
        (0..5000).for_each(|key| assert_eq!(index.remove(key << 50), Some(key as u32)));
        assert_eq!((index.rows(), index.bytes(), index.remove(3)), (0, 0, None));
    }
}
