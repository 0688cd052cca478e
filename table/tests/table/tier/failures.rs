//! A cold tier that fails: the table serves from memory, loses nothing that it acknowledged, and recovers.

use std::sync::Arc;

use zagros_table::{ColdStore, LookupMode, RequestDeadline, TableError, TableResources, TableSet, TableSnapshotError};

use crate::support::{
    HookedStore, cold_row, crowd, hot, ledger_config, lookup_before, maintain_all, push, push_before, read,
    tables_within, tiny, train,
};

const FULL: &str = "no space left on device";

fn fail(store: &HookedStore) {
    store.inner.fail_with(Some(FULL.to_owned()));
}

fn heal(store: &HookedStore) {
    store.inner.fail_with(None);
}

fn firsts(rows: &[f32]) -> Vec<f32> {
    rows.chunks(2).map(|row| row[0]).collect()
}

#[test]
fn rows_in_memory_are_served_and_no_cold_row_is_created_anew() {
    let (tables, store) = tables_within(&[ledger_config(2, 4)], 100_000);
    let ids: Vec<u64> = (0..10_000).collect();
    push(&tables, &ids, 1.0);
    fail(&store);
    let in_memory = hot(&tables);
    push(&tables, &in_memory, 1.0);
    assert_eq!(firsts(&train(&tables, &in_memory)), vec![-2.0; in_memory.len()]);
    let cold: Vec<u64> = ids.iter().copied().filter(|id| !in_memory.contains(id)).collect();
    assert!(in_memory.len() > 1000 && cold.len() > 1000);
    // A request with a row in the cold tier applies nothing. An id that may have a row there gets no new row.
    for refused in [&[cold[0]][..], &[in_memory[0], cold[0]], &[u64::MAX]] {
        let errors = [
            push_before(&tables, refused, 1.0, RequestDeadline::NONE).err(),
            lookup_before(&tables, refused, LookupMode::Train, RequestDeadline::NONE).err(),
            lookup_before(&tables, refused, LookupMode::Read, RequestDeadline::NONE).err(),
        ];
        for error in errors.map(Option::unwrap) {
            assert!(matches!(&error, TableError::Cold { source, .. } if source.reason == FULL), "{error}");
            assert!(error.is_retryable());
        }
    }
    assert!(matches!(tables.take_snapshot(), Err(TableSnapshotError::Cold(_))));
    heal(&store);
    push(&tables, &ids, 1.0);
    let expected = |id: &u64| if in_memory.contains(id) { -3.0 } else { -2.0 };
    assert_eq!(firsts(&read(&tables, &ids)), ids.iter().map(expected).collect::<Vec<_>>());
    assert!(tables.take_snapshot().is_ok());
}

/// Reads succeed and writes fail, as on a full disk.
#[test]
fn new_rows_come_until_memory_is_a_quarter_over_its_budget() {
    const BUDGET: usize = 200_000;
    let (tables, store) = tables_within(&[ledger_config(2, 4)], BUDGET);
    let mut id = 0;
    let mut push_next = |count: u64| {
        id += count;
        push_before(&tables, &(id - count..id).collect::<Vec<_>>(), 1.0, RequestDeadline::NONE).map(|_| id)
    };
    while tables.table(0).unwrap().event_counts().evicted == 0 {
        push_next(32).unwrap();
    }
    let start = push_next(1).unwrap();
    store.fail_writes(true);
    let (refusal, accepted) = loop {
        match push_next(1) {
            Ok(pushed) => assert!(pushed - start < 100_000, "it never refuses"),
            Err(refusal) => break (refusal, id - 1),
        }
    };
    assert!(matches!(&refusal, TableError::Full { source, .. } if source.reason == FULL), "{refusal}");
    assert!(refusal.is_retryable() && tables.last_write_error().unwrap().reason == FULL);
    let (used, _) = tables.memory_budget().unwrap();
    assert!((BUDGET..BUDGET * 13 / 10).contains(&used), "{used} bytes");
    let ids: Vec<u64> = (0..accepted).collect();
    assert_eq!(firsts(&read(&tables, &ids)), vec![-1.0; ids.len()]);
    // With space on the disk, rows are evicted again and new rows are created.
    store.fail_writes(false);
    let crowd: Vec<u64> = (1 << 20..(1 << 20) + 10_000).collect();
    push(&tables, &crowd, 1.0);
    assert_eq!((tables.last_write_error(), firsts(&read(&tables, &ids))), (None, vec![-1.0; ids.len()]));
    assert_eq!(tables.memory_budget().unwrap().0, used, "memory grew although rows can leave");
}

/// A row is evicted after its push was accepted, and cannot be read back. The gradient becomes pending.
#[test]
fn a_gradient_is_pending_until_its_row_can_be_read() {
    let (tables, store) = cold_row(2);
    push(&tables, &[2], 4.0);
    let (others, failing) = (Arc::clone(&tables), Arc::clone(&store));
    // Row 1 is read from the cold tier. Row 2 is in memory, and is evicted before its update.
    store.after_read(move || {
        crowd(&others, 2000);
        failing.after_read(move || {});
        fail(&failing);
    });
    push(&tables, &[1, 2], 1.0);
    assert!(matches!(tables.take_snapshot(), Err(TableSnapshotError::Cold(_))), "the snapshot would miss the gradient");
    assert!(lookup_before(&tables, &[2], LookupMode::Read, RequestDeadline::NONE).is_err());
    heal(&store);
    assert_eq!(read(&tables, &[1, 2]), [-6.0, -6.0, -5.0, -5.0]);
    assert!(tables.take_snapshot().is_ok());
}

#[test]
fn a_table_that_keeps_evicted_rows_needs_a_cold_tier() {
    let resources = TableResources { budget: Some(1 << 20), ..TableResources::default() };
    let error = TableSet::new(0, &[ledger_config(2, 1)], resources).unwrap_err();
    assert!(error.to_string().contains("there is no cold tier; set a budget of memory with a cold tier"), "{error}");
}

#[test]
fn a_failed_maintenance_leaves_rows_where_they_are() {
    let (tables, store) = tiny(&[ledger_config(2, 1)]);
    let ids: Vec<u64> = (0..64).collect();
    push(&tables, &ids, 1.0);
    fail(&store);
    assert_eq!(tables.maintain().unwrap_err().reason, FULL);
    assert_eq!((hot(&tables), store.size().rows), (ids, 0));
    heal(&store);
    assert!(tables.maintain().unwrap().removed > 0, "it evicts rows before memory is full");
    assert!(store.size().rows > 0);
    maintain_all(&tables);
}
