//! The time by which rows grow old. The caller sets it, because this crate has no clock.

use std::sync::atomic::{AtomicU64, Ordering};

/// A time, in both of the units that a row's age may be counted in.
///
/// Steps are those of training and mean the same in every process of a run. Seconds are those since this process
/// started: only differences mean something to another process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableTime {
    /// Steps of training.
    pub steps: u64,
    /// Seconds since the tables were made, as a clock counts them that is never set.
    pub seconds: u64,
}

/// A time that moves forwards.
#[derive(Debug, Default)]
pub(crate) struct TableClock {
    steps: AtomicU64,
    seconds: AtomicU64,
}

impl TableClock {
    /// Moves on to `moment`. Times before the present one are ignored.
    pub(crate) fn advance(&self, moment: TableTime) {
        self.steps.fetch_max(moment.steps, Ordering::Relaxed);
        self.seconds.fetch_max(moment.seconds, Ordering::Relaxed);
    }

    /// Starts counting steps anew. Seconds go on: they are not the model's but this process's.
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
    fn steps_start_anew_and_seconds_go_on() {
        let clock = TableClock::default();
        clock.advance(TableTime { steps: 900, seconds: 100 });
        clock.restart_steps();
        clock.advance(TableTime { steps: 7, seconds: 0 });
        assert_eq!(clock.now(), TableTime { steps: 7, seconds: 100 });
    }

    #[test]
    fn it_never_goes_back() {
        let clock = TableClock::default();
        clock.advance(TableTime { steps: 5, seconds: 100 });
        clock.advance(TableTime { steps: 9, seconds: 3 });
        assert_eq!(clock.now(), TableTime { steps: 9, seconds: 100 });
    }
}
