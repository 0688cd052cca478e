//! Everything that may happen between the read of a cold row and its use. Each test forces one case.

use std::sync::Arc;

use crate::support::{cold_row, crowd, hot, ledger_config, push, read, tiny, train};

/// Invariant TI-1: a copy is void if the row was paged in, changed and evicted after the copy was read.
#[test]
fn a_stale_copy_is_read_again() {
    let (tables, store) = cold_row(2);
    let others = Arc::clone(&tables);
    store.after_read(move || {
        push(&others, &[1], 2.0);
        crowd(&others, 2000);
        assert!(!hot(&others).contains(&1));
    });
    assert_eq!(train(&tables, &[1]), [-7.0, -7.0]);
    let others = Arc::clone(&tables);
    crowd(&tables, 3000);
    store.after_read(move || {
        push(&others, &[1], 1.0);
        crowd(&others, 2000);
    });
    push(&tables, &[1], 10.0);
    assert_eq!(read(&tables, &[1]), [-18.0, -18.0]);
}

#[test]
fn a_row_that_was_paged_in_meanwhile_is_used_in_memory() {
    let (tables, store) = cold_row(2);
    let others = Arc::clone(&tables);
    store.after_read(move || push(&others, &[1], 2.0));
    assert_eq!(train(&tables, &[1]), [-7.0, -7.0]);
}

#[test]
fn a_row_that_was_created_and_evicted_meanwhile_is_not_created_again() {
    let (tables, store) = tiny(&[ledger_config(2, 1)]);
    let tables = Arc::new(tables);
    let others = Arc::clone(&tables);
    store.after_read(move || {
        push(&others, &[1], 3.0);
        crowd(&others, 2000);
    });
    assert_eq!(train(&tables, &[1]), [-3.0, -3.0]);
}

/// A request whose copies are stale in every round still ends: its last read holds the lock.
#[test]
fn a_request_ends_however_often_its_copies_are_stale() {
    let (tables, store) = cold_row(2);
    for round in 0..3 {
        let others = Arc::clone(&tables);
        store.after_read(move || {
            push(&others, &[1], 1.0);
            crowd(&others, 2000 + 100 * round);
        });
        // The reads that the hook makes have no hook themselves.
        store.after_read(|| {});
        store.after_read(|| {});
    }
    push(&tables, &[1], 100.0);
    while store.has_hooks() {
        train(&tables, &[9]);
        crowd(&tables, 5000);
        crowd(&tables, 6000);
    }
    let overtaken = train(&tables, &[1])[0];
    assert!(overtaken <= -106.0, "{overtaken}");
    assert_eq!(overtaken, read(&tables, &[1])[0]);
}
