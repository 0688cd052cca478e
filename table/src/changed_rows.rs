//! Which rows of a stripe have changed since a checkpoint, for a checkpoint of changes alone.
//!
//! One bit per slot. A slot that is freed and used again keeps its bit: the row that lies in it now is new, so it has
//! changed too. A row that is gone has no slot, so its key is kept.

/// Removed keys that are kept for each stripe at least, however few rows it has.
const REMOVED: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct ChangedRows {
    slots: Vec<u64>,
    /// Keys of rows that were removed. The key may have a row again.
    removed: Vec<u64>,
}

impl ChangedRows {
    #[inline(always)]
    pub(crate) fn mark(&mut self, slot: u32) {
        let word = (slot / u64::BITS) as usize;
        if word >= self.slots.len() {
            self.grow(word);
        }
        self.slots[word] |= 1 << (slot % u64::BITS);
    }

    #[cold]
    fn grow(&mut self, word: usize) {
        self.slots.resize((word + 1).next_power_of_two(), 0);
    }

    /// A row is removed. Returns whether its key could be kept: with more removed keys than a quarter of the rows, a
    /// checkpoint of all rows is the smaller one.
    pub(crate) fn mark_removed(&mut self, key: u64, rows: usize) -> bool {
        self.removed.push(key);
        self.removed.len() <= REMOVED.max(rows / 4)
    }

    /// Rows have moved from slots to other slots. All other slots are empty.
    pub(crate) fn move_marks(&mut self, moved: &[(u32, u32)]) {
        let old = Self { slots: std::mem::take(&mut self.slots), removed: Vec::new() };
        moved.iter().filter(|(from, _)| old.has_changed(*from)).for_each(|(_, to)| self.mark(*to));
    }

    pub(crate) fn has_changed(&self, slot: u32) -> bool {
        self.slots.get((slot / u64::BITS) as usize).is_some_and(|word| word >> (slot % u64::BITS) & 1 == 1)
    }

    /// Keys of removed rows, in ascending order, for which `is_gone` holds.
    pub(crate) fn retain_removed(&mut self, is_gone: impl Fn(u64) -> bool) {
        self.removed.sort_unstable();
        self.removed.dedup();
        self.removed.retain(|key| is_gone(*key));
    }

    pub(crate) fn removed_keys(&self) -> &[u64] {
        &self.removed
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        (self.slots.capacity() + self.removed.capacity()) * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_removed_keys_are_kept_up_to_a_bound() {
        let mut changed = ChangedRows::default();
        [0, 63, 64, 1000].into_iter().for_each(|slot| changed.mark(slot));
        let marked = |slots: &[u32]| slots.iter().filter(|slot| changed.has_changed(**slot)).count();
        assert_eq!((marked(&[0, 63, 64, 1000]), marked(&[1, 65, 1 << 30])), (4, 0));
        [5, 3, 5, 4].into_iter().for_each(|key| assert!(changed.mark_removed(key, 0)));
        changed.retain_removed(|key| key != 4);
        assert_eq!(changed.removed_keys(), [3, 5]);
        assert!((0..REMOVED as u64 - 2).all(|key| changed.mark_removed(key, 0)));
        assert!(!changed.mark_removed(1, 0) && changed.mark_removed(2, 8 * REMOVED));
    }
}
