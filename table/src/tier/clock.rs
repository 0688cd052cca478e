//! The time by which rows age. The caller sets it, because this crate has no clock.

use std::sync::atomic::{AtomicU64, Ordering};

/// A time, in both units of a row's age.
///
/// Steps are training steps. They are equal in every process of a run. Seconds count from the start of this process.
/// For another process only differences of seconds have a meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableTime {
    pub steps: u64,
    /// Seconds since the tables were made, by a monotonic clock.
    pub seconds: u64,
}

/// What becomes of the count of steps when saved rows are put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepClock {
    /// Steps count on from those of the save.
    GoesOn,
    /// Steps count from those of this run. A row's time to live in steps counts from the start of the run at the earliest.
    Restarts,
}

/// A time that only moves forwards.
#[derive(Debug, Default)]
pub(crate) struct TableClock {
    steps: AtomicU64,
    seconds: AtomicU64,
}

impl TableClock {
    /// Advances to `moment`. A time before the present one is ignored.
    pub(crate) fn advance(&self, moment: TableTime) {
        self.steps.fetch_max(moment.steps, Ordering::Relaxed);
        self.seconds.fetch_max(moment.seconds, Ordering::Relaxed);
    }

    /// Counts steps from 0 again. Seconds continue, because they belong to this process and not to the model.
    pub(crate) fn restart_steps(&self) {
        self.steps.store(0, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> TableTime {
        TableTime { steps: self.steps.load(Ordering::Relaxed), seconds: self.seconds.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_goes_back() {
        let clock = TableClock::default();
        clock.advance(TableTime { steps: 5, seconds: 100 });
        clock.advance(TableTime { steps: 9, seconds: 3 });
        assert_eq!(clock.now(), TableTime { steps: 9, seconds: 100 });
    }
}
