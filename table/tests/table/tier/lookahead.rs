//! Hints: rows are in memory when they are looked up, stay there until then, and no result depends on it.

use std::sync::Arc;

use proptest::prelude::*;
use zagros_table::{
    AdmissionPolicy, EvictionOrder, EvictionPolicy, LookupMode, RequestBuffers, RequestDeadline, RequestPart,
    TableConfig, TableCounts, TableError, TableSet, Ttl,
};

use crate::support::{
    HookedStore, hint, hot, ledger_config, lookahead_tables, lookup_before, part, push, read, tiny, train,
};

/// So many rows are in a stripe whatever the budget.
const FLOOR: u64 = 64;
const LOOKAHEAD: usize = 4;

/// One stripe with rows 0 to 9 in the cold tier, each minus its id.
fn cold_rows() -> (TableSet, Arc<HookedStore>) {
    let (tables, store) = lookahead_tables(&[ledger_config(2, 1)], 1, LOOKAHEAD);
    (0..10).for_each(|id| push(&tables, &[id], id as f32));
    crowd(&tables, 1000, FLOOR);
    assert!(hot(&tables).iter().all(|id| *id >= 1000));
    (tables, store)
}

fn crowd(tables: &TableSet, from: u64, count: u64) {
    train(tables, &(from..from + count).collect::<Vec<_>>());
}

fn counts(tables: &TableSet) -> TableCounts {
    tables.table(0).unwrap().event_counts()
}

#[test]
fn a_hinted_row_is_in_memory_when_it_is_looked_up() {
    let (tables, store) = cold_rows();
    let old_counts = counts(&tables);
    assert_eq!(hint(&tables, &[3, 4, 77]), 2);
    assert!(hot(&tables).contains(&3) && !hot(&tables).contains(&77), "a hint creates no row");
    store.inner.fail_with(Some("no read is needed".to_owned()));
    assert_eq!(train(&tables, &[3, 4]), [-3.0, -3.0, -4.0, -4.0]);
    let counted = |of: TableCounts| [of.hinted, of.ready, of.late, of.hits, of.misses, of.created];
    let (before, now) = (counted(old_counts), counted(counts(&tables)));
    assert_eq!([0, 1, 2, 3, 4, 5].map(|at| now[at] - before[at]), [3, 2, 0, 2, 0, 0]);
}

#[test]
fn a_row_that_nobody_hinted_is_late() {
    let (tables, _) = cold_rows();
    let old_counts = counts(&tables);
    let report = lookup_before(&tables, &[5, 78], LookupMode::Train, RequestDeadline::NONE).unwrap().1;
    assert_eq!((report.late, report.created, counts(&tables).late - old_counts.late), (1, 1, 1));
}

/// Belady within the window: what a batch needs soon stays, although it was not used for the longest time.
#[test]
fn hinted_rows_stay_until_so_many_hints_have_followed() {
    let (tables, _) = cold_rows();
    tables.advance_clock(1, 0);
    hint(&tables, &[1, 2]);
    for round in 1..LOOKAHEAD as u64 {
        tables.advance_clock(1 + round, 0);
        crowd(&tables, 2000 + 100 * round, FLOOR / 2);
        assert!(hot(&tables).contains(&1) && hot(&tables).contains(&2), "after {round} hints");
        hint(&tables, &[]);
    }
    hint(&tables, &[]);
    tables.advance_clock(9, 0);
    crowd(&tables, 9000, FLOOR);
    assert!(!hot(&tables).contains(&1) && !hot(&tables).contains(&2));
    assert_eq!(read(&tables, &[1, 2]), [-1.0, -1.0, -2.0, -2.0]);
}

#[test]
fn a_row_in_memory_is_kept_by_a_hint_as_well() {
    let (tables, _) = cold_rows();
    train(&tables, &[7]);
    hint(&tables, &[7]);
    tables.advance_clock(5, 0);
    crowd(&tables, 2000, FLOOR / 2);
    crowd(&tables, 3000, FLOOR / 2);
    assert!(hot(&tables).contains(&7));
}

/// More rows are hinted than memory has room for: some leave again, and nothing is wrong.
#[test]
fn hints_of_more_rows_than_fit_are_served_as_far_as_there_is_room() {
    let (tables, _) = lookahead_tables(&[ledger_config(2, 1)], 1, LOOKAHEAD);
    let ids: Vec<u64> = (0..10 * FLOOR).collect();
    ids.chunks(64).for_each(|ids| push(&tables, ids, 1.0));
    for round in 1..5 {
        hint(&tables, &ids);
        assert!(hot(&tables).len() as u64 <= 2 * FLOOR, "round {round}: {} rows", hot(&tables).len());
        ids.chunks(64).for_each(|ids| push(&tables, ids, 1.0));
    }
    assert_eq!(read(&tables, &ids), vec![-5.0; 2 * ids.len()]);
}

/// Hints of more batches than fit into memory: what the first of them named stays, because it is needed first.
#[test]
fn a_hint_does_not_displace_what_an_earlier_one_named() {
    let (tables, _) = lookahead_tables(&[ledger_config(2, 1)], 1, LOOKAHEAD);
    let batches: Vec<Vec<u64>> = (0..LOOKAHEAD as u64).map(|batch| (batch * 40..(batch + 1) * 40).collect()).collect();
    batches.iter().for_each(|ids| push(&tables, ids, 1.0));
    crowd(&tables, 1000, FLOOR);
    tables.advance_clock(1, 0);
    let ready: Vec<u64> = batches.iter().map(|ids| hint(&tables, ids)).collect();
    assert_eq!(ready[0], 40, "{ready:?}");
    assert!(ready[3] < 40, "{ready:?}");
    let old_late = counts(&tables).late;
    train(&tables, &batches[0]);
    assert_eq!(counts(&tables).late, old_late);
}

/// A hint reads a row; before it has brought the row in, the row is changed and leaves again.
#[test]
fn a_stale_copy_is_not_paged_in() {
    let (tables, store) = cold_rows();
    let tables = Arc::new(tables);
    let others = Arc::clone(&tables);
    store.after_read(move || {
        push(&others, &[1], 2.0);
        crowd(&others, 2000, FLOOR);
    });
    assert_eq!(hint(&tables, &[1]), 0);
    assert_eq!(train(&tables, &[1]), [-3.0, -3.0]);
}

#[test]
fn a_hint_says_when_the_cold_tier_fails_and_takes_no_memory() {
    let (tables, store) = cold_rows();
    store.inner.fail_with(Some("input/output error".to_owned()));
    let error = tables.enter().page_in_hinted(&[part(&tables, &[1])], &mut RequestBuffers::new()).unwrap_err();
    assert!(matches!(error, TableError::Cold { table: 0, .. }), "{error}");
    store.inner.fail_with(None);
    store.fail_writes(true);
    let (used, _) = tables.memory_budget().unwrap();
    hint(&tables, &[1, 2, 3]);
    assert_eq!(tables.memory_budget().unwrap().0, used, "nothing can leave, so nothing comes");
    store.fail_writes(false);
    assert_eq!(train(&tables, &[1, 2]), [-1.0, -1.0, -2.0, -2.0]);
}

#[test]
fn a_malformed_hint_is_refused() {
    let (tables, _) = cold_rows();
    let page_in = |table, dim| {
        let part = RequestPart { table, dim, ids: &[1] };
        tables.enter().page_in_hinted(&[part], &mut RequestBuffers::new())
    };
    assert!(matches!(page_in(1, 2), Err(TableError::UnknownTable { .. })));
    assert!(matches!(page_in(0, 3), Err(TableError::Dim { .. })));
}

/// Without lookahead, or a cold tier, hints are harmless.
#[test]
fn tables_without_lookahead_take_hints() {
    let (tables, _) = tiny(&[ledger_config(2, 1)]);
    push(&tables, &[1], 1.0);
    crowd(&tables, 1000, FLOOR);
    assert_eq!(hint(&tables, &[1]), 1);
    let memory = TableSet::new(0, &[ledger_config(2, 1)], zagros_table::TableResources::default()).unwrap();
    push(&memory, &[1], 1.0);
    assert_eq!(hint(&memory, &[1]), 0);
}

#[derive(Clone, Debug)]
enum HintCall {
    Train(Vec<u64>),
    Push(Vec<u64>, i8),
    Tick(u64),
    Maintain,
    Hint(Vec<u64>),
}

fn call() -> impl Strategy<Value = HintCall> {
    let ids = || prop::collection::btree_set(0_u64..300, 1..40).prop_map(|ids| ids.into_iter().collect::<Vec<_>>());
    prop_oneof![
        4 => ids().prop_map(HintCall::Train),
        4 => (ids(), -3_i8..4).prop_map(|(ids, amount)| HintCall::Push(ids, amount)),
        2 => (0_u64..6).prop_map(HintCall::Tick),
        1 => Just(HintCall::Maintain),
        6 => ids().prop_map(HintCall::Hint),
    ]
}

/// Every kind of rule that asks when a row was used.
fn config() -> impl Strategy<Value = TableConfig> {
    let order = prop_oneof![Just(EvictionOrder::Lru), Just(EvictionOrder::Lfu { half_life: 64 })];
    let ttl = prop_oneof![Just(None), (1_u32..9).prop_map(|ttl| Some(Ttl::Steps(ttl)))];
    let admission = prop_oneof![Just(AdmissionPolicy::Always), Just(AdmissionPolicy::Probability { share: 0.5 })];
    (order, ttl, admission, prop_oneof![Just(1_usize), Just(2)]).prop_map(|(order, ttl, admission, stripes)| {
        TableConfig {
            eviction: EvictionPolicy { order, ttl, ..EvictionPolicy::default() },
            admission,
            ..ledger_config(2, stripes)
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Invariant DP-7: hints change no answer, whatever comes between them.
    #[test]
    fn answers_are_equal_with_hints_and_without(config in config(), calls in prop::collection::vec(call(), 1..60)) {
        let [with, without] = [0, 1].map(|_| lookahead_tables(&[config], 1, LOOKAHEAD).0);
        let (mut now, mut step) = (0, 0);
        for call in &calls {
            match call {
                HintCall::Train(ids) => prop_assert_eq!(train(&with, ids), train(&without, ids)),
                HintCall::Push(ids, amount) => [&with, &without].into_iter().for_each(|tables| push(tables, ids, f32::from(*amount))),
                HintCall::Tick(steps) => {
                    now += steps;
                    [&with, &without].into_iter().for_each(|tables| tables.advance_clock(now, 0));
                }
                HintCall::Maintain => {
                    with.maintain().unwrap();
                    without.maintain().unwrap();
                }
                HintCall::Hint(ids) => {
                    hint(&with, ids);
                    step += 1;
                }
            }
        }
        let all: Vec<u64> = (0..300).collect();
        prop_assert_eq!(read(&with, &all), read(&without, &all), "after {} hints", step);
    }
}
