//! A writer that touches every row during a save: memory for copies stays bounded, and every row of the save is of its moment.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use zagros_table::{RowBatch, SnapshotKind, TableError, TableResources, TableSet};

use crate::support::{self, by_id, ledger_config, saved};

const DIM: usize = 16;
const ROWS: u64 = 100_000;
const BATCH: usize = 500;
const STRIPES: usize = 64;
/// A twelfth of the rows.
const LIMIT: usize = 1 << 19;

fn tables(timeout: Duration) -> TableSet {
    let capacity = TableResources { copies: Some(LIMIT), timeout: Some(timeout), ..TableResources::default() };
    let tables = TableSet::new(0, &[ledger_config(DIM, STRIPES)], capacity).unwrap();
    (0..ROWS).step_by(BATCH).for_each(|first| push(&tables, first));
    tables
}

/// Pushes a gradient of 1 to some rows: each value is minus the number of its pushes.
fn push(tables: &TableSet, first: u64) {
    support::push(tables, &(first..first + BATCH as u64).collect::<Vec<_>>(), 1.0);
}

/// Rows that a save holds at once.
fn bytes_of(rows: usize) -> usize {
    rows * (DIM * 4 + 8)
}

#[test]
fn a_writer_that_touches_every_row_during_a_save_makes_copies_up_to_the_limit() {
    let tables = tables(Duration::from_secs(3600));
    let snapshot = tables.snapshot_of(SnapshotKind::Base).unwrap();
    let is_read = AtomicBool::new(false);
    let mut found = BTreeMap::new();
    thread::scope(|scope| {
        for writer in 0..2 {
            let (tables, is_read) = (&tables, &is_read);
            scope.spawn(move || {
                let mut rounds = 0;
                while rounds == 0 || !is_read.load(Ordering::Acquire) {
                    (0..ROWS).step_by(BATCH).skip(writer).step_by(2).for_each(|first| push(tables, first));
                    rounds += 1;
                }
            });
        }
        // The writers have to wait before anything is read: all rows are seven times the limit.
        while tables.snapshot_copies().waits < 2 {
            thread::yield_now();
        }
        for stripe in 0..STRIPES {
            let mut rows = RowBatch::default();
            snapshot.read_stripe(0, stripe, &mut rows).unwrap();
            found.extend(by_id(&rows, DIM));
        }
        is_read.store(true, Ordering::Release);
    });
    assert_eq!(found.len() as u64, ROWS);
    assert!(found.values().flatten().all(|value| *value == -1.0), "a row is not of the moment");
    let copies = tables.snapshot_copies();
    // The requests under way, and the room that vectors and maps make ahead: a table of slots doubles.
    let most = LIMIT + 2 * bytes_of(BATCH) + LIMIT / 2;
    assert!((LIMIT..most).contains(&copies.most), "{copies:?}");
    drop(snapshot);
    assert_eq!((tables.snapshot_copies().held, tables.snapshot_copies().given_up), (0, 0));
}

/// Training does not wait for a disk that stands still.
#[test]
fn a_save_that_stands_still_is_given_up_and_the_next_one_has_all_rows() {
    let tables = tables(Duration::from_millis(40));
    let snapshot = tables.snapshot_of(SnapshotKind::Base).unwrap();
    let mut parts = snapshot.open_stripe(0, 0).unwrap();
    let mut rows = RowBatch::default();
    assert_eq!(parts.read(10, &mut rows), Ok(true));
    (0..ROWS).step_by(BATCH).for_each(|first| push(&tables, first));
    let copies = tables.snapshot_copies();
    assert_eq!((copies.given_up, copies.held), (1, 0));
    let given_up = TableError::SnapshotGivenUp;
    assert_eq!(parts.read(usize::MAX, &mut rows), Err(given_up.clone()));
    assert_eq!(snapshot.open_stripe(0, 1).err(), Some(given_up.clone()));
    assert_eq!(snapshot.removed_ids(0, 1), Err(given_up));
    drop(parts);
    drop(snapshot);
    let rows = saved(&tables.take_snapshot().unwrap(), 0, STRIPES);
    assert_eq!(rows.ids.len() as u64, ROWS);
    assert!(rows.slots.iter().all(|word| f32::from_bits(*word) == -2.0));
}
