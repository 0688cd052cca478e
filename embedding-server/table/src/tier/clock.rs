//! The time by which rows grow old: told from outside, for this crate has no clock.

use std::sync::atomic::{AtomicU64, Ordering};

/// A time, in both of the units that a row's age may be counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Steps of training.
    pub steps: u64,
    /// Seconds since some moment in the past.
    pub seconds: u64,
}

/// A time that moves forwards.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    steps: AtomicU64,
    seconds: AtomicU64,
}

impl Clock {
    /// Moves on to `moment`; what it says of the past is ignored.
    pub(crate) fn advance(&self, moment: Moment) {
        self.steps.fetch_max(moment.steps, Ordering::Relaxed);
        self.seconds.fetch_max(moment.seconds, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> Moment {
        Moment { steps: self.steps.load(Ordering::Relaxed), seconds: self.seconds.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_goes_back() {
        let clock = Clock::default();
        clock.advance(Moment { steps: 5, seconds: 100 });
        clock.advance(Moment { steps: 9, seconds: 3 });
        assert_eq!(clock.now(), Moment { steps: 9, seconds: 100 });
    }
}
