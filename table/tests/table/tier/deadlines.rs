//! Requests whose senders give up during a wait. Nothing of these requests is applied, and the error says what they waited
//! for.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use zagros_table::{LookupMode, RequestDeadline, TableConfig, TableError, TableResources, TableSet};

use crate::support::{HookedStore, crowd, hot, ledger_config, lookup_before, push, push_before, read, with_store};

thread_local! {
    /// A clock that only a test advances.
    static NOW: Cell<u64> = const { Cell::new(1000) };
}

/// The time at which senders give up, by that clock.
const END: u64 = 2000;

fn set_clock(nanos: u64) {
    NOW.set(nanos);
}

/// A real clock, for threads that wait for each other.
fn elapsed() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

fn shortly() -> RequestDeadline {
    RequestDeadline::new(elapsed() + Duration::from_millis(300).as_nanos() as u64)
}

fn tables(config: TableConfig, nanos: fn() -> u64) -> (Arc<TableSet>, Arc<HookedStore>) {
    let resources = TableResources { budget: Some(1), nanos: Some(nanos), ..TableResources::default() };
    let (tables, store) = with_store(&[config], 0, resources);
    (Arc::new(tables), store)
}

/// One stripe, row 1 in the cold tier at −5, rows 1000 to 1063 in memory.
fn cold_row() -> (Arc<TableSet>, Arc<HookedStore>) {
    let (tables, store) = tables(ledger_config(2, 1), || NOW.get());
    push(&tables, &[1], 5.0);
    crowd(&tables, 1000);
    (tables, store)
}

fn lookup_in_time(tables: &TableSet, ids: &[u64], access: LookupMode) -> Result<Vec<f32>, TableError> {
    lookup_before(tables, ids, access, RequestDeadline::new(END)).map(|(rows, _)| rows)
}

fn waited_for<T: std::fmt::Debug>(result: Result<T, TableError>) -> &'static str {
    match result.unwrap_err() {
        TableError::Late { whom } => whom,
        other => panic!("{other}"),
    }
}

#[test]
fn a_push_whose_sender_gave_up_during_the_read_of_a_cold_row_changes_no_row() {
    let (tables, store) = cold_row();
    store.after_read(|| set_clock(END));
    // Row 1000 is in memory and could be updated at once.
    let late = push_before(&tables, &[1000, 1], 3.0, RequestDeadline::new(END));
    assert_eq!(waited_for(late), "rows of the cold tier");
    assert_eq!(read(&tables, &[1000, 1]), [0.0, 0.0, -5.0, -5.0]);
    set_clock(END - 1);
    push_before(&tables, &[1000, 1], 3.0, RequestDeadline::new(END)).unwrap();
    assert_eq!(read(&tables, &[1000, 1]), [-3.0, -3.0, -8.0, -8.0]);
}

#[test]
fn a_lookup_whose_sender_gave_up_during_the_read_of_a_cold_row_brings_no_row_to_memory() {
    let (tables, store) = cold_row();
    let old_hot = hot(&tables);
    for access in [LookupMode::Train, LookupMode::Read] {
        set_clock(1000);
        store.after_read(|| set_clock(END));
        assert_eq!(waited_for(lookup_in_time(&tables, &[1], access)), "rows of the cold tier");
        assert_eq!(hot(&tables), old_hot);
    }
    set_clock(1000);
    assert_eq!(lookup_in_time(&tables, &[1], LookupMode::Train).unwrap(), [-5.0, -5.0]);
    assert!(hot(&tables).contains(&1));
}

/// A lookup of many rows works in parts. It stops before the next part.
#[test]
fn a_long_lookup_stops_in_the_middle() {
    let (tables, store) = cold_row();
    let ids: Vec<u64> = (1 << 20..(1 << 20) + 3 * 4096).collect();
    store.after_read(|| {});
    store.after_read(|| set_clock(END));
    assert_eq!(waited_for(lookup_in_time(&tables, &ids, LookupMode::Train)), "rows of the cold tier");
    assert!(!store.has_hooks(), "the second part was not read");
    store.after_read(|| {});
    assert_eq!(waited_for(lookup_in_time(&tables, &ids, LookupMode::Train)), "a thread of the server");
    assert!(store.has_hooks(), "a request that came too late read the cold tier");
}

/// A push that is being applied continues, so that it is applied whole.
#[test]
fn a_push_whose_sender_gives_up_while_it_is_applied_is_applied_whole() {
    let (tables, store) = cold_row();
    push(&tables, &[2], 4.0);
    let others = Arc::clone(&tables);
    // Row 2 is in memory, and is evicted before its update. It is read again after other rows have changed.
    store.after_read(move || crowd(&others, 2000));
    store.after_read(|| {});
    store.after_read(|| set_clock(END));
    push_before(&tables, &[1, 2], 1.0, RequestDeadline::new(END)).unwrap();
    assert!(!store.has_hooks(), "no row was read again");
    set_clock(1000);
    assert_eq!(read(&tables, &[1, 2]), [-6.0, -6.0, -5.0, -5.0]);
}

/// The rows of one push take more than a MiB, the limit of all pushes together.
#[test]
fn a_push_that_waits_for_the_copies_of_another_one_gives_up_with_its_sender() {
    const DIM: usize = 8192;
    let (tables, store) = tables(ledger_config(DIM, 1), elapsed);
    let (first, second): (Vec<u64>, Vec<u64>) = ((0..33).collect(), (100..133).collect());
    push(&tables, &first, 1.0);
    push(&tables, &second, 2.0);
    crowd(&tables, 1000);
    let others = Arc::clone(&tables);
    let late = second.clone();
    store.after_read(move || {
        let whom = waited_for(push_before(&others, &late, 8.0, shortly()));
        assert_eq!(whom, "other pushes that hold copies of rows of the cold tier");
    });
    push_before(&tables, &first, 4.0, RequestDeadline::NONE).unwrap();
    assert!(!store.has_hooks());
    assert_eq!(read(&tables, &first), vec![-5.0; first.len() * DIM]);
    assert_eq!(read(&tables, &second), vec![-2.0; second.len() * DIM]);
}

/// A snapshot and the removal of all rows wait for running requests, and later requests wait for both.
#[test]
fn a_request_at_the_gate_gives_up_with_its_sender_and_says_whom_it_waited_for() {
    let (tables, _) = tables(ledger_config(2, 1), elapsed);
    push(&tables, &[1], 5.0);
    let (of_snapshot, of_clear) =
        ("a snapshot of the tables, which waits for earlier requests to end", "the removal of all rows of the tables");
    for (clears, whom, left) in [(false, of_snapshot, [-5.0; 2]), (true, of_clear, [0.0; 2])] {
        let under_way = tables.enter();
        let others = Arc::clone(&tables);
        let waiting =
            thread::spawn(move || if clears { others.clear().unwrap() } else { drop(others.take_snapshot().unwrap()) });
        // Until it waits at the gate.
        let late = loop {
            match tables.enter_before(shortly()) {
                Ok(entry) => drop(entry),
                Err(late) => break late,
            }
        };
        assert_eq!(late, TableError::Late { whom });
        assert_eq!(waited_for(push_before(&tables, &[1], 3.0, shortly())), whom);
        drop(under_way);
        waiting.join().unwrap();
        assert_eq!(read(&tables, &[1]), left, "the push was applied");
    }
}
