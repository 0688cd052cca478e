//! What may happen between the reading of a cold row and its use, each made to happen.

use std::sync::Arc;

use zagros_table::TableSet;

use crate::support::{HookedStore, hot, ledger_config, push, read, tiny, train};

/// As many rows as push all others out of a stripe without memory.
const CROWD: u64 = 64;

/// One stripe, and row 1 in the cold tier at −5.
fn cold_row() -> (Arc<TableSet>, Arc<HookedStore>) {
    let (tables, store) = tiny(&[ledger_config(2, 1)]);
    push(&tables, &[1], 5.0);
    crowd(&tables, 1000);
    assert!(!hot(&tables).contains(&1));
    (Arc::new(tables), store)
}

/// Fills the stripe with other rows.
fn crowd(tables: &TableSet, from: u64) {
    train(tables, &(from..from + CROWD).collect::<Vec<_>>());
}

/// Invariant TI-1: the copy that was read is void once the row came back, changed and left again.
#[test]
fn a_copy_that_was_overtaken_is_read_again() {
    let (tables, store) = cold_row();
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
fn a_row_that_came_back_meanwhile_is_used_where_it_is() {
    let (tables, store) = cold_row();
    let others = Arc::clone(&tables);
    store.after_read(move || push(&others, &[1], 2.0));
    assert_eq!(train(&tables, &[1]), [-7.0, -7.0]);
}

#[test]
fn a_row_that_was_made_and_left_meanwhile_is_not_made_again() {
    let (tables, store) = tiny(&[ledger_config(2, 1)]);
    let tables = Arc::new(tables);
    let others = Arc::clone(&tables);
    store.after_read(move || {
        push(&others, &[1], 3.0);
        crowd(&others, 2000);
    });
    assert_eq!(train(&tables, &[1]), [-3.0, -3.0]);
}

/// Overtaken in every round, a request still ends: the last read is under the lock.
#[test]
fn a_request_ends_however_often_it_is_overtaken() {
    let (tables, store) = cold_row();
    for round in 0..3 {
        let others = Arc::clone(&tables);
        store.after_read(move || {
            push(&others, &[1], 1.0);
            crowd(&others, 2000 + 100 * round);
        });
        // The hook's own reads of other rows go without one.
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

/// A row that was in memory when a push came, and left before its turn.
#[test]
fn a_push_finds_a_row_that_left_before_its_turn() {
    let (tables, store) = cold_row();
    push(&tables, &[2], 4.0);
    let others = Arc::clone(&tables);
    // Row 1 has to be read; row 2 is there, and leaves meanwhile.
    store.after_read(move || crowd(&others, 2000));
    push(&tables, &[1, 2], 1.0);
    assert_eq!(read(&tables, &[1, 2]), [-6.0, -6.0, -5.0, -5.0]);
}
