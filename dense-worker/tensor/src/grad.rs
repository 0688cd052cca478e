//! Whether operators are recorded for backward, and the seed of libtorch's generator.
#![expect(unsafe_code, reason = "calls the shim over libtorch")]

use std::marker::PhantomData;

use zagros_shim::call;

use crate::error::TorchError;
use crate::sys;

/// Until it is dropped, no operator of this thread is recorded for backward.
#[derive(Debug)]
pub struct NoGradGuard {
    was_on: bool,
    /// The mode is the thread's: a guard stays on it.
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for NoGradGuard {
    fn drop(&mut self) {
        // SAFETY: sets a mode of this thread.
        let _ = unsafe { sys::zagros_grad_mode(self.was_on) };
    }
}

/// Ends recording on this thread for as long as the guard lives.
#[must_use = "recording goes on when the guard is dropped"]
pub fn no_grad_guard() -> NoGradGuard {
    // SAFETY: sets a mode of this thread.
    NoGradGuard { was_on: unsafe { sys::zagros_grad_mode(false) }, _of_this_thread: PhantomData }
}

/// What `work` gives, of which nothing is recorded.
pub fn no_grad<T>(work: impl FnOnce() -> T) -> T {
    let _guard = no_grad_guard();
    work()
}

/// Seeds libtorch's generators, of which a process has one for each device.
///
/// # Errors
/// In libtorch's words.
pub fn manual_seed(seed: u64) -> Result<(), TorchError> {
    // SAFETY: why is ours.
    Ok(call(|why, room| unsafe { sys::zagros_seed(seed, why, room) })?)
}
