//! Loops compiled for the widest vectors of the processor at hand, chosen when the program runs.

use pulp::{Arch, Simd, WithSimd};

/// Runs `work` as compiled for this processor's vectors; everything it calls must be `#[inline(always)]`, itself
/// included. Results do not depend on the width: no operation is fused or reordered.
#[inline]
pub fn wide<T>(work: impl FnMut() -> T) -> T {
    Arch::new().dispatch(Wide(work))
}

/// `FnMut` and not `FnOnce`: a closure that is called by reference is reached through no function between, which
/// would stay narrow.
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
        let sum = wide(
            #[inline(always)]
            || {
                values.iter_mut().for_each(|value| *value = value.sqrt());
                values.iter().sum::<f32>()
            },
        );
        assert_eq!((values, sum), ([1.0, 2.0, 3.0], 6.0));
    }
}
