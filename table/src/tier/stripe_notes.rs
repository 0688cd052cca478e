//! Which cold copies that a request has read may be stale: the cold version of a stripe, and the rows that left it lately.
//!
//! Every eviction increases the version of its stripe. A copy that was read under version `v` is stale if its row was evicted
//! under a later version. The stripe keeps the keys of its last evictions:
//!
//! ```text
//! version 5: row 7 leaves       a copy of row 7 that was read under version 4 is stale, one read under version 5 is not
//! version 6: row 9 leaves       a copy of row 8 that was read under version 4 is valid
//! ```
//!
//! Copies that are older than the evictions that are kept count as stale, which costs a read that may not have been needed. Versions
//! wrap around: of two versions the later one is less than half the range ahead.
//!
//! Which rows of a stripe a later batch needs, as hints of the workers say. Eviction takes other rows first.
//!
//! Hints are numbered by their arrival. The next batch of a worker is hinted a fixed number of batches before it is looked up,
//! so the rows of a hint are needed until that many hints of each worker have followed. No row is ever unmarked: its mark ages.
//!
//! ```text
//! hint 7 arrives: rows 3, 5    slots │ 7 │ . │ 7 │ . │        kept with a lookahead of 4 until hint 11
//! hint 9 arrives: row 3              │ 9 │ . │ 7 │ . │
//! ```
//!
//! A mark is one byte, so numbers wrap around. A mark that is older than all others seems new for a while: the row is then kept
//! longer than needed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

/// Keys that are kept: as many as a stripe has rows, within this range. They take at most 16 KiB of memory.
const KEPT: std::ops::RangeInclusive<usize> = 256..=2048;

#[derive(Debug, Default)]
pub(crate) struct ColdVersions {
    pub(crate) now: u32,
    /// Copies of earlier versions count as stale, whatever their row.
    oldest: u32,
    /// Versions with the cold keys of the rows that were evicted under them, both in ascending order.
    evictions: VecDeque<(u32, Box<[u64]>)>,
    keys: usize,
}

impl ColdVersions {
    /// Notes an eviction of the rows of these cold keys, in ascending order, from a stripe that has `rows` rows.
    pub(crate) fn note_eviction(&mut self, cold_keys: &[u64], rows: usize) {
        self.now = self.now.wrapping_add(1);
        self.keys += cold_keys.len();
        self.evictions.push_back((self.now, cold_keys.into()));
        let most = rows.clamp(*KEPT.start(), *KEPT.end());
        while self.keys > most
            && let Some((version, keys)) = self.evictions.pop_front()
        {
            self.keys -= keys.len();
            self.oldest = version;
        }
    }

    pub(crate) fn make_all_stale(&mut self) {
        self.now = self.now.wrapping_add(1);
        *self = Self { now: self.now, oldest: self.now, ..Self::default() };
    }

    /// Whether a copy of a row may be stale, if it was read under an earlier version.
    pub(crate) fn is_stale(&self, cold_key: u64, version: u32) -> bool {
        let is_later = |other: u32| (other.wrapping_sub(version) as i32) > 0;
        let mut since = self.evictions.iter().rev().take_while(|(other, _)| is_later(*other));
        version != self.now && (is_later(self.oldest) || since.any(|(_, keys)| keys.binary_search(&cold_key).is_ok()))
    }
}

/// Numbers of hints that a mark tells apart; 0 is no mark.
const NUMBERS: u32 = u8::MAX as u32;

/// The longest lookahead, in hints: older marks would seem new.
const LONGEST: u32 = NUMBERS / 2;

/// The marks of a stripe's slots. Empty until the first hint.
#[derive(Debug, Default)]
pub(crate) struct HintedRows(Vec<u8>);

#[derive(Debug)]
pub(crate) struct HintClock {
    arrived: AtomicU32,
    lookahead: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HintNumber(u8);

impl HintClock {
    /// Rows of a hint are kept until `lookahead` more hints have arrived.
    pub(crate) fn new(lookahead: usize) -> Self {
        Self { arrived: AtomicU32::new(0), lookahead: u32::try_from(lookahead).unwrap_or(u32::MAX).min(LONGEST) }
    }

    pub(crate) fn next(&self) -> HintNumber {
        number(self.arrived.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }

    pub(crate) fn is_kept(&self, mark: u8) -> bool {
        mark != 0 && self.age(mark) < self.lookahead
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
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum VersionChange {
        Evict(Vec<u64>, usize),
        MakeAllStale,
    }

    fn change() -> impl Strategy<Value = VersionChange> {
        let keys = prop::collection::btree_set(0_u64..50, 0..90).prop_map(|keys| keys.into_iter().collect());
        let evict = (keys, 0_usize..3000).prop_map(|(keys, rows)| VersionChange::Evict(keys, rows));
        prop_oneof![19 => evict, 1 => Just(VersionChange::MakeAllStale)]
    }

    proptest! {
        /// Also where the versions wrap around.
        #[test]
        fn a_copy_of_a_row_that_was_evicted_since_is_stale(
            changes in prop::collection::vec(change(), 1..60),
            start in prop_oneof![Just(0_u32), Just(u32::MAX - 9), Just(u32::MAX / 2)],
        ) {
            let mut versions = ColdVersions { now: start, oldest: start, ..ColdVersions::default() };
            let mut read = Vec::new();
            for change in changes {
                read.extend((0..50).map(|key| (key, versions.now)));
                match change {
                    VersionChange::Evict(keys, rows) => {
                        versions.note_eviction(&keys, rows);
                        for (key, version) in &read {
                            prop_assert!(!keys.contains(key) || versions.is_stale(*key, *version));
                        }
                        // Of the version just before, nothing else is.
                        let previous = versions.now.wrapping_sub(1);
                        prop_assert!((0..50).all(|key| keys.contains(&key) || !versions.is_stale(key, previous)));
                        read.retain(|(key, _)| !keys.contains(key));
                    }
                    VersionChange::MakeAllStale => {
                        versions.make_all_stale();
                        prop_assert!(read.iter().all(|(key, version)| versions.is_stale(*key, *version)));
                        read.clear();
                    }
                }
                prop_assert!((0..50).all(|key| !versions.is_stale(key, versions.now)));
                prop_assert!(versions.keys <= *KEPT.end());
            }
        }
    }

    #[test]
    fn copies_older_than_what_is_kept_are_stale() {
        let mut versions = ColdVersions::default();
        let first = versions.now;
        (0..4).for_each(|at| versions.note_eviction(&(at * 64..(at + 1) * 64).collect::<Vec<_>>(), 64));
        assert!(!versions.is_stale(1000, first) && versions.is_stale(63, first));
        versions.note_eviction(&[2000], 64);
        assert!(versions.is_stale(1000, first) && !versions.is_stale(63, first + 1));
    }

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
    fn without_a_lookahead_nothing_is_kept_and_a_long_one_is_cut() {
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
