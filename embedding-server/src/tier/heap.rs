//! Heap settings of a server with a memory budget: freed memory returns to the system.
//!
//! A request of a large batch allocates tens of megabytes for some milliseconds. By default, glibc's allocator raises
//! its threshold for mapping a block separately to the size of the largest freed block. It then allocates later blocks
//! from the heaps of the threads, and keeps memory that is freed in the middle of a heap. A server would so hold a copy
//! of its largest request for each thread that ever served one.

/// Blocks of at least this size are mapped separately. Freeing such a block unmaps it.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED: std::ffi::c_int = 256 << 10;
/// The number of heaps. Threads share them.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const HEAPS: std::ffi::c_int = 2;

/// Makes the allocator of this process keep little freed memory. It affects glibc's allocator only.
pub(crate) fn limit_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        set_allocator(libc::M_MMAP_THRESHOLD, MAPPED);
        set_allocator(libc::M_TRIM_THRESHOLD, MAPPED);
        set_allocator(libc::M_ARENA_MAX, HEAPS);
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "mallopt has no safe wrapper")]
fn set_allocator(parameter: std::ffi::c_int, value: std::ffi::c_int) {
    // SAFETY: `mallopt` takes two numbers and no pointer, and may be called at any time. If it refuses a value, nothing
    // changes.
    let _ = unsafe { libc::mallopt(parameter, value) };
}
