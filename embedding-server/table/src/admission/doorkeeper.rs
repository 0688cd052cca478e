//! The rule of admission of one stripe, and what a snapshot is still owed of it.

use super::{Admission, Sighted, Sightings};
use crate::request::group::id_of;

/// Lives in a stripe, under its lock.
#[derive(Debug)]
pub(crate) struct Doorkeeper {
    rule: Sightings,
    capture: Capture,
}

/// Copy on first write, of all of a stripe's sightings at once.
#[derive(Debug)]
enum Capture {
    /// No snapshot wants anything.
    None,
    /// What is remembered has not changed since the instant.
    Unchanged,
    /// What was remembered at the instant.
    Kept(Sighted),
}

impl Doorkeeper {
    /// Of one of `stripes` stripes of a table.
    pub(crate) fn new(admission: Admission, stripes: usize, seed: u64, table: u32) -> Self {
        Self { rule: Sightings::new(admission, stripes, seed, table), capture: Capture::None }
    }

    /// As [`Sightings::sight`].
    pub(crate) fn sight(&mut self, key: u64) -> bool {
        self.keep();
        self.rule.sight(key)
    }

    /// As [`Sightings::admits`].
    pub(crate) fn admits(&self, key: u64) -> bool {
        self.rule.admits(key)
    }

    /// As [`Sightings::restore`].
    pub(crate) fn restore(&mut self, key: u64, sightings: u32) {
        self.keep();
        self.rule.restore(id_of(key), sightings);
    }

    /// As [`Sightings::merge`].
    pub(crate) fn merge(&mut self, cells: &[u32]) -> Result<(), usize> {
        self.keep();
        self.rule.merge(cells)
    }

    /// As [`Sightings::clear`].
    pub(crate) fn clear(&mut self) {
        self.keep();
        self.rule.clear();
    }

    /// As [`Sightings::describe`].
    pub(crate) fn describe(&self) -> Option<String> {
        self.rule.describe()
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.rule.bytes()
    }

    /// From now on what is remembered is kept for a snapshot before it changes.
    pub(crate) fn begin_capture(&mut self) {
        self.capture = Capture::Unchanged;
    }

    /// Appends what was remembered at the instant, once, and answers whether there was a snapshot to read it for.
    pub(crate) fn read_captured(&mut self, into: &mut Sighted) -> bool {
        match std::mem::replace(&mut self.capture, Capture::None) {
            Capture::None => return false,
            Capture::Unchanged => self.rule.save(into),
            Capture::Kept(kept) => into.append(kept),
        }
        true
    }

    /// Changes are of no concern any more.
    pub(crate) fn end_capture(&mut self) {
        self.capture = Capture::None;
    }

    #[inline]
    fn keep(&mut self) {
        if matches!(self.capture, Capture::Unchanged) {
            let mut kept = Sighted::default();
            self.rule.save(&mut kept);
            self.capture = Capture::Kept(kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Counter;
    use crate::request::group::key_of;

    #[test]
    fn a_snapshot_reads_what_was_remembered_at_its_instant_once() {
        let counters = [Counter::Exact, Counter::CountMin { error: 0.1, failure: 0.1 }];
        for counter in counters {
            let mut door = Doorkeeper::new(Admission::Count { sightings: 9, counter }, 1, 1, 1);
            (0..5).for_each(|id| assert!(!door.sight(key_of(id))));
            let read = |door: &mut Doorkeeper| {
                let mut sighted = Sighted::default();
                door.read_captured(&mut sighted).then_some(sighted)
            };
            assert_eq!(read(&mut door), None);
            door.begin_capture();
            let unchanged = read(&mut door).unwrap();
            assert_eq!(read(&mut door), None);
            door.begin_capture();
            (3..50).for_each(|id| assert!(!door.sight(key_of(id))));
            assert_eq!(read(&mut door).unwrap(), unchanged);
            door.begin_capture();
            assert_ne!(read(&mut door).unwrap(), unchanged);
            door.begin_capture();
            door.end_capture();
            assert_eq!(read(&mut door), None);
        }
    }
}
