//! Slots of one size in large blocks: no heap block per row, no copy when it grows.

use crate::memory::{HUGE_PAGE, Memory, Pages};

/// Slots of the first blocks: a stripe of a tiny table costs no more than these.
const FIRST_BLOCK: usize = 4;
/// Blocks of one size. The next ones are twice as large, so that no more than a quarter of a slab is unused.
const BLOCKS_PER_LEVEL: usize = 4;
/// Blocks grow up to this size and stay there.
const BLOCK_BYTES: usize = HUGE_PAGE;

/// Slots of `stride` values each. A slot's number is its block, then its place there in `bits` bits; blocks below the
/// largest leave numbers unused.
#[derive(Debug)]
pub(crate) struct Slab {
    stride: usize,
    bits: u32,
    blocks: Vec<Memory>,
    /// The number given next, unless it is `end`.
    next: usize,
    end: usize,
}

impl Slab {
    pub(crate) fn new(stride: usize) -> Self {
        let largest = BLOCK_BYTES / (stride.max(1) * size_of::<f32>());
        Self { stride, bits: largest.max(FIRST_BLOCK).ilog2(), blocks: Vec::new(), next: 0, end: 0 }
    }

    /// Adds one slot of zeros and answers its number.
    #[inline]
    pub(crate) fn add(&mut self) -> u32 {
        if self.next == self.end {
            self.grow();
        }
        self.next += 1;
        (self.next - 1) as u32
    }

    #[inline(always)]
    pub(crate) fn slot(&self, slot: u32) -> &[f32] {
        let (block, start) = self.locate(slot);
        &self.blocks[block].floats()[start..][..self.stride]
    }

    #[inline(always)]
    pub(crate) fn slot_mut(&mut self, slot: u32) -> &mut [f32] {
        let (block, start) = self.locate(slot);
        &mut self.blocks[block].floats_mut()[start..][..self.stride]
    }

    /// Bytes held, used or not.
    pub(crate) fn bytes(&self) -> usize {
        let blocks: usize = self.blocks.iter().map(Memory::bytes).sum();
        blocks + self.blocks.capacity() * size_of::<Memory>()
    }

    #[inline(always)]
    fn locate(&self, slot: u32) -> (usize, usize) {
        let place = slot & ((1 << self.bits) - 1);
        ((slot >> self.bits) as usize, place as usize * self.stride)
    }

    #[cold]
    fn grow(&mut self) {
        let first = self.blocks.len() << self.bits;
        // Slots are numbered in 32 bits: billions of rows in one stripe are terabytes in a whole table.
        assert!(first < (u32::MAX >> 1) as usize, "a stripe is full: give the table more stripes");
        let level = (self.blocks.len() / BLOCKS_PER_LEVEL) as u32;
        let slots = 1 << self.bits.min(FIRST_BLOCK.ilog2() + level);
        self.blocks.push(Memory::zeroed(slots * self.stride, Pages::Huge));
        (self.next, self.end) = (first, first + slots);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::memory::CACHE_LINE;

    fn filled(stride: usize, slots: usize) -> (Slab, Vec<u32>) {
        let mut slab = Slab::new(stride);
        let numbers: Vec<u32> = (0..slots).map(|_| slab.add()).collect();
        for (value, slot) in numbers.iter().enumerate() {
            slab.slot_mut(*slot).fill(value as f32);
        }
        (slab, numbers)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn slots_never_overlap(stride in 1_usize..3000, slots in 0_usize..2000) {
            let (slab, numbers) = filled(stride, slots);
            for (value, slot) in numbers.into_iter().enumerate() {
                prop_assert_eq!(slab.slot(slot).len(), stride);
                prop_assert!(slab.slot(slot).iter().all(|found| *found == value as f32), "slot {}", slot);
            }
        }
    }

    #[test]
    fn blocks_grow_and_then_stay_one_size() {
        // 128 KiB a slot: 16 slots are 2 MiB.
        let stride = 32 << 10;
        let (slab, _) = filled(stride, 80);
        let sizes: Vec<usize> = slab.blocks.iter().map(|block| block.floats().len() / stride).collect();
        assert_eq!(sizes, [4, 4, 4, 4, 8, 8, 8, 8, 16, 16]);
    }

    #[test]
    fn a_slot_wider_than_a_block_still_fits() {
        let stride = BLOCK_BYTES / size_of::<f32>() + 1;
        let (slab, numbers) = filled(stride, 5);
        assert_eq!(slab.slot(numbers[4])[stride - 1], 4.0);
    }

    #[test]
    fn rows_of_whole_cache_lines_start_at_one() {
        let (slab, numbers) = filled(32, 5000);
        for slot in numbers {
            assert_eq!(slab.slot(slot).as_ptr() as usize % CACHE_LINE, 0, "slot {slot}");
        }
    }

    #[test]
    fn what_it_holds_is_little_more_than_its_rows() {
        for slots in [100, 1200, 30_000, 200_000] {
            let (slab, _) = filled(32, slots);
            let payload = slots * 32 * size_of::<f32>();
            let most = payload * 5 / 4 + 4096;
            assert!((payload..most).contains(&slab.bytes()), "{} bytes for {payload}", slab.bytes());
        }
        assert_eq!(Slab::new(32).bytes(), 0);
    }
}
