//! Features of the machine that plain Rust does not use by itself: huge pages, prefetching, wide vectors.

pub mod memory;

use pulp::{Arch, Simd, WithSimd};

const LINE_VALUES: usize = 16;

/// Prefetches the cache lines that hold `values`: the processor loads them before they are needed, so the cache misses of
/// many rows overlap. It affects speed only.
#[inline(always)]
pub fn prefetch<T: Copy>(values: &[T]) {
    let step = (LINE_VALUES * size_of::<u32>() / size_of::<T>().max(1)).max(1);
    let mut start = 0;
    while start < values.len() {
        line(&values[start]);
        start += step;
    }
    // Values that start within a line may end in one more.
    if !values.len().is_multiple_of(step)
        && let Some(last) = values.last()
    {
        line(last);
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[expect(
    unsafe_code,
    reason = "there is no safe prefetch; the hash-and-gather loop is two to three times faster with it"
)]
fn line<T>(value: &T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: SSE is part of x86-64. A prefetch of any address neither faults nor changes memory.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) }
}

/// Other processors rely on their hardware prefetcher.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn line<T>(_value: &T) {}

/// Runs `work`, compiled for the widest vectors of this processor, which the program chooses at run time. `work` and everything it calls must be `#[inline(always)]`. The
/// results do not depend on the width, because no operation is fused or reordered.
#[inline]
pub fn run_wide<T>(work: impl FnMut() -> T) -> T {
    Arch::new().dispatch(Wide(work))
}

/// `FnMut`, not `FnOnce`: a closure called by reference is inlined into the wide function. A closure called by value
/// goes through a function that is compiled for narrow vectors.
struct Wide<F>(F);

impl<T, F: FnMut() -> T> WithSimd for Wide<F> {
    type Output = T;

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) -> T {
        (self.0)()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefetch_of_any_length_changes_nothing() {
        for len in [0, 1, 15, 16, 17, 1000] {
            let values: Vec<u32> = (0..len).collect();
            prefetch(&values);
            assert!(values.iter().enumerate().all(|(index, value)| index as u32 == *value));
        }
        prefetch(&[(); 3]);
    }

    #[test]
    fn the_work_is_done_once_and_answers() {
        let mut values = [1.0_f32, 4.0, 9.0];
        let sum = run_wide(
            #[inline(always)]
            || {
                values.iter_mut().for_each(|value| *value = value.sqrt());
                values.iter().sum::<f32>()
            },
        );
        assert_eq!((values, sum), ([1.0, 2.0, 3.0], 6.0));
    }
}
