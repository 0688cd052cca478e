//! The budget for the cold copies of pushes. A push holds its copies from its read of the cold tier until it is
//! applied.
//!
//! A push needs all its copies at once. If no row is in memory, they are twice as large as its gradients. Pushes
//! therefore take turns when all copies together would exceed the limit. A push that is alone always continues, however
//! much it needs.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

#[derive(Debug)]
pub(crate) struct CopyBudget {
    limit: usize,
    held: Mutex<usize>,
    freed: Condvar,
}

/// Permission to hold some bytes. Dropping it returns them.
#[derive(Debug)]
pub(crate) struct CopyPermit<'a> {
    copies: &'a CopyBudget,
    bytes: usize,
}

impl CopyBudget {
    pub(crate) fn new(limit: Option<usize>) -> Self {
        Self { limit: limit.unwrap_or(usize::MAX), held: Mutex::default(), freed: Condvar::new() }
    }

    /// Waits while the total would exceed the limit, but not longer than `wait`. After that the push continues beyond
    /// the limit. The caller checks whether the sender has given up.
    pub(crate) fn acquire(&self, bytes: usize, wait: Duration) -> CopyPermit<'_> {
        let mut held = self.held.lock();
        let is_much = |held: &mut usize| *held > 0 && held.saturating_add(bytes) > self.limit;
        if bytes > 0 {
            self.freed.wait_while_for(&mut held, is_much, wait);
        }
        *held += bytes;
        CopyPermit { copies: self, bytes }
    }
}

impl Drop for CopyPermit<'_> {
    fn drop(&mut self) {
        *self.copies.held.lock() -= self.bytes;
        self.copies.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    const LATE: Duration = Duration::from_secs(60);

    #[test]
    fn pushes_that_exceed_the_limit_together_take_turns() {
        let (copies, most, now) = (CopyBudget::new(Some(100)), AtomicUsize::new(0), AtomicUsize::new(0));
        let acquire = |bytes: usize| {
            let held = copies.acquire(bytes, LATE);
            most.fetch_max(now.fetch_add(bytes, Ordering::SeqCst) + bytes, Ordering::SeqCst);
            thread::yield_now();
            now.fetch_sub(bytes, Ordering::SeqCst);
            drop(held);
        };
        thread::scope(|scope| {
            for bytes in [30, 40, 60, 100] {
                scope.spawn(move || (0..200).for_each(|_| acquire(bytes)));
            }
        });
        assert!(most.into_inner() <= 100);
    }

    #[test]
    fn a_single_push_continues_whatever_it_needs_and_no_push_waits_for_ever() {
        let copies = CopyBudget::new(Some(100));
        let first = copies.acquire(1000, LATE);
        let late = copies.acquire(1, Duration::from_millis(1));
        drop((first, late));
        assert_eq!(*copies.held.lock(), 0);
        drop(CopyBudget::new(None).acquire(usize::MAX, LATE));
    }
}
