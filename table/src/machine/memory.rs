//! Zeroed memory, aligned to cache lines, from a few large chunks of huge pages. Reading a random row in a huge page
//! seldom misses the TLB.
//!
//! An [`Arena`] serves a whole table, because the blocks of one stripe would leave most of a huge page empty. An arena
//! keeps a freed block for the next request of equal length. Users therefore ask for few different lengths.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memmap2::MmapMut;
use parking_lot::Mutex;

pub const CACHE_LINE: usize = 64;
/// Bytes of a huge page on x86-64 and aarch64.
pub const HUGE_PAGE: usize = 2 << 20;
const WORD: usize = size_of::<u32>();
const LINE: usize = CACHE_LINE / WORD;
/// Bytes of the smallest block that comes from a chunk. Smaller blocks come from the heap.
const SMALLEST: usize = 4 << 10;
/// Largest chunk in bytes, unless one block is larger. Chunks grow with the arena up to this size.
const LARGEST_CHUNK: usize = 64 << 20;
/// The system gets the memory of freed blocks of at least this size.
const RETURNED: usize = 64 << 10;
const SMALL_PAGE: usize = 4 << 10;

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct CacheLine([u32; LINE]);

/// A block of 32-bit words. It starts as zeros and never moves.
#[derive(Debug)]
pub struct MemoryBlock {
    start: NonNull<u32>,
    len: usize,
    /// The arena that the block returns to. `None` for a block of the heap.
    arena: Option<Arc<Arena>>,
}

/// Large chunks of memory, and their unused parts.
#[derive(Debug)]
pub struct Arena {
    state: Mutex<ArenaState>,
    /// Bytes of freed blocks that wait for reuse. The process holds this memory.
    idle: AtomicUsize,
}

#[derive(Debug)]
struct ArenaState {
    /// Keeps the chunks alive. Pointers reach their memory.
    chunks: Vec<MmapMut>,
    mapped: usize,
    /// Start of the unused part of the newest chunk, aligned to a cache line.
    rest: NonNull<u32>,
    rest_len: usize,
    /// Freed blocks, by length.
    free: HashMap<usize, Vec<NonNull<u32>>>,
}

#[expect(unsafe_code, reason = "owned memory behind a pointer: lookups in huge pages are a third faster")]
// SAFETY: a block's words are reached through the block alone, by the rules of `&` and `&mut`, like those of a
// `Box<[u32]>`.
unsafe impl Send for MemoryBlock {}

#[expect(unsafe_code, reason = "as for `Send`")]
// SAFETY: as for `Send`; shared access only reads.
unsafe impl Sync for MemoryBlock {}

#[expect(unsafe_code, reason = "pointers into memory that the state owns")]
// SAFETY: the pointers point into the state's own chunks, and only to blocks that are not in use.
unsafe impl Send for ArenaState {}

impl Arena {
    pub fn new() -> Arc<Self> {
        let free = HashMap::new();
        let state = ArenaState { chunks: Vec::new(), mapped: 0, rest: NonNull::dangling(), rest_len: 0, free };
        Arc::new(Self { state: Mutex::new(state), idle: AtomicUsize::new(0) })
    }

    /// Takes a block of `len` zeros. A page uses no memory until it is touched.
    pub fn take_block(self: &Arc<Self>, len: usize) -> MemoryBlock {
        // The heap serves if the system has no memory to map, and under Miri, which cannot map memory.
        if len * WORD < SMALLEST || cfg!(miri) {
            return heap(len);
        }
        let words = len.next_multiple_of(LINE);
        let mut state = self.state.lock();
        let start = match state.take_again(words) {
            Some(start) => {
                if !is_returned(words) {
                    self.idle.fetch_sub(words * WORD, Ordering::Relaxed);
                }
                Some(start)
            }
            None => state.split_off(words),
        };
        drop(state);
        start.map_or_else(|| heap(len), |start| MemoryBlock { start, len, arena: Some(Arc::clone(self)) })
    }

    /// Bytes of freed blocks that wait for reuse. The memory of large ones is the system's meanwhile, and does not count.
    pub fn idle_bytes(&self) -> usize {
        self.idle.load(Ordering::Relaxed)
    }

    fn give_back(&self, start: NonNull<u32>, len: usize) {
        let words = len.next_multiple_of(LINE);
        let mut state = self.state.lock();
        state.free.entry(words).or_default().push(start);
        if is_returned(words) {
            state.return_to_system(start, words);
        } else {
            self.idle.fetch_add(words * WORD, Ordering::Relaxed);
        }
    }
}

impl MemoryBlock {
    #[expect(unsafe_code, reason = "a branch on where the memory came from would cost more than reading a word")]
    #[inline(always)]
    pub fn words(&self) -> &[u32] {
        // SAFETY: `start` points to `len` initialised words. Nothing else reaches them until `self` is dropped.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    #[expect(unsafe_code, reason = "as for `words`")]
    #[inline(always)]
    pub fn words_mut(&mut self) -> &mut [u32] {
        // SAFETY: as for `words`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    #[inline(always)]
    pub fn as_floats(&self) -> &[f32] {
        bytemuck::cast_slice(self.words())
    }

    #[inline(always)]
    pub fn as_floats_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(self.words_mut())
    }

    pub fn byte_len(&self) -> usize {
        self.len * WORD
    }
}

impl Drop for MemoryBlock {
    #[expect(unsafe_code, reason = "memory of the heap returns to the heap")]
    fn drop(&mut self) {
        match self.arena.take() {
            Some(arena) => arena.give_back(self.start, self.len),
            None => {
                let lines =
                    std::ptr::slice_from_raw_parts_mut(self.start.as_ptr().cast::<CacheLine>(), lines(self.len));
                // SAFETY: `heap` leaked a box of as many cache lines, and only `self` used it.
                drop(unsafe { Box::from_raw(lines) });
            }
        }
    }
}

impl ArenaState {
    fn take_again(&mut self, len: usize) -> Option<NonNull<u32>> {
        let start = self.free.get_mut(&len).and_then(Vec::pop)?;
        zero(start, len);
        Some(start)
    }

    /// Lets the system have the memory of a freed block until the block is taken again.
    #[expect(unsafe_code, reason = "the content of a freed block is lost")]
    fn return_to_system(&self, start: NonNull<u32>, words: usize) {
        let (start, end) = (start.as_ptr() as usize, start.as_ptr() as usize + words * WORD);
        let (first, end) = (start.next_multiple_of(SMALL_PAGE), end / SMALL_PAGE * SMALL_PAGE);
        let is_inside =
            |chunk: &&MmapMut| (chunk.as_ptr() as usize..chunk.as_ptr() as usize + chunk.len()).contains(&first);
        let Some(chunk) = self.chunks.iter().find(is_inside).filter(|_| first < end) else { return };
        let offset = first - chunk.as_ptr() as usize;
        #[cfg(target_os = "linux")]
        // SAFETY: no code reads a freed block before it is taken again and filled with zeros.
        let _ = unsafe { chunk.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, end - first) };
        #[cfg(not(target_os = "linux"))]
        let _ = offset;
    }

    fn split_off(&mut self, len: usize) -> Option<NonNull<u32>> {
        if self.rest_len < len {
            self.map(len)?;
        }
        let start = self.rest;
        self.rest = pointer_after(start, len);
        self.rest_len -= len;
        Some(start)
    }

    /// Maps a new chunk that starts at a huge page. The unused part of the last chunk is lost, but it was never
    /// touched.
    #[cold]
    fn map(&mut self, len: usize) -> Option<()> {
        let bytes = (self.mapped / 4).min(LARGEST_CHUNK).max(len * WORD).next_multiple_of(HUGE_PAGE);
        let mut chunk = MmapMut::map_anon(bytes + HUGE_PAGE).ok()?;
        // The kernel may refuse the advice, for example if it is built without huge pages. Then pages are small.
        #[cfg(target_os = "linux")]
        let _ = chunk.advise(memmap2::Advice::HugePage);
        let slack = chunk.as_ptr().align_offset(HUGE_PAGE).min(HUGE_PAGE);
        let words: &mut [u32] = bytemuck::cast_slice_mut(&mut chunk[slack..][..bytes]);
        (self.rest, self.rest_len) = (NonNull::from(words).cast(), bytes / WORD);
        self.mapped += bytes;
        self.chunks.push(chunk);
        Some(())
    }
}

/// Whether the memory of a freed block of this length goes back to the system.
fn is_returned(words: usize) -> bool {
    cfg!(target_os = "linux") && words * WORD >= RETURNED
}

fn heap(len: usize) -> MemoryBlock {
    let lines = vec![CacheLine([0; LINE]); lines(len)].into_boxed_slice();
    MemoryBlock { start: NonNull::from(Box::leak(lines)).cast(), len, arena: None }
}

fn lines(len: usize) -> usize {
    len.div_ceil(LINE)
}

#[expect(unsafe_code, reason = "blocks follow each other in a chunk")]
fn pointer_after(start: NonNull<u32>, len: usize) -> NonNull<u32> {
    // SAFETY: the caller checked that the chunk has `len` words after `start`. A pointer one past the end is allowed.
    unsafe { start.add(len) }
}

#[expect(unsafe_code, reason = "a freed block is not a slice until it is taken again")]
fn zero(start: NonNull<u32>, len: usize) {
    // SAFETY: a block of this length starts at `start`, and no code uses it.
    unsafe { start.write_bytes(0, len) };
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn memory_of_every_size_is_zero_and_aligned() {
        let arena = Arena::new();
        for len in [0, 1, 16, 1000, 1024, 5000, HUGE_PAGE / WORD, 3 * HUGE_PAGE / WORD + 5] {
            let mut memory = arena.take_block(len);
            assert_eq!((memory.words().len(), memory.byte_len()), (len, 4 * len));
            assert!(memory.words().iter().all(|word| *word == 0));
            assert_eq!(memory.words().as_ptr() as usize % CACHE_LINE, 0, "{len} words");
            memory.as_floats_mut().fill(1.0);
            assert!(memory.words_mut().iter().all(|word| *word == 1.0_f32.to_bits()));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "there is nothing to map")]
    fn a_chunk_starts_at_a_huge_page_and_blocks_follow_each_other() {
        let arena = Arena::new();
        let [first, second] = [2000, 3000].map(|len| arena.take_block(len));
        assert_eq!(first.words().as_ptr() as usize % HUGE_PAGE, 0);
        assert_eq!(second.words().as_ptr() as usize % HUGE_PAGE, 2000 * WORD);
    }

    #[test]
    #[cfg_attr(miri, ignore = "there is nothing to map")]
    fn a_freed_block_is_used_again() {
        let arena = Arena::new();
        let start = arena.take_block(5000).words().as_ptr();
        assert_eq!(arena.idle_bytes(), 5008 * WORD);
        assert_eq!(arena.take_block(5000).words().as_ptr(), start);
        assert_ne!(arena.take_block(6000).words().as_ptr(), start);
    }

    #[test]
    fn a_large_freed_block_does_not_count_and_is_zero_when_it_is_taken_again() {
        let arena = Arena::new();
        for len in [RETURNED / WORD, 3 * HUGE_PAGE / WORD + 16] {
            let mut memory = arena.take_block(len);
            memory.words_mut().fill(7);
            let start = memory.words().as_ptr();
            drop(memory);
            assert_eq!(arena.idle_bytes(), if cfg!(target_os = "linux") { 0 } else { len * WORD });
            let again = arena.take_block(len);
            assert!(again.words().as_ptr() == start && again.words().iter().all(|word| *word == 0));
        }
        assert_eq!(arena.idle_bytes(), 0);
    }

    #[test]
    fn memory_outlives_the_owners_handle_on_its_arena() {
        let arena = Arena::new();
        let mut memory = arena.take_block(5000);
        drop(arena);
        memory.words_mut()[4999] = 7;
        assert_eq!(memory.words()[4999], 7);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 40 }))]
        /// A block in use keeps its words. A new block is zero, whatever its memory held before.
        #[test]
        fn blocks_never_overlap(calls in prop::collection::vec((0_usize..6, any::<bool>()), 0..120)) {
            let arena = Arena::new();
            let mut used: Vec<(MemoryBlock, u32)> = Vec::new();
            for (value, (which, release)) in calls.into_iter().enumerate() {
                if release && !used.is_empty() {
                    used.swap_remove(which % used.len());
                } else {
                    let mut memory = arena.take_block([1, 100, 1024, 1030, 20_000, 600_000][which]);
                    prop_assert!(memory.words().iter().all(|word| *word == 0));
                    memory.words_mut().fill(value as u32);
                    used.push((memory, value as u32));
                }
                // Overlapping blocks would differ at their ends.
                for (memory, value) in &used {
                    prop_assert_eq!((memory.words().first(), memory.words().last()), (Some(value), Some(value)));
                }
            }
        }
    }
}
