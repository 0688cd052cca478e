//! Until when a request may wait: after that its sender has given up, and nobody hears the answer.
//!
//! A request asks at each place where it may have waited: at the gate, for other pushes, for the cold tier. A push asks for
//! the last time right before its first change, so that it is applied whole or not at all. From there on it goes on, and
//! only waits no more.

/// The moment at which the sender of a request gives up, in nanoseconds of [`crate::TableResources::nanos`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestDeadline(Option<u64>);

impl RequestDeadline {
    /// The sender waits for as long as it takes. So it is without a clock.
    pub const NONE: Self = Self(None);

    /// At this moment.
    #[must_use]
    pub fn at(nanos: u64) -> Self {
        Self(Some(nanos))
    }

    /// Nanoseconds that are left at the moment `now`; `None` where there is no end.
    pub(crate) fn left(self, now: u64) -> Option<u64> {
        self.0.map(|end| end.saturating_sub(now))
    }
}

impl Default for RequestDeadline {
    fn default() -> Self {
        Self::NONE
    }
}
