//! Which rows of moving buckets have changed since they were sent. A note is an id, however often its row changes.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use zagros_table::ChangeWatcher;

use super::PlannedMove;

/// Locks of the notes. Stripes that share one are many requests apart.
const LOCKS: usize = 64;

type Notes = BTreeMap<(u32, u32), HashSet<u64>>;

#[derive(Debug)]
pub(crate) struct ChangedRows {
    plan: Arc<PlannedMove>,
    notes: Vec<Mutex<Notes>>,
    count: AtomicU64,
}

impl ChangedRows {
    pub(crate) fn new(plan: Arc<PlannedMove>) -> Self {
        Self { plan, notes: (0..LOCKS).map(|_| Mutex::default()).collect(), count: AtomicU64::new(0) }
    }

    /// How many rows have changed since they were taken.
    pub(crate) fn row_count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Takes the ids of some changed rows of one stripe: table, stripe, and at most `most` ids. A row that changes afterwards is
    /// noted again, so the caller reads the rows after this call.
    pub(crate) fn take_ids(&self, table: Option<u32>, most: usize) -> Option<(u32, u32, Vec<u64>)> {
        self.notes.iter().find_map(|notes| {
            let mut notes = notes.lock();
            let mut wanted = notes.iter_mut().filter(|((of, _), _)| table.is_none_or(|table| *of == table));
            let ((table, stripe), ids) = wanted.next()?;
            let (place, taken) = ((*table, *stripe), ids.iter().copied().take(most).collect::<Vec<_>>());
            taken.iter().for_each(|id| _ = ids.remove(id));
            if ids.is_empty() {
                notes.remove(&place);
            }
            self.count.fetch_sub(taken.len() as u64, Ordering::AcqRel);
            Some((place.0, place.1, taken))
        })
    }
}

impl ChangeWatcher for ChangedRows {
    fn changed(&self, table: u32, stripe: u32, ids: &[u64]) {
        let mut moving = ids.iter().filter(|id| self.plan.has_row(table, **id)).peekable();
        if moving.peek().is_none() {
            return;
        }
        let mut notes = self.notes[stripe as usize % LOCKS].lock();
        let noted = notes.entry((table, stripe)).or_default();
        let old_len = noted.len();
        noted.extend(moving);
        self.count.fetch_add((noted.len() - old_len) as u64, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use zagros_protocol::control::BucketMove;

    use super::*;

    #[test]
    fn a_row_is_noted_once_until_it_is_taken_and_other_buckets_are_not() {
        let announced = BucketMove { id: 1, source: 0, target: 1, buckets: 2_u32.to_le_bytes().to_vec().into() };
        let plan = Arc::new(PlannedMove::new(&announced, 4).unwrap());
        let ids: Vec<u64> = (0..400).collect();
        let moving: HashSet<u64> = ids.iter().copied().filter(|id| plan.has_row(5, *id)).collect();
        let notes = ChangedRows::new(plan);
        notes.changed(5, 3, &ids);
        notes.changed(5, 3, &ids);
        assert_eq!((notes.row_count(), notes.take_ids(Some(4), 9)), (moving.len() as u64, None));
        let mut taken = HashSet::new();
        while let Some((5, 3, ids)) = notes.take_ids(None, 7) {
            assert!(ids.len() <= 7);
            taken.extend(ids);
        }
        assert_eq!((taken, notes.row_count()), (moving.clone(), 0));
        notes.changed(5, 3, &ids[..200]);
        assert!(notes.row_count() > 0 && notes.row_count() < moving.len() as u64);
    }
}
