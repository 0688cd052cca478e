//! The shim's C functions, each in a safe function.
#![expect(unsafe_code, reason = "calls the shim over libtorch's c10d")]

#[cfg(feature = "nccl")]
pub(crate) mod nccl;

use std::ffi::{c_char, c_int};
use std::mem::ManuallyDrop;
use std::net::TcpListener;
use std::os::fd::IntoRawFd;
use std::ptr::{self, NonNull};
use std::time::Duration;

use crate::c10d::shim::c_string;

use zagros_collective::GroupInterrupt;

#[repr(C)]
struct RawStore {
    _opaque: [u8; 0],
}

#[repr(C)]
struct RawGroup {
    _opaque: [u8; 0],
}

#[repr(C)]
struct RawWork {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn zagros_store_open(
        host: *const c_char,
        port: u16,
        listener: c_int,
        timeout_ms: u64,
        out: *mut *mut RawStore,
        why: *mut c_char,
        room: usize,
    ) -> c_int;
    fn zagros_store_set(store: *mut RawStore, key: *const c_char, why: *mut c_char, room: usize) -> c_int;
    fn zagros_store_has(
        store: *mut RawStore,
        key: *const c_char,
        out: *mut bool,
        why: *mut c_char,
        room: usize,
    ) -> c_int;
    fn zagros_store_close(store: *mut RawStore);
    fn zagros_group_form(
        store: *mut RawStore,
        prefix: *const c_char,
        rank: c_int,
        world: c_int,
        host: *const c_char,
        timeout_ms: u64,
        out: *mut *mut RawGroup,
        why: *mut c_char,
        room: usize,
    ) -> c_int;
    fn zagros_group_start_all_reduce(
        group: *mut RawGroup,
        values: *mut f32,
        length: usize,
        out: *mut *mut RawWork,
        why: *mut c_char,
        room: usize,
    ) -> c_int;
    fn zagros_work_wait(work: *mut RawWork, millis: u64, done: *mut bool, why: *mut c_char, room: usize) -> c_int;
    fn zagros_work_is_done(work: *mut RawWork) -> bool;
    fn zagros_work_free(work: *mut RawWork);
    fn zagros_group_start_all_gather(
        group: *mut RawGroup,
        mine: *mut u8,
        length: usize,
        all: *mut u8,
        out: *mut *mut RawWork,
        why: *mut c_char,
        room: usize,
    ) -> c_int;
    fn zagros_group_start_parts(
        group: *mut RawGroup,
        gathers: bool,
        values: *mut f32,
        bounds: *const usize,
        out: *mut *mut RawWork,
        why: *mut c_char,
        room: usize,
    ) -> c_int;
    fn zagros_group_give_up(group: *mut RawGroup, why: *mut c_char, room: usize) -> c_int;
    fn zagros_group_leave(group: *mut RawGroup);
}

#[derive(Debug)]
pub(crate) struct RendezvousStore(NonNull<RawStore>);

// SAFETY: c10d's TCPStore guards each of its operations by a mutex of its own.
unsafe impl Send for RendezvousStore {}
// SAFETY: as above.
unsafe impl Sync for RendezvousStore {}

/// A connected process group. Dropping it closes its connections. A group over NCCL first finishes the calls in flight.
#[derive(Debug)]
pub(crate) struct NativeGroup(NonNull<RawGroup>);

// SAFETY: a process group is bound to no thread. `&mut self` ensures that only one thread at a time calls it.
unsafe impl Send for NativeGroup {}

/// A call in which each rank has a part of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartsCall {
    ReduceScatter,
    AllGather,
}

impl RendezvousStore {
    /// Connects, and serves the store itself on `listener` if there is one. Blocks for longer than `timeout` if the other
    /// side accepts and never answers.
    pub(crate) fn open(
        host: &str,
        port: u16,
        listener: Option<TcpListener>,
        timeout: Duration,
    ) -> Result<Self, String> {
        let host = c_string(host)?;
        let listener = listener.map_or(-1, IntoRawFd::into_raw_fd);
        let mut out = ptr::null_mut();
        checked_call(|why, room| {
            // SAFETY: host ends with NUL, out and why are ours; the shim takes the descriptor, which no other code has.
            unsafe { zagros_store_open(host.as_ptr(), port, listener, to_millis(timeout), &raw mut out, why, room) }
        })?;
        NonNull::new(out).map(Self).ok_or_else(|| "no store was made".to_owned())
    }

    pub(crate) fn set_key(&self, key: &str) -> Result<(), String> {
        let key = c_string(key)?;
        // SAFETY: the store lives as long as self; key ends with NUL.
        checked_call(|why, room| unsafe { zagros_store_set(self.0.as_ptr(), key.as_ptr(), why, room) })
    }

    pub(crate) fn has_key(&self, key: &str) -> Result<bool, String> {
        let key = c_string(key)?;
        let mut found = false;
        // SAFETY: the store lives as long as self; key ends with NUL; found is ours.
        checked_call(|why, room| unsafe {
            zagros_store_has(self.0.as_ptr(), key.as_ptr(), &raw mut found, why, room)
        })?;
        Ok(found)
    }
}

impl Drop for RendezvousStore {
    fn drop(&mut self) {
        // SAFETY: made by the shim, and closed once.
        unsafe { zagros_store_close(self.0.as_ptr()) }
    }
}

impl NativeGroup {
    /// Connects to all other ranks through `store`, over the network of `host`, with Gloo.
    pub(crate) fn form(
        store: &RendezvousStore,
        prefix: &str,
        (rank, world): (usize, usize),
        host: &str,
        timeout: Duration,
    ) -> Result<Self, String> {
        let (prefix, host) = (c_string(prefix)?, c_string(host)?);
        let (rank, world) = (to_c_int(rank)?, to_c_int(world)?);
        let mut out = ptr::null_mut();
        checked_call(|why, room| {
            let (store, timeout) = (store.0.as_ptr(), to_millis(timeout));
            // SAFETY: texts end with NUL, the store lives for the call, out and why are ours.
            unsafe {
                zagros_group_form(store, prefix.as_ptr(), rank, world, host.as_ptr(), timeout, &raw mut out, why, room)
            }
        })?;
        NonNull::new(out).map(Self).ok_or_else(|| "no group was made".to_owned())
    }

    /// Starts a sum, which owns the values until the wait for it. Sums are made in the order of their starts.
    pub(crate) fn start_all_reduce(&mut self, values: Vec<f32>) -> Result<NativeWork, String> {
        let (group, length) = (self.0.as_ptr(), values.len());
        // SAFETY: the values are those of `start_owning`, as many as here.
        NativeWork::start_owning(values, |start, out, why, room| unsafe {
            zagros_group_start_all_reduce(group, start, length, out, why, room)
        })
    }

    /// The parts of every rank, all of one length. The length of `all` is a multiple of `mine`'s.
    pub(crate) fn all_gather(
        &mut self,
        mine: &mut [u8],
        all: &mut [u8],
        interrupt: &GroupInterrupt,
    ) -> Result<(), String> {
        let (group, length) = (self.0.as_ptr(), mine.len());
        let (mine, all) = (mine.as_mut_ptr(), all.as_mut_ptr());
        let mut out = ptr::null_mut();
        // SAFETY: libtorch works on copies. Both slices are ours during the wait below, and only that writes to `all`. The
        // caller ensures that `all` has room for world × length bytes.
        checked_call(|why, room| unsafe {
            zagros_group_start_all_gather(group, mine, length, all, &raw mut out, why, room)
        })?;
        NativeWork::started(out, None)?.finish(interrupt)
    }

    /// Starts a call in which each rank has a part of the values: rank r's begins at `bounds[r]` and ends at `bounds[r + 1]`, which is
    /// not behind the values.
    pub(crate) fn start_parts(
        &mut self,
        parts: PartsCall,
        values: Vec<f32>,
        bounds: &[usize],
    ) -> Result<NativeWork, String> {
        let (group, bounds, gathers) = (self.0.as_ptr(), bounds.as_ptr(), parts == PartsCall::AllGather);
        // SAFETY: the values are those of `start_owning`. The caller ensures that there is a bound for each rank and one more, and that
        // they lie in the values.
        NativeWork::start_owning(values, |start, out, why, room| unsafe {
            zagros_group_start_parts(group, gathers, start, bounds, out, why, room)
        })
    }

    /// Call this before the end of a failed group: the group then ends without waiting for the calls in flight.
    pub(crate) fn give_up(&mut self) -> Result<(), String> {
        // SAFETY: the group lives as long as self.
        checked_call(|why, room| unsafe { zagros_group_give_up(self.0.as_ptr(), why, room) })
    }
}

impl Drop for NativeGroup {
    fn drop(&mut self) {
        // SAFETY: made by the shim, and left once.
        unsafe { zagros_group_leave(self.0.as_ptr()) }
    }
}

/// A sum in flight, with the values that libtorch reads and writes until it is done. If it is dropped before, the values
/// are never freed.
#[derive(Debug)]
pub(crate) struct NativeWork {
    raw: NonNull<RawWork>,
    /// Start, length and capacity of a vector. `None` if there is none, and once it was taken back.
    values: Option<(*mut f32, usize, usize)>,
}

/// How long one wait in the shim lasts. After each wait the call checks whether it was interrupted.
const WAIT_SLICE: Duration = Duration::from_millis(100);

// SAFETY: a work is bound to no thread, and only it reaches the values.
unsafe impl Send for NativeWork {}

impl NativeWork {
    /// Has `start` start a work on values, which stay where they are until the work is done. A work that did not start uses none of
    /// them, and then they are never freed.
    fn start_owning(
        values: Vec<f32>,
        start: impl FnOnce(*mut f32, *mut *mut RawWork, *mut c_char, usize) -> c_int,
    ) -> Result<Self, String> {
        let mut values = ManuallyDrop::new(values);
        let (first, length, capacity) = (values.as_mut_ptr(), values.len(), values.capacity());
        let mut out = ptr::null_mut();
        checked_call(|why, room| start(first, &raw mut out, why, room))?;
        Self::started(out, Some((first, length, capacity)))
    }

    fn started(raw: *mut RawWork, values: Option<(*mut f32, usize, usize)>) -> Result<Self, String> {
        let raw = NonNull::new(raw).ok_or_else(|| "no work was started".to_owned())?;
        Ok(Self { raw, values })
    }

    /// Waits until the sum is done, up to the group's timeout, and returns it.
    pub(crate) fn wait(mut self, interrupt: &GroupInterrupt) -> Result<Vec<f32>, String> {
        self.finish(interrupt)?;
        Ok(self.take_back())
    }

    fn finish(&mut self, interrupt: &GroupInterrupt) -> Result<(), String> {
        let raw = self.raw.as_ptr();
        loop {
            let mut done = false;
            // SAFETY: the work lives as long as self; done is ours.
            checked_call(|why, room| unsafe {
                zagros_work_wait(raw, to_millis(WAIT_SLICE), &raw mut done, why, room)
            })?;
            if done {
                return Ok(());
            }
            if interrupt.is_set() {
                return Err(GroupInterrupt::REASON.to_owned());
            }
        }
    }

    /// The values; empty if the work is not done.
    fn take_back(&mut self) -> Vec<f32> {
        // SAFETY: the work lives as long as self.
        let done = unsafe { zagros_work_is_done(self.raw.as_ptr()) };
        let Some((start, length, capacity)) = self.values.take_if(|_| done) else { return Vec::new() };
        // SAFETY: these are the parts of a vector that no code freed, taken back once. A finished work does not use them
        // any more.
        unsafe { Vec::from_raw_parts(start, length, capacity) }
    }
}

impl Drop for NativeWork {
    fn drop(&mut self) {
        drop(self.take_back());
        // SAFETY: made by the shim, and freed once; libtorch keeps a work of its own until it is done.
        unsafe { zagros_work_free(self.raw.as_ptr()) }
    }
}

/// As [`crate::c10d::shim::checked_call`], with a reason of one line.
fn checked_call(call: impl FnOnce(*mut c_char, usize) -> c_int) -> Result<(), String> {
    crate::c10d::shim::checked_call(call).map_err(|reason| strip_position(&reason))
}

/// The first line of a message, without the source position that gloo puts before it.
fn strip_position(reason: &str) -> String {
    let line = reason.lines().next().unwrap_or_default();
    let reason = line.strip_prefix('[').and_then(|rest| rest.split_once("] ")).map_or(line, |(_, reason)| reason);
    reason.trim().to_owned()
}

fn to_c_int(number: usize) -> Result<c_int, String> {
    c_int::try_from(number).map_err(|_| format!("{number} is out of range"))
}

fn to_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).clamp(1, i64::MAX as u64 / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_its_first_line_without_the_source_position() {
        let reason = "[/src/gloo/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4\nframe #0: x";
        assert_eq!(strip_position(reason), "Connection closed by peer [127.0.0.1]:4");
        assert_eq!(strip_position("no bracket"), "no bracket");
        assert_eq!(strip_position(""), "");
    }

    #[test]
    fn times_are_whole_milliseconds_within_c10ds_range_of_nanoseconds() {
        assert_eq!(to_millis(Duration::from_micros(5)), 1);
        assert_eq!(to_millis(Duration::from_secs(2)), 2000);
        assert!(to_millis(Duration::MAX) < u64::MAX / 1_000_000);
    }
}
