//! Zeroed memory that starts at a cache line, in huge pages where it is large enough and the system has them: a
//! random row then costs no walk of the page tables.

use memmap2::MmapMut;

/// Bytes of a cache line.
pub const CACHE_LINE: usize = 64;
/// Bytes of a huge page on x86-64 and aarch64.
pub const HUGE_PAGE: usize = 2 << 20;
const VALUE: usize = size_of::<u32>();

/// Values of 32 bits, zero at first, that never move.
#[derive(Debug)]
pub struct Memory {
    store: Store,
    /// Position of the first value in the store.
    start: usize,
    len: usize,
}

#[derive(Debug)]
enum Store {
    Heap(Box<[u32]>),
    Mapped(MmapMut),
}

/// Which pages large memory asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Huge ones.
    Huge,
    /// The system's ordinary ones.
    Small,
}

impl Memory {
    /// `len` zeros. Untouched pages take no memory.
    #[must_use]
    pub fn zeroed(len: usize, pages: Pages) -> Self {
        let mapped = if len * VALUE >= HUGE_PAGE { map(len * VALUE, pages) } else { None };
        let store = mapped.map_or_else(|| heap(len), Store::Mapped);
        let align = if matches!(store, Store::Mapped(_)) { HUGE_PAGE } else { CACHE_LINE };
        let slack = store.values().len() - len;
        let start = store.values().as_ptr().align_offset(align).min(slack);
        Self { store, start, len }
    }

    /// The values as numbers.
    #[inline(always)]
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.store.values()[self.start..][..self.len]
    }

    /// The values as numbers.
    #[inline(always)]
    pub fn words_mut(&mut self) -> &mut [u32] {
        &mut self.store.values_mut()[self.start..][..self.len]
    }

    /// The values as floats.
    #[inline(always)]
    #[must_use]
    pub fn floats(&self) -> &[f32] {
        bytemuck::cast_slice(self.words())
    }

    /// The values as floats.
    #[inline(always)]
    pub fn floats_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(self.words_mut())
    }

    /// Bytes held, touched or not.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.len * VALUE
    }
}

impl Store {
    #[inline(always)]
    fn values(&self) -> &[u32] {
        match self {
            Self::Heap(values) => values,
            Self::Mapped(map) => bytemuck::cast_slice(map),
        }
    }

    #[inline(always)]
    fn values_mut(&mut self) -> &mut [u32] {
        match self {
            Self::Heap(values) => values,
            Self::Mapped(map) => bytemuck::cast_slice_mut(map),
        }
    }
}

fn heap(len: usize) -> Store {
    Store::Heap(vec![0; len + CACHE_LINE / VALUE].into_boxed_slice())
}

/// One huge page more than asked for, so that the values can start at one; what is not touched costs addresses only.
/// `None` where the system refuses, and the heap serves.
fn map(bytes: usize, pages: Pages) -> Option<MmapMut> {
    let map = MmapMut::map_anon(bytes + HUGE_PAGE).ok()?;
    // Advice may be refused, by kernels built without huge pages for one: then pages are small, and all works.
    #[cfg(target_os = "linux")]
    let _ = map.advise(match pages {
        Pages::Huge => memmap2::Advice::HugePage,
        Pages::Small => memmap2::Advice::NoHugePage,
    });
    #[cfg(not(target_os = "linux"))]
    let _ = pages;
    Some(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_every_size_is_zero_and_aligned() {
        for len in [0, 1, 16, 1000, HUGE_PAGE / VALUE - 1, HUGE_PAGE / VALUE, 3 * HUGE_PAGE / VALUE + 5] {
            for pages in [Pages::Huge, Pages::Small] {
                let mut memory = Memory::zeroed(len, pages);
                assert_eq!((memory.words().len(), memory.bytes()), (len, 4 * len));
                assert!(memory.words().iter().all(|value| *value == 0));
                assert_eq!(memory.words().as_ptr() as usize % CACHE_LINE, 0, "{len} values");
                memory.floats_mut().fill(1.0);
                assert!(memory.words_mut().iter().all(|value| *value == 1.0_f32.to_bits()));
            }
        }
    }

    #[test]
    fn large_memory_starts_at_a_huge_page() {
        let memory = Memory::zeroed(HUGE_PAGE, Pages::Huge);
        assert_eq!(memory.floats().as_ptr() as usize % HUGE_PAGE, 0);
    }
}
