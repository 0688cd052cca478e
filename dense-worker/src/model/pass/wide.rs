//! Loops compiled for the widest vectors of the processor at hand, chosen when the program runs.

use pulp::{Arch, Simd, WithSimd};

/// Runs `work` as compiled for this processor's vectors; everything it calls must be `#[inline(always)]`, itself
/// included. Results do not depend on the width: no operation is fused or reordered.
#[inline]
pub(super) fn wide<T>(work: impl FnMut() -> T) -> T {
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
