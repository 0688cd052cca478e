//! The queue of events: the earliest first, and of equal times the one that was put in first. So a run is a function of its inputs.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    heap: BinaryHeap<Reverse<TimedEntry<E>>>,
    pushed: u64,
    now: f64,
}

/// What is ordered by its time, and of equal times by its number.
#[derive(Debug)]
pub(crate) struct TimedEntry<E> {
    pub(crate) at: f64,
    pub(crate) number: u64,
    pub(crate) what: E,
}

impl<E> EventQueue<E> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), pushed: 0, now: 0.0 }
    }

    /// Seconds since the start, at the last event.
    pub(crate) fn now(&self) -> f64 {
        self.now
    }

    /// Adds an event at `at`, or now if that is over.
    pub(crate) fn push(&mut self, at: f64, event: E) {
        let entry = TimedEntry { at: at.max(self.now), number: self.pushed, what: event };
        self.pushed += 1;
        self.heap.push(Reverse(entry));
    }

    /// Moves the clock to the event.
    pub(crate) fn pop(&mut self) -> Option<E> {
        let Reverse(entry) = self.heap.pop()?;
        self.now = entry.at;
        Some(entry.what)
    }
}

impl<E> PartialEq for TimedEntry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for TimedEntry<E> {}

impl<E> PartialOrd for TimedEntry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for TimedEntry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.total_cmp(&other.at).then(self.number.cmp(&other.number))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn events_come_by_time_and_then_by_their_order(times in prop::collection::vec(0_u32..20, 0..60)) {
            let mut queue = EventQueue::new();
            for (number, time) in times.iter().enumerate() {
                queue.push(f64::from(*time), number);
            }
            let mut expected: Vec<(u32, usize)> = times.iter().copied().enumerate().map(|(number, time)| (time, number)).collect();
            expected.sort_unstable();
            for (time, number) in expected {
                prop_assert_eq!(queue.pop(), Some(number));
                prop_assert_eq!(queue.now(), f64::from(time));
            }
            prop_assert_eq!(queue.pop(), None);
        }
    }

    #[test]
    fn the_clock_never_runs_backwards() {
        let mut queue = EventQueue::new();
        queue.push(5.0, "first");
        assert_eq!((queue.pop(), queue.now()), (Some("first"), 5.0));
        queue.push(1.0, "late");
        assert_eq!((queue.pop(), queue.now()), (Some("late"), 5.0));
    }
}
