//! Counts what threads hold from the allocator: a message must not make its receiver take more than its size allows.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicIsize, Ordering};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

thread_local! {
    static COUNT: Cell<Option<&'static AllocatedBytes>> = const { Cell::new(None) };
}

/// Bytes that some threads have taken and not given back. Below zero where they gave back what others took.
#[derive(Debug, Default)]
pub(crate) struct AllocatedBytes {
    held: AtomicIsize,
    most: AtomicIsize,
}

struct CountingAllocator;

impl AllocatedBytes {
    /// A count for the threads that [`Self::count_this_thread`].
    pub(crate) fn new() -> &'static Self {
        Box::leak(Box::default())
    }

    /// From here on the thread's allocations count.
    pub(crate) fn count_this_thread(&'static self) {
        COUNT.set(Some(self));
    }

    /// What `work` returns, and the most bytes held meanwhile beyond those held before.
    pub(crate) fn during<T>(&self, work: impl FnOnce() -> T) -> (T, usize) {
        let start = self.held.load(Ordering::Relaxed);
        self.most.store(start, Ordering::Relaxed);
        let done = work();
        (done, (self.most.load(Ordering::Relaxed) - start).unsigned_abs())
    }

    fn add(&self, bytes: isize) {
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most.fetch_max(held, Ordering::Relaxed);
    }
}

fn count(taken: usize, given_back: usize) {
    // A thread that ends has no count any more.
    if let Ok(Some(count)) = COUNT.try_with(Cell::get) {
        count.add(taken as isize - given_back as isize);
    }
}

#[expect(unsafe_code, reason = "an allocator has no safe form")]
// SAFETY: every call goes to the system's allocator as it is. Counting allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the contract of this very call.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the contract of this very call.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both may be there at once.
        count(size, 0);
        count(0, layout.size());
        // SAFETY: the caller keeps the contract of this very call.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller keeps the contract of this very call.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[test]
fn what_a_counted_thread_holds_is_seen() {
    let (count, take) = (AllocatedBytes::new(), |byte: u8| black_box(vec![black_box(byte); black_box(1000)]));
    assert_eq!(count.during(|| take(1)).1, 0, "the thread is not counted yet");
    count.count_this_thread();
    let (held, bytes) = count.during(|| take(1));
    assert!((1000..2000).contains(&bytes), "{bytes}");
    let ((), given_back) = count.during(|| (0..100).for_each(|byte| drop(take(byte))));
    assert!((1000..2000).contains(&given_back), "what is given back adds up: {given_back}");
    drop(held);
}
