//! Prefetching: the processor loads memory before it is needed, so the cache misses of many rows overlap.

const LINE_VALUES: usize = 16;

/// Prefetches the cache lines that hold `values`. It affects speed only.
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
}
