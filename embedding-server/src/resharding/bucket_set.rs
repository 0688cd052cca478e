//! The buckets of a move.
//!
//! Which rows of moving buckets have changed since they were sent. A note is an id, however often its row changes.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use zagros_protocol::control::BucketMove;
use zagros_protocol::{PackError, RowKey, TableId, bucket_of};
use zagros_table::ChangeWatcher;

/// A move as the coordinator announces it.
#[derive(Debug)]
pub(crate) struct PlannedMove {
    pub(crate) id: u64,
    pub(crate) source: u32,
    pub(crate) target: u32,
    /// In ascending order.
    pub(crate) buckets: Vec<u32>,
    moves: Box<[bool]>,
}

impl PlannedMove {
    /// Reads an announced move of a model with `total` buckets.
    pub(crate) fn new(announced: &BucketMove, total: u32) -> Result<Self, PackError> {
        let (words, rest) = announced.buckets.as_chunks::<4>();
        let buckets: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        if !rest.is_empty() || buckets.iter().any(|bucket| *bucket >= total) {
            let (expected, found) = (4 * total as usize, announced.buckets.len());
            return Err(PackError::Length { what: "buckets of a move", expected, found });
        }
        let mut moves = vec![false; total as usize].into_boxed_slice();
        buckets.iter().for_each(|bucket| moves[*bucket as usize] = true);
        let BucketMove { id, source, target, .. } = *announced;
        Ok(Self { id, source, target, buckets, moves })
    }

    #[inline]
    pub(crate) fn has_row(&self, table: u32, id: u64) -> bool {
        self.moves[bucket_of(RowKey { table: TableId(table), id }, self.moves.len() as u32) as usize]
    }

    pub(crate) fn has_bucket(&self, bucket: u32) -> bool {
        self.moves.get(bucket as usize).copied().unwrap_or(false)
    }
}

impl fmt::Display for PlannedMove {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, source, target, buckets, .. } = self;
        write!(to, "move {id} of {} buckets from embedding server {source} to {target}", buckets.len())
    }
}

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
    fn an_announced_move_is_read_and_a_bucket_that_is_none_is_refused() {
        let announced = |buckets: &[u32]| {
            let buckets: Vec<u8> = buckets.iter().flat_map(|bucket| bucket.to_le_bytes()).collect();
            BucketMove { id: 3, source: 0, target: 2, buckets: buckets.into() }
        };
        let plan = PlannedMove::new(&announced(&[1, 6]), 8).unwrap();
        assert_eq!((0..9).filter(|bucket| plan.has_bucket(*bucket)).collect::<Vec<_>>(), [1, 6]);
        for id in 0..100 {
            assert_eq!(plan.has_row(2, id), plan.has_bucket(bucket_of(RowKey { table: TableId(2), id }, 8)));
        }
        assert_eq!(plan.to_string(), "move 3 of 2 buckets from embedding server 0 to 2");
        assert!(PlannedMove::new(&announced(&[8]), 8).is_err());
        assert!(PlannedMove::new(&BucketMove { buckets: vec![1, 0, 0].into(), ..announced(&[]) }, 8).is_err());
    }

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
