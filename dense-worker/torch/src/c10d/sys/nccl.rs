//! The library of NCCL groups. It is part of the program as bytes and is opened on demand, so that the same program starts
//! on machines without CUDA.
#![expect(unsafe_code, reason = "calls the shim over libtorch's c10d")]

use std::ffi::{c_char, c_int};
use std::fmt;
use std::ptr::{self, NonNull};
use std::time::Duration;

use super::{NativeGroup, RawGroup, RawStore, RendezvousStore, c_string, checked_call, to_c_int, to_millis};

/// The library that `build.rs` made.
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libzagros_nccl.so"));

/// The functions of the library, with the layout of `shim/nccl.hpp`, which describes each.
#[repr(C)]
struct RawNccl {
    devices: unsafe extern "C" fn(out: *mut c_int, why: *mut c_char, room: usize) -> c_int,
    form: unsafe extern "C" fn(
        store: *mut RawStore,
        prefix: *const c_char,
        rank: c_int,
        world: c_int,
        timeout_ms: u64,
        out: *mut *mut RawGroup,
        why: *mut c_char,
        room: usize,
    ) -> c_int,
}

unsafe extern "C" {
    fn zagros_nccl_open(
        content: *const u8,
        length: usize,
        out: *mut *const RawNccl,
        why: *mut c_char,
        room: usize,
    ) -> c_int;
}

/// The opened library. It stays open as long as the process.
#[derive(Clone, Copy)]
pub(crate) struct NcclLibrary(&'static RawNccl);

impl fmt::Debug for NcclLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nccl")
    }
}

impl NcclLibrary {
    /// Call this after [`crate::c10d::open_cuda_half`].
    pub(crate) fn open() -> Result<Self, String> {
        let mut out = ptr::null();
        // SAFETY: the bytes are a library of ours, which does nothing when it is opened; out and why are ours.
        checked_call(|why, room| unsafe {
            zagros_nccl_open(LIBRARY.as_ptr(), LIBRARY.len(), &raw mut out, why, room)
        })?;
        // SAFETY: the table of functions is a constant of the library, which stays open as long as the process.
        unsafe { out.as_ref() }.map(Self).ok_or_else(|| "its library offers nothing".to_owned())
    }

    /// How many devices CUDA shows to this process; at least one.
    pub(crate) fn device_count(self) -> Result<usize, String> {
        let mut count = 0;
        // SAFETY: the library stays open; count and why are ours.
        checked_call(|why, room| unsafe { (self.0.devices)(&raw mut count, why, room) })?;
        usize::try_from(count).map_err(|_| format!("{count} devices"))
    }

    /// Connects to all other ranks. Blocks for longer than `timeout` if one of them never comes.
    pub(crate) fn form_group(
        self,
        store: &RendezvousStore,
        prefix: &str,
        (rank, world): (usize, usize),
        timeout: Duration,
    ) -> Result<NativeGroup, String> {
        let prefix = c_string(prefix)?;
        let (rank, world) = (to_c_int(rank)?, to_c_int(world)?);
        let mut out = ptr::null_mut();
        checked_call(|why, room| {
            let (store, timeout) = (store.0.as_ptr(), to_millis(timeout));
            // SAFETY: the prefix ends with NUL, the store lives for the call, out and why are ours.
            unsafe { (self.0.form)(store, prefix.as_ptr(), rank, world, timeout, &raw mut out, why, room) }
        })?;
        NonNull::new(out).map(NativeGroup).ok_or_else(|| "no group was made".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_in_the_program() {
        assert_eq!(&LIBRARY[..4], b"\x7fELF");
        let has = |name: &[u8]| LIBRARY.windows(name.len()).any(|bytes| bytes == name);
        assert!(has(b"libtorch_cuda.so\0") && has(b"libnccl.so.2\0"), "it is linked with neither");
        assert!(has(b"_ZN4c10d16ProcessGroupNCCLC1"), "it makes no NCCL group");
    }
}
