//! Loops compiled for several vector widths. The program chooses the widest one of the processor at run time.

use pulp::{Arch, Simd, WithSimd};

/// Runs `work`, compiled for this processor's vectors. `work` and everything it calls must be `#[inline(always)]`. The
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
