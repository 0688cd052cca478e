//! Which rows of a stripe a later batch needs, as hints of the workers say. Eviction takes other rows first.
//!
//! Hints are numbered by their arrival. The next batch of a worker is hinted a fixed number of batches before it is looked up,
//! so the rows of a hint are needed until that many hints of each worker have followed. No row is ever unmarked: its mark ages.
//!
//! ```text
//! hint 7 arrives: rows 3, 5    slots │ 7 │ . │ 7 │ . │        kept with a horizon of 4 until hint 11
//! hint 9 arrives: row 3              │ 9 │ . │ 7 │ . │
//! ```
//!
//! A mark is one byte, so numbers wrap around. A mark that is older than all others seems new for a while: the row is then kept
//! longer than needed.

use std::sync::atomic::{AtomicU32, Ordering};

/// Numbers of hints that a mark tells apart; 0 is no mark.
const NUMBERS: u32 = u8::MAX as u32;

/// The longest horizon, in hints: older marks would seem new.
const LONGEST: u32 = NUMBERS / 2;

/// The marks of a stripe's slots. Empty until the first hint.
#[derive(Debug, Default)]
pub(crate) struct HintedRows(Vec<u8>);

#[derive(Debug)]
pub(crate) struct HintClock {
    arrived: AtomicU32,
    horizon: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HintNumber(u8);

impl HintClock {
    /// Rows of a hint are kept until `horizon` more hints have arrived.
    pub(crate) fn new(horizon: usize) -> Self {
        Self { arrived: AtomicU32::new(0), horizon: u32::try_from(horizon).unwrap_or(u32::MAX).min(LONGEST) }
    }

    pub(crate) fn next(&self) -> HintNumber {
        number(self.arrived.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }

    pub(crate) fn is_kept(&self, mark: u8) -> bool {
        mark != 0 && self.age(mark) < self.horizon
    }

    /// Hints since the one that made the mark.
    pub(crate) fn age(&self, mark: u8) -> u32 {
        let HintNumber(now) = number(self.arrived.load(Ordering::Relaxed));
        (u32::from(now) + NUMBERS - u32::from(mark)) % NUMBERS
    }
}

fn number(arrived: u32) -> HintNumber {
    HintNumber((arrived % NUMBERS) as u8 + 1)
}

impl HintedRows {
    pub(crate) fn mark(&mut self, slot: u32, HintNumber(number): HintNumber) {
        let slot = slot as usize;
        if slot >= self.0.len() {
            self.0.resize((slot + 1).next_multiple_of(64), 0);
        }
        self.0[slot] = number;
    }

    pub(crate) fn get(&self, slot: u32) -> u8 {
        self.0.get(slot as usize).copied().unwrap_or(0)
    }

    /// The slot has another row.
    #[inline(always)]
    pub(crate) fn unmark(&mut self, slot: u32) {
        if let Some(mark) = self.0.get_mut(slot as usize) {
            *mark = 0;
        }
    }

    /// The rows have other slots.
    pub(crate) fn clear(&mut self) {
        self.0 = Vec::new();
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.0.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_ages_with_the_hints_that_follow_it() {
        let (clock, mut rows) = (HintClock::new(4), HintedRows::default());
        assert!(!clock.is_kept(rows.get(3)));
        for first in 0..600 {
            rows.mark(3, clock.next());
            for later in 0..4 {
                assert!(clock.is_kept(rows.get(3)), "hint {first}, {later} later");
                clock.next();
            }
            assert!(!clock.is_kept(rows.get(3)) && !clock.is_kept(rows.get(2)) && !clock.is_kept(rows.get(1000)));
        }
        rows.mark(3, clock.next());
        rows.unmark(3);
        assert!(!clock.is_kept(rows.get(3)));
    }

    #[test]
    fn without_a_horizon_nothing_is_kept_and_a_long_one_is_cut() {
        let (none, long) = (HintClock::new(0), HintClock::new(usize::MAX));
        let mut rows = HintedRows::default();
        rows.mark(0, none.next());
        assert!(!none.is_kept(rows.get(0)));
        rows.mark(0, long.next());
        (0..126).for_each(|_| assert_ne!(long.next(), HintNumber(0)));
        assert!(long.is_kept(rows.get(0)));
        long.next();
        assert!(!long.is_kept(rows.get(0)));
    }
}
