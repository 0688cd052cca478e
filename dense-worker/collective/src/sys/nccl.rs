//! The library of NCCL groups: part of the program as bytes, opened when it is asked for, so that the same program
//! starts on machines without CUDA.
#![expect(unsafe_code, reason = "calls the shim over libtorch's c10d")]

use std::ffi::{c_char, c_int};
use std::ptr::{self, NonNull};
use std::time::Duration;

use super::{Group, RawGroup, RawStore, Store, call, int, millis, text};

/// Made by `build.rs`.
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libzagros_nccl.so"));

#[repr(C)]
struct RawNccl {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn zagros_cuda_open(name: *const c_char, why: *mut c_char, room: usize) -> c_int;
    fn zagros_nccl_open(
        content: *const u8,
        length: usize,
        out: *mut *const RawNccl,
        why: *mut c_char,
        room: usize,
    ) -> c_int;
    fn zagros_nccl_devices(nccl: *const RawNccl, out: *mut c_int, why: *mut c_char, room: usize) -> c_int;
    fn zagros_nccl_form(
        nccl: *const RawNccl,
        store: *mut RawStore,
        prefix: *const c_char,
        rank: c_int,
        world: c_int,
        patience_ms: u64,
        out: *mut *mut RawGroup,
        why: *mut c_char,
        room: usize,
    ) -> c_int;
}

/// Opens libtorch's CUDA half for the whole process. It has to come before anything asks libtorch about CUDA.
pub(crate) fn open_cuda(library: &str) -> Result<(), String> {
    let library = text(library)?;
    // SAFETY: the name ends with NUL; libtorch's library only registers what it knows when it is opened.
    call(|why, room| unsafe { zagros_cuda_open(library.as_ptr(), why, room) })
}

/// The opened library, which stays open as long as the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nccl(NonNull<RawNccl>);

// SAFETY: a constant of the library.
unsafe impl Send for Nccl {}
// SAFETY: as above.
unsafe impl Sync for Nccl {}

impl Nccl {
    /// After [`open_cuda`].
    pub(crate) fn open() -> Result<Self, String> {
        let mut out = ptr::null();
        // SAFETY: the bytes are a library of ours, which does nothing when it is opened; out and why are ours.
        call(|why, room| unsafe { zagros_nccl_open(LIBRARY.as_ptr(), LIBRARY.len(), &raw mut out, why, room) })?;
        NonNull::new(out.cast_mut()).map(Self).ok_or_else(|| "its library offers nothing".to_owned())
    }

    /// How many devices CUDA shows to this process, one at least.
    pub(crate) fn devices(self) -> Result<usize, String> {
        let mut count = 0;
        // SAFETY: the library stays open; count and why are ours.
        call(|why, room| unsafe { zagros_nccl_devices(self.0.as_ptr(), &raw mut count, why, room) })?;
        usize::try_from(count).map_err(|_| format!("{count} devices"))
    }

    /// Connects to all other ranks. Blocks for longer than `patience` when one of them never comes.
    pub(crate) fn form(
        self,
        store: &Store,
        prefix: &str,
        (rank, world): (usize, usize),
        patience: Duration,
    ) -> Result<Group, String> {
        let prefix = text(prefix)?;
        let (rank, world) = (int(rank)?, int(world)?);
        let mut out = ptr::null_mut();
        call(|why, room| {
            let (nccl, store, patience) = (self.0.as_ptr(), store.0.as_ptr(), millis(patience));
            // SAFETY: the prefix ends with NUL, the store lives for the call, out and why are ours.
            unsafe { zagros_nccl_form(nccl, store, prefix.as_ptr(), rank, world, patience, &raw mut out, why, room) }
        })?;
        NonNull::new(out).map(Group).ok_or_else(|| "no group was made".to_owned())
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

    #[test]
    fn what_cannot_be_opened_is_named() {
        let error = open_cuda("libno_such_library.so").unwrap_err();
        assert!(error.contains("libno_such_library.so"), "{error}");
    }
}
