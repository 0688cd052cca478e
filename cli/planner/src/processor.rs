//! The cores of a machine, which all tasks share evenly, as the scheduler of an operating system does.
//!
//! A task is so many seconds of so many threads. While no more threads run than there are cores, each runs at full speed. With more, each
//! gets the same share. The *virtual time* runs at the speed of a thread: a task that takes 2 s ends when the virtual time is 2 s later
//! than at its start, whatever comes and goes meanwhile. So only the earliest end is known at a time, and it changes with each start.
//!
//! ```text
//! 1 core   A, 2 s    ████████████░░░░░░████    alone, then half of a core, then alone
//!          B, 1 s                ░░░░░░
//! virtual  0 ─────── 1 ───────────── 2
//! ```
//!
//! Events wait in a queue: the earliest first, and of equal times the one that was put in first. So a run is a function of its inputs.

use std::collections::BTreeMap;

#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    /// By time and number. Times are not negative, so their bits are in their order.
    events: BTreeMap<(u64, u64), E>,
    pushed: u64,
    now: f64,
}

impl<E> EventQueue<E> {
    pub(crate) fn new() -> Self {
        Self { events: BTreeMap::new(), pushed: 0, now: 0.0 }
    }

    /// Seconds since the start, at the last event.
    pub(crate) fn now(&self) -> f64 {
        self.now
    }

    /// Adds an event at `at`, or now if that is over.
    pub(crate) fn push(&mut self, at: f64, event: E) {
        self.events.insert((at.max(self.now).to_bits(), self.pushed), event);
        self.pushed += 1;
    }

    pub(crate) fn next_time(&self) -> Option<f64> {
        self.events.first_key_value().map(|((at, _), _)| f64::from_bits(*at))
    }

    /// Moves the clock to the event.
    pub(crate) fn pop(&mut self) -> Option<E> {
        let ((at, _), event) = self.events.pop_first()?;
        self.now = f64::from_bits(at);
        Some(event)
    }
}

/// How much later than its end a task may be found to have ended, seconds of virtual time: rounding.
const SLACK: f64 = 1e-12;

#[derive(Debug)]
pub(crate) struct SharedCores<T> {
    cores: f64,
    /// Threads of other programs, which always have work.
    background: f64,
    threads: f64,
    virtual_time: f64,
    updated: f64,
    /// By the virtual time at which they end.
    tasks: EventQueue<CoreTask<T>>,
    revision: u64,
    busy: f64,
}

#[derive(Debug)]
struct CoreTask<T> {
    threads: f64,
    what: T,
}

impl<T> SharedCores<T> {
    pub(crate) fn new(cores: f64, background: f64) -> Self {
        Self {
            cores,
            background,
            threads: 0.0,
            virtual_time: 0.0,
            updated: 0.0,
            tasks: EventQueue::new(),
            revision: 0,
            busy: 0.0,
        }
    }

    /// Starts a task that takes `seconds` where its `threads` have a core each.
    pub(crate) fn start(&mut self, now: f64, seconds: f64, threads: f64, what: T) {
        self.advance(now);
        self.threads += threads;
        self.tasks.push(self.virtual_time + seconds, CoreTask { threads, what });
        self.revision += 1;
    }

    /// When the next task ends if none starts before, and the revision of which that is true.
    pub(crate) fn next_end(&self) -> Option<(f64, u64)> {
        let end = self.tasks.next_time()?;
        Some((self.updated + (end - self.virtual_time).max(0.0) / self.speed(), self.revision))
    }

    /// Whether nothing has changed since that revision.
    pub(crate) fn is_at(&self, revision: u64) -> bool {
        self.revision == revision
    }

    /// The tasks that have ended by `now`.
    pub(crate) fn take_ended(&mut self, now: f64) -> Vec<T> {
        self.advance(now);
        let mut ended = Vec::new();
        let slack = SLACK.max((self.virtual_time + now) * f64::EPSILON * 4.0);
        while self.tasks.next_time().is_some_and(|end| end <= self.virtual_time + slack) {
            let Some(task) = self.tasks.pop() else { break };
            self.threads -= task.threads;
            ended.push(task.what);
        }
        // Sums of differences drift.
        if self.tasks.next_time().is_none() {
            self.threads = 0.0;
        }
        self.revision += 1;
        ended
    }

    /// Seconds in which cores were busy with tasks, added up over the cores.
    pub(crate) fn busy_seconds(&self) -> f64 {
        self.busy
    }

    pub(crate) fn core_count(&self) -> f64 {
        self.cores
    }

    /// The share of a core that a thread has.
    fn speed(&self) -> f64 {
        (self.cores / (self.threads + self.background).max(f64::MIN_POSITIVE)).min(1.0)
    }

    fn advance(&mut self, now: f64) {
        let passed = (now - self.updated).max(0.0) * self.speed();
        self.busy += passed * self.threads;
        self.virtual_time += passed;
        self.updated = self.updated.max(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zagros_zip::ZipEq;

    use super::*;

    /// Ends of tasks that start at these times, by task.
    fn ends(cores: f64, background: f64, tasks: &[(f64, f64, f64)]) -> Vec<f64> {
        let mut processor = SharedCores::new(cores, background);
        let mut starts: Vec<usize> = (0..tasks.len()).collect();
        starts.sort_by(|a, b| tasks[*b].0.total_cmp(&tasks[*a].0));
        let mut ends = vec![f64::NAN; tasks.len()];
        loop {
            let end = processor.next_end().map_or(f64::INFINITY, |(end, _)| end);
            match starts.last().copied() {
                Some(next) if tasks[next].0 <= end => {
                    starts.pop();
                    processor.start(tasks[next].0, tasks[next].1, tasks[next].2, next);
                }
                _ if end.is_finite() => {
                    processor.take_ended(end).into_iter().for_each(|task| ends[task] = end);
                }
                _ => return ends,
            }
        }
    }

    #[test]
    fn two_tasks_on_one_core_take_twice_as_long() {
        assert_eq!(ends(1.0, 0.0, &[(0.0, 1.0, 1.0), (0.0, 1.0, 1.0)]), [2.0, 2.0]);
        assert_eq!(ends(2.0, 0.0, &[(0.0, 1.0, 1.0), (0.0, 1.0, 1.0)]), [1.0, 1.0]);
        // The drawing of the module.
        assert_eq!(ends(1.0, 0.0, &[(0.0, 2.0, 1.0), (1.0, 0.5, 1.0)]), [2.5, 2.0]);
        // Three threads on two cores, and another program's.
        assert_eq!(ends(2.0, 0.0, &[(0.0, 1.0, 3.0)]), [1.5]);
        assert_eq!(ends(2.0, 3.0, &[(0.0, 1.0, 1.0)]), [2.0]);
    }

    proptest! {
        #[test]
        fn no_work_is_lost_and_no_core_works_twice(
            cores in 1_u32..5, tasks in prop::collection::vec((0.0..5.0_f64, 0.01..2.0_f64, 1_u32..4), 1..30),
        ) {
            let tasks: Vec<_> = tasks.into_iter().map(|(at, seconds, threads)| (at, seconds, f64::from(threads))).collect();
            let found = ends(f64::from(cores), 0.0, &tasks);
            let last = found.iter().copied().fold(0.0, f64::max);
            let work: f64 = tasks.iter().map(|(_, seconds, threads)| seconds * threads).sum();
            prop_assert!(last * f64::from(cores) >= work * (1.0 - 1e-9), "{last}");
            for ((at, seconds, _), end) in tasks.iter().zip_eq(&found) {
                prop_assert!(*end >= (at + seconds) * (1.0 - 1e-9), "{at} + {seconds} ended at {end}");
            }
            // The processor is never idle while there is work, so all is done by then.
            prop_assert!(last <= 5.0 + work + 1e-9);
        }
    }

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
