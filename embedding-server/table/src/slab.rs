//! Slots of one size in large blocks: no heap block per row, no copy when it grows.

/// Slots in the first level of blocks; a stripe of a tiny table costs a quarter of this.
const FIRST_LEVEL: usize = 16;
/// Blocks per level. The next level's are twice as large, so that no more than a quarter of a slab is unused.
const BLOCKS_PER_LEVEL: usize = 4;
/// Blocks grow up to this size, one huge page on x86-64 and aarch64, and stay there.
const BLOCK_BYTES: usize = 2 << 20;
/// Slots start at a cache line, so that a row of 16 f32 is one line and never two.
const CACHE_LINE: usize = 64;
const LINE_VALUES: usize = CACHE_LINE / size_of::<f32>();

/// Slots of `stride` values each, numbered from 0 in order of creation.
#[derive(Debug)]
pub(crate) struct Slab {
    stride: usize,
    /// Levels after which the size of a block stays.
    levels: usize,
    blocks: Vec<Block>,
    len: usize,
    capacity: usize,
}

/// One allocation. A boxed slice never moves, so its aligned start is found once.
#[derive(Debug)]
struct Block {
    values: Box<[f32]>,
    start: usize,
}

impl Slab {
    pub(crate) fn new(stride: usize) -> Self {
        let slot_bytes = stride.max(1) * size_of::<f32>();
        let growth = BLOCK_BYTES / slot_bytes / (FIRST_LEVEL / BLOCKS_PER_LEVEL);
        let levels = growth.max(1).ilog2() as usize;
        Self { stride, levels, blocks: Vec::new(), len: 0, capacity: 0 }
    }

    /// Adds one slot of unspecified content.
    #[inline]
    pub(crate) fn add(&mut self) -> usize {
        if self.len == self.capacity {
            self.grow();
        }
        self.len += 1;
        self.len - 1
    }

    #[inline]
    pub(crate) fn slot(&self, slot: usize) -> &[f32] {
        let (block, offset) = self.locate(slot);
        let block = &self.blocks[block];
        &block.values[block.start + offset * self.stride..][..self.stride]
    }

    #[inline]
    pub(crate) fn slot_mut(&mut self, slot: usize) -> &mut [f32] {
        let (block, offset) = self.locate(slot);
        let block = &mut self.blocks[block];
        &mut block.values[block.start + offset * self.stride..][..self.stride]
    }

    /// Bytes allocated, used or not.
    pub(crate) fn bytes(&self) -> usize {
        let blocks: usize = self.blocks.iter().map(|block| size_of_val(&*block.values)).sum();
        blocks + self.blocks.capacity() * size_of::<Block>()
    }

    #[cold]
    fn grow(&mut self) {
        // The index holds slots in 32 bits: billions of rows in one stripe are terabytes in a whole table.
        assert!(self.capacity < u32::MAX as usize / 2, "a stripe is full: give the table more stripes");
        let level = (self.blocks.len() / BLOCKS_PER_LEVEL).min(self.levels);
        let slots = (FIRST_LEVEL / BLOCKS_PER_LEVEL) << level;
        self.blocks.push(Block::new(slots * self.stride));
        self.capacity += slots;
    }

    /// Level k holds `FIRST_LEVEL << k` slots in equal blocks, until blocks reach their largest size: the level of a
    /// slot is a logarithm, its block a shift.
    #[inline]
    fn locate(&self, slot: usize) -> (usize, usize) {
        let shifted = slot + FIRST_LEVEL;
        let level = ((shifted / FIRST_LEVEL).ilog2() as usize).min(self.levels);
        let bits = (FIRST_LEVEL / BLOCKS_PER_LEVEL).trailing_zeros() as usize + level;
        let within = shifted - (FIRST_LEVEL << level);
        (level * BLOCKS_PER_LEVEL + (within >> bits), within & ((1 << bits) - 1))
    }
}

impl Block {
    fn new(values: usize) -> Self {
        // Zeroed memory straight from the system is not touched until a slot is used.
        let values = vec![0.0_f32; values + LINE_VALUES].into_boxed_slice();
        let start = values.as_ptr().align_offset(CACHE_LINE).min(LINE_VALUES);
        Self { values, start }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filled(stride: usize, slots: usize) -> Slab {
        let mut slab = Slab::new(stride);
        for slot in 0..slots {
            assert_eq!(slab.add(), slot);
            slab.slot_mut(slot).fill(slot as f32);
        }
        slab
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn slots_never_overlap(stride in 1_usize..3000, slots in 0_usize..2000) {
            let slab = filled(stride, slots);
            for slot in 0..slots {
                let values = slab.slot(slot);
                prop_assert_eq!(values.len(), stride);
                prop_assert!(values.iter().all(|value| *value == slot as f32), "slot {}", slot);
            }
        }
    }

    #[test]
    fn blocks_grow_and_then_stay_one_size() {
        // 128 KiB a slot: 16 slots are 2 MiB.
        let stride = 32 << 10;
        let slab = filled(stride, 80);
        let sizes: Vec<usize> = slab.blocks.iter().map(|block| block.values.len() / stride).collect();
        assert_eq!(sizes, [4, 4, 4, 4, 8, 8, 8, 8, 16, 16]);
    }

    #[test]
    fn a_slot_wider_than_a_block_still_fits() {
        let stride = BLOCK_BYTES / size_of::<f32>() + 1;
        let slab = filled(stride, 5);
        assert_eq!(slab.slot(4)[stride - 1], 4.0);
    }

    #[test]
    fn rows_of_whole_cache_lines_start_at_one() {
        let slab = filled(32, 5000);
        for slot in 0..5000 {
            assert_eq!(slab.slot(slot).as_ptr().align_offset(CACHE_LINE), 0, "slot {slot}");
        }
    }

    #[test]
    fn what_it_holds_is_little_more_than_its_rows() {
        for slots in [100, 1200, 30_000, 200_000] {
            let slab = filled(32, slots);
            let payload = slots * 32 * size_of::<f32>();
            let most = payload * 5 / 4 + 4096;
            assert!((payload..most).contains(&slab.bytes()), "{} bytes for {payload}", slab.bytes());
        }
        assert_eq!(Slab::new(32).bytes(), 0);
    }
}
