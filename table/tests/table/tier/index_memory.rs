//! A cold store whose index grows with its rows: rows in memory give way to it.

use std::sync::Arc;

use zagros_table::{ColdStore, TableResources, TableSet};

use crate::support::{HookedStore, ledger_config, maintain_all, push, read, with_store};

const DIM: usize = 16;
/// Bytes of the index for each row, more than a log needs.
const ENTRY: usize = 40;
const BUDGET: usize = 4 << 20;
/// Some eight times as many rows as fit into the budget.
const ROWS: u64 = 200_000;

fn tables() -> (TableSet, Arc<HookedStore>) {
    let resources = TableResources { budget: Some(BUDGET), ..TableResources::default() };
    with_store(&[ledger_config(DIM, 4)], ENTRY, resources)
}

/// Bytes of the rows in memory. A quarter of the budget is left for them in any case.
fn used_beside(store: &HookedStore, tables: &TableSet) -> usize {
    let (used, index) = (tables.memory_budget().unwrap().0, store.memory());
    assert!(used <= (BUDGET - index.min(BUDGET / 4 * 3)) / 8 * 9, "{used} of rows, {index} of the index");
    used
}

#[test]
fn rows_in_memory_give_way_to_the_index_and_no_push_is_lost() {
    let (tables, store) = tables();
    let (mut full, mut at_the_end) = (0, 0);
    let ids: Vec<u64> = (0..ROWS).collect();
    for part in ids.chunks(1000) {
        push(&tables, part, 1.0);
        maintain_all(&tables);
        let used = used_beside(&store, &tables);
        full = full.max(used);
        at_the_end = used + store.memory();
    }
    assert!(full > BUDGET / 3 * 2, "{full}");
    assert!(store.memory() > BUDGET, "{} rows left memory", store.size().rows);
    assert!(at_the_end < store.memory() + BUDGET / 16 * 5);
    ids.chunks(1000).for_each(|part| assert_eq!(read(&tables, part), vec![-1.0; part.len() * DIM]));
    // They come back, and change in memory.
    ids.chunks(1000).step_by(20).for_each(|part| push(&tables, part, 1.0));
    let twice: Vec<u64> = ids.chunks(1000).step_by(20).flatten().copied().collect();
    twice.chunks(1000).for_each(|part| assert_eq!(read(&tables, part), vec![-2.0; part.len() * DIM]));
}

#[test]
fn rows_that_a_snapshot_captures_give_way_after_it() {
    let (tables, store) = tables();
    let ids: Vec<u64> = (0..ROWS / 2).collect();
    ids[..20_000].chunks(1000).for_each(|part| push(&tables, part, 1.0));
    let snapshot = tables.take_snapshot().unwrap();
    ids[20_000..].chunks(1000).for_each(|part| push(&tables, part, 1.0));
    maintain_all(&tables);
    drop(snapshot);
    maintain_all(&tables);
    used_beside(&store, &tables);
    ids.chunks(1000).for_each(|part| assert_eq!(read(&tables, part), vec![-1.0; part.len() * DIM]));
}
