//! How fast the numbers of steps and pushes may grow by what a member claims.
//!
//! Rows age by these numbers, and windows of pushes move with them. A member with a fault, or with a purpose, could claim
//! `u64::MAX`: every row with a time to live would be too old, and no later push would count. No process can know the right number
//! but by the claims. So a claim moves the largest known number by what is spare alone:
//!
//! ```text
//! spare    1,048,576 at the start, and at most       ── a claim takes what it advances ──►
//!          16,384 more with each second
//! ```
//!
//! Training makes far fewer steps in a second. A number that was not heard of for a minute, as while the coordinator is away, is
//! within the spare.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The most that the number may advance at once. It is worth minutes of the fastest training.
pub const MOST_AT_ONCE: u64 = 1 << 20;
/// The most that it may advance in a second, again and again.
pub const MOST_PER_SECOND: u64 = 1 << 14;

/// The largest known number, and by how much claims may advance it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberPace {
    newest: u64,
    /// Of [`MOST_AT_ONCE`], what claims have taken.
    taken: u64,
    /// Until when `taken` was reduced.
    at: Duration,
}

impl NumberPace {
    pub fn newest_number(&self) -> u64 {
        self.newest
    }

    /// Takes note of a number that is certainly right.
    pub fn note_reached(&mut self, number: u64) {
        self.newest = self.newest.max(number);
    }

    /// Takes note of a claimed number, if it is within what is spare. Returns whether it is.
    pub fn admit_claim(&mut self, now: Duration, claimed: u64) -> bool {
        self.regain(now);
        let advance = claimed.saturating_sub(self.newest);
        if advance > MOST_AT_ONCE - self.taken {
            return false;
        }
        self.taken += advance;
        self.newest = self.newest.max(claimed);
        true
    }

    /// Takes note of a claimed number as far as something is spare.
    pub fn approach_claim(&mut self, now: Duration, claimed: u64) {
        self.regain(now);
        let advance = claimed.saturating_sub(self.newest).min(MOST_AT_ONCE - self.taken);
        self.taken += advance;
        self.newest += advance;
    }

    /// Gives back what the time since the last claim allows. Whole milliseconds, so that many claims in a row lose nothing.
    fn regain(&mut self, now: Duration) {
        let elapsed = u64::try_from(now.saturating_sub(self.at).as_millis()).unwrap_or(u64::MAX);
        let back = elapsed.saturating_mul(MOST_PER_SECOND) / 1000;
        if back > 0 {
            self.taken = self.taken.saturating_sub(back);
            self.at = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_claim_far_ahead_changes_nothing_or_as_much_as_is_spare() {
        let now = Duration::from_secs(5);
        let mut pace = NumberPace::default();
        assert!(!pace.admit_claim(now, u64::MAX) && !pace.admit_claim(now, MOST_AT_ONCE + 1));
        assert_eq!(pace.newest_number(), 0);
        pace.approach_claim(now, u64::MAX);
        assert_eq!(pace.newest_number(), MOST_AT_ONCE);
        assert!(pace.admit_claim(now, 7) && !pace.admit_claim(now, MOST_AT_ONCE + 1));
        pace.note_reached(1 << 40);
        assert!(pace.admit_claim(now, 1 << 40) && !pace.admit_claim(now, (1 << 40) + 1));
        assert!(pace.admit_claim(now + Duration::from_secs(1), (1 << 40) + MOST_PER_SECOND));
        pace.note_reached(u64::MAX);
        pace.approach_claim(now, u64::MAX);
        assert_eq!(pace.newest_number(), u64::MAX);
    }

    proptest! {
        /// However many claims there are, and whatever they say.
        #[test]
        fn claims_advance_the_number_no_faster_than_the_pace(
            claims in prop::collection::vec((0_u64..3_000, any::<u64>(), any::<bool>()), 1..200),
        ) {
            let (mut pace, mut millis) = (NumberPace::default(), 0);
            for (later, claimed, is_heartbeat) in claims {
                millis += later;
                let now = Duration::from_millis(millis);
                if is_heartbeat { pace.approach_claim(now, claimed) } else { let _ = pace.admit_claim(now, claimed); }
                prop_assert!(pace.newest_number() <= MOST_AT_ONCE + millis * MOST_PER_SECOND / 1000);
            }
        }

        /// A run of a thousand steps a second is never held back, also after it was not heard of for a while.
        #[test]
        fn training_is_never_held_back(pauses in prop::collection::vec(1_u64..60_000, 1..50)) {
            let (mut pace, mut millis) = (NumberPace::default(), 0);
            for pause in pauses {
                millis += pause;
                prop_assert!(pace.admit_claim(Duration::from_millis(millis), millis));
            }
        }
    }
}
