//! The deadline of a request: after it the sender has given up, and does not read the answer.
//!
//! A request checks its deadline after each place where it may have waited: the gate, other pushes, the cold tier. A push
//! makes its last check right before its first change, so it is applied whole or not at all. After that check it continues
//! and waits no more.

/// The time at which the sender of a request gives up, in nanoseconds of [`crate::TableResources::nanos`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestDeadline(Option<u64>);

impl RequestDeadline {
    /// The sender never gives up. Without a clock, every request has this deadline.
    pub const NONE: Self = Self(None);

    #[must_use]
    pub fn new(nanos: u64) -> Self {
        Self(Some(nanos))
    }

    /// Nanoseconds from `now` to the deadline. `None` without a deadline.
    pub(crate) fn nanos_left(self, now: u64) -> Option<u64> {
        self.0.map(|end| end.saturating_sub(now))
    }
}

impl Default for RequestDeadline {
    fn default() -> Self {
        Self::NONE
    }
}
