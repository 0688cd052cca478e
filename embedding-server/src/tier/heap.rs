//! The heap of a server that has a budget: what requests took goes back to the system.
//!
//! A request of a large batch takes tens of megabytes for some milliseconds. Left to itself, glibc's allocator raises the
//! size from which on it maps blocks on their own to that of the largest block it has seen, cuts later ones from the
//! heaps of the threads that ask, and keeps what is freed in the middle of those: a server would hold a copy of its
//! largest requests for each thread that ever served one.

/// Blocks from this size on are mapped on their own, and unmapped when they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED: std::ffi::c_int = 256 << 10;
/// Heaps that threads share.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const HEAPS: std::ffi::c_int = 2;

/// Has the allocator of this process keep little of what is freed. Other allocators than glibc's are left as they are.
pub(crate) fn keep_little() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        set(libc::M_MMAP_THRESHOLD, MAPPED);
        set(libc::M_TRIM_THRESHOLD, MAPPED);
        set(libc::M_ARENA_MAX, HEAPS);
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "there is no safe form of it")]
fn set(parameter: std::ffi::c_int, value: std::ffi::c_int) {
    // SAFETY: takes two numbers and no pointer, and may be called at any time. One that is refused changes nothing.
    let _ = unsafe { libc::mallopt(parameter, value) };
}
