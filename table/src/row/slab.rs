//! Slots of one size in large blocks. A row needs no allocation of its own, and a growing slab copies nothing. A freed
//! slot is used again before the slab grows.
//!
//! ```text
//! block 0 … 3      4 slots each   │ slot │ slot │ slot │ slot │ access │ access │ access │ access │
//! block 4 … 7      8 slots each   │ slot │ slot │ …                    │ access │ access │ …
//! block 8 … 11    16 slots each     and so on, up to blocks of one huge page
//! ```
//!
//! Invariant: slots are numbered in the order of their first use, so block and position follow from the number alone.
//! Example: blocks 0 to 3 hold slots 0 to 15, so slot 18 is the third slot of block 4.

use std::sync::Arc;

use crate::machine::memory::{Arena, HUGE_PAGE, MemoryBlock};
use crate::machine::prefetch;

/// Slots of the smallest blocks. The stripe of a tiny table holds no more than one such block.
const FIRST_BLOCK: usize = 4;
/// Blocks of equal size. The next blocks are twice as large, so at most a quarter of a slab is unused.
const BLOCKS_PER_LEVEL: usize = 4;
const BLOCK_BYTES: usize = HUGE_PAGE;
/// The number of no slot.
const NONE: u32 = u32::MAX;

/// Slots of `stride` words each, numbered in the order of their first use.
///
/// With access metadata, each block ends with one word of metadata for each slot. Eviction reads the metadata of many
/// slots, but not their rows. Next to each other, these words take few cache lines.
#[derive(Debug)]
pub(crate) struct Slab {
    arena: Arc<Arena>,
    pub(crate) stride: usize,
    pub(crate) with_access: bool,
    /// All levels from this one on have blocks of the largest size.
    top: u32,
    blocks: Vec<MemoryBlock>,
    /// The next new slot. If it equals `end`, the slab must grow.
    next: u32,
    end: u32,
    /// The slot that was freed last. Its first word is the number of the slot freed before it.
    free: u32,
    released: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotAddress {
    pub(crate) slot: u32,
    block: u32,
    /// Position of its first word in the block.
    start: u32,
}

impl SlotAddress {
    /// The address of no slot.
    pub(crate) const NONE: Self = Self { slot: NONE, block: 0, start: 0 };

    #[inline(always)]
    pub(crate) fn is_none(self) -> bool {
        self.slot == NONE
    }
}

impl Slab {
    /// A slab for slots of `stride` words, at least one. `with_access` adds access metadata to each slot.
    pub(crate) fn new(arena: &Arc<Arena>, stride: usize, with_access: bool) -> Self {
        let largest = BLOCK_BYTES / ((stride + usize::from(with_access)) * size_of::<u32>());
        let top = (largest / FIRST_BLOCK).max(1).ilog2();
        Self {
            arena: Arc::clone(arena),
            stride,
            with_access,
            top,
            blocks: Vec::new(),
            next: 0,
            end: 0,
            free: NONE,
            released: 0,
        }
    }

    /// Takes a slot of zeros and returns its number.
    #[inline]
    pub(crate) fn add(&mut self) -> u32 {
        if self.free != NONE {
            return self.reuse();
        }
        if self.next == self.end {
            self.grow();
        }
        self.next += 1;
        self.next - 1
    }

    /// Frees a slot that [`Self::add`] returned.
    pub(crate) fn release(&mut self, slot: u32) {
        self.words_mut(slot)[0] = self.free;
        self.free = slot;
        self.released += 1;
    }

    /// Slots that can be added before the slab grows.
    pub(crate) fn vacant_slots(&self) -> usize {
        self.released + (self.end - self.next) as usize
    }

    /// Bytes that the slab would grow by if `slots` more slots were taken.
    pub(crate) fn growth_bytes(&self, slots: usize) -> usize {
        let (mut missing, mut block, mut grown) = (slots.saturating_sub(self.vacant_slots()), self.blocks.len(), 0);
        while missing > 0 {
            let slots = self.slots_of(block);
            (missing, block, grown) = (missing.saturating_sub(slots), block + 1, grown + slots);
        }
        grown * (self.stride + usize::from(self.with_access)) * size_of::<u32>()
    }

    /// The address of a slot, for a caller that uses the slot more than once.
    #[inline(always)]
    pub(crate) fn place(&self, slot: u32) -> SlotAddress {
        let (block, index) = self.locate(slot);
        SlotAddress { slot, block: block as u32, start: (index * self.stride) as u32 }
    }

    #[inline(always)]
    pub(crate) fn words_at(&self, place: SlotAddress) -> &[u32] {
        &self.blocks[place.block as usize].words()[place.start as usize..][..self.stride]
    }

    #[inline(always)]
    pub(crate) fn words_at_mut(&mut self, place: SlotAddress) -> &mut [u32] {
        &mut self.blocks[place.block as usize].words_mut()[place.start as usize..][..self.stride]
    }

    #[inline]
    pub(crate) fn words(&self, slot: u32) -> &[u32] {
        self.words_at(self.place(slot))
    }

    #[inline]
    pub(crate) fn words_mut(&mut self, slot: u32) -> &mut [u32] {
        self.words_at_mut(self.place(slot))
    }

    #[inline(always)]
    pub(crate) fn access(&self, slot: u32) -> u32 {
        let (block, place) = self.locate(slot);
        self.blocks[block].words()[self.access_start(block) + place]
    }

    #[inline(always)]
    pub(crate) fn access_mut(&mut self, slot: u32) -> &mut u32 {
        let (block, place) = self.locate(slot);
        let start = self.access_start(block);
        &mut self.blocks[block].words_mut()[start + place]
    }

    /// Prefetches the access metadata of a slot, if slots have some.
    #[inline(always)]
    pub(crate) fn prefetch_access(&self, slot: u32) {
        if self.with_access {
            let (block, place) = self.locate(slot);
            prefetch(&self.blocks[block].words()[self.access_start(block) + place..][..1]);
        }
    }

    pub(crate) fn empty_copy(&self) -> Self {
        Self::new(&self.arena, self.stride, self.with_access)
    }

    pub(crate) fn slots_without_last_block(&self) -> usize {
        let last = self.blocks.len().checked_sub(1).map_or(0, |block| self.slots_of(block));
        self.end as usize - last
    }

    /// Bytes of the blocks, used or not.
    pub(crate) fn memory_bytes(&self) -> usize {
        let blocks: usize = self.blocks.iter().map(MemoryBlock::byte_len).sum();
        blocks + self.blocks.capacity() * size_of::<MemoryBlock>()
    }

    /// The block of a slot, and the slot's position in the block. There are `BLOCKS_PER_LEVEL` blocks of `FIRST_BLOCK`
    /// slots, then as many of twice the size, and so on up to level `top`. The arithmetic numbers blocks as if smaller
    /// levels continued below level 0.
    #[inline(always)]
    fn locate(&self, slot: u32) -> (usize, usize) {
        let number = slot as usize + FIRST_BLOCK * BLOCKS_PER_LEVEL;
        let level = (number / (FIRST_BLOCK * BLOCKS_PER_LEVEL)).ilog2().min(self.top);
        let bits = level + FIRST_BLOCK.ilog2();
        let block = (number >> bits) + level as usize * BLOCKS_PER_LEVEL - BLOCKS_PER_LEVEL;
        (block, number & ((1 << bits) - 1))
    }

    /// Position of the access metadata in a block: after its slots.
    #[inline(always)]
    fn access_start(&self, block: usize) -> usize {
        assert!(self.with_access, "the slab has no access metadata");
        self.slots_of(block) * self.stride
    }

    #[inline(always)]
    fn slots_of(&self, block: usize) -> usize {
        FIRST_BLOCK << (block / BLOCKS_PER_LEVEL).min(self.top as usize)
    }

    #[inline(never)]
    fn reuse(&mut self) -> u32 {
        let slot = self.free;
        self.free = self.words(slot)[0];
        self.released -= 1;
        if self.free != NONE {
            // The next row gets it.
            prefetch(self.words(self.free));
        }
        self.words_mut(slot).fill(0);
        if self.with_access {
            *self.access_mut(slot) = 0;
        }
        slot
    }

    #[cold]
    fn grow(&mut self) {
        let slots = self.slots_of(self.blocks.len());
        // Billions of rows in one stripe would be terabytes in a table.
        assert!(self.end as usize + slots < NONE as usize, "a stripe is full: give the table more stripes");
        self.blocks.push(self.arena.take_block(slots * (self.stride + usize::from(self.with_access))));
        self.end += slots as u32;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::machine::memory::CACHE_LINE;

    fn empty(stride: usize, with_access: bool) -> Slab {
        Slab::new(&Arena::new(), stride, with_access)
    }

    fn filled(stride: usize, slots: usize) -> (Slab, Vec<u32>) {
        let mut slab = empty(stride, false);
        let numbers: Vec<u32> = (0..slots).map(|_| slab.add()).collect();
        for (value, slot) in numbers.iter().enumerate() {
            slab.words_mut(*slot).fill(value as u32);
        }
        (slab, numbers)
    }

    proptest! {
        /// A slot in use keeps its words and access metadata, whatever happens to other slots. A new slot is zero.
        #[test]
        fn slots_in_use_are_left_alone(
            stride in prop_oneof![8 => 1_usize..40, 1 => 40_usize..300],
            calls in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..400),
        ) {
            let (mut slab, mut used) = (empty(stride, true), Vec::<(u32, u32)>::new());
            for (value, (release, which)) in calls.into_iter().enumerate() {
                if release && !used.is_empty() {
                    slab.release(used.swap_remove(which.index(used.len())).0);
                } else {
                    let slot = slab.add();
                    prop_assert!(slab.access(slot) == 0 && slab.words(slot).iter().all(|word| *word == 0));
                    slab.words_mut(slot).fill(value as u32);
                    *slab.access_mut(slot) = value as u32;
                    used.push((slot, value as u32));
                }
                for (slot, value) in &used {
                    prop_assert_eq!(slab.access(*slot), *value);
                    prop_assert_eq!(slab.words(*slot), &vec![*value; stride]);
                }
            }
        }
    }

    #[test]
    fn a_slab_of_slots_given_back_does_not_grow() {
        let (mut slab, numbers) = filled(32, 1000);
        let bytes = slab.memory_bytes();
        numbers.iter().for_each(|slot| slab.release(*slot));
        let stale: std::collections::BTreeSet<u32> = numbers.iter().map(|_| slab.add()).collect();
        assert_eq!(stale, numbers.into_iter().collect());
        assert_eq!(slab.memory_bytes(), bytes);
    }

    #[test]
    fn growth_is_reported_before_it_comes() {
        let mut slab = empty(40, true);
        let held = |slab: &Slab| slab.blocks.iter().map(MemoryBlock::byte_len).sum::<usize>();
        for more in [1, 3, 1, 200, 7, 5000] {
            let (before, reported) = (held(&slab), slab.growth_bytes(more));
            let vacant = slab.vacant_slots();
            let slots: Vec<u32> = (0..more).map(|_| slab.add()).collect();
            assert_eq!(held(&slab) - before, reported);
            assert_eq!(vacant + reported / 164, slab.vacant_slots() + more);
            slots[..more / 2].iter().for_each(|slot| slab.release(*slot));
            assert_eq!(slab.growth_bytes(more / 2), 0);
            assert_eq!(slab.vacant_slots(), vacant + reported / 164 - more + more / 2);
        }
    }

    #[test]
    fn blocks_grow_and_then_stay_one_size() {
        // At 128 KiB per slot, 16 slots are 2 MiB.
        let stride = 32 << 10;
        let (slab, _) = filled(stride, 80);
        let sizes: Vec<usize> = slab.blocks.iter().map(|block| block.as_floats().len() / stride).collect();
        assert_eq!(sizes, [4, 4, 4, 4, 8, 8, 8, 8, 16, 16]);
    }

    #[test]
    fn a_slot_wider_than_a_block_still_fits() {
        let stride = BLOCK_BYTES / size_of::<f32>() + 1;
        let (slab, numbers) = filled(stride, 5);
        assert_eq!(slab.words(numbers[4])[stride - 1], 4);
    }

    #[test]
    fn rows_of_whole_cache_lines_start_at_one() {
        let (slab, numbers) = filled(32, 5000);
        for slot in numbers {
            assert_eq!(slab.words(slot).as_ptr() as usize % CACHE_LINE, 0, "slot {slot}");
        }
    }

    #[test]
    fn a_slab_takes_little_more_memory_than_its_rows() {
        for slots in [100, 1200, 30_000, 200_000] {
            let (slab, _) = filled(32, slots);
            let payload = slots * 32 * size_of::<f32>();
            let most = payload * 5 / 4 + 4096;
            assert!((payload..most).contains(&slab.memory_bytes()), "{} bytes for {payload}", slab.memory_bytes());
        }
        assert_eq!(empty(32, false).memory_bytes(), 0);
    }
}
