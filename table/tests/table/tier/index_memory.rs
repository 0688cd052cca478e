//! A cold store whose index grows with its rows: rows in memory give way to it.

use std::ops::RangeInclusive;
use std::sync::Arc;

use zagros_table::{
    ColdError, ColdRows, ColdScan, ColdSize, ColdStore, ColdView, MemoryColdStore, TableConfig, TableResources,
    TableSet,
};

use super::support::{ledger_config, push, read};

const DIM: usize = 16;
/// Bytes of the index for each row, more than a log needs.
const ENTRY: usize = 40;
const BUDGET: usize = 4 << 20;
/// Some eight times as many rows as fit into the budget.
const ROWS: u64 = 200_000;

/// A store in memory that says that it has an index.
#[derive(Debug)]
struct IndexedStore(MemoryColdStore);

impl ColdStore for IndexedStore {
    fn read(&self, table: u32, cold_keys: &[u64], into: &mut ColdRows) -> Result<(), ColdError> {
        self.0.read(table, cold_keys, into)
    }

    fn write(&self, table: u32, cold_keys: &[u64], rows: &[u32]) -> Result<(), ColdError> {
        self.0.write(table, cold_keys, rows)
    }

    fn remove(&self, table: u32, cold_keys: &[u64]) -> Result<(), ColdError> {
        self.0.remove(table, cold_keys)
    }

    fn remove_all(&self, table: u32) -> Result<(), ColdError> {
        self.0.remove_all(table)
    }

    fn flush(&self) -> Result<(), ColdError> {
        self.0.flush()
    }

    fn freeze(&self) -> Result<Box<dyn ColdView>, ColdError> {
        Ok(Box::new(View(self.0.freeze()?)))
    }

    fn size(&self) -> ColdSize {
        self.0.size()
    }

    fn memory(&self) -> usize {
        self.size().rows as usize * ENTRY
    }
}

struct View(Box<dyn ColdView>);

impl ColdView for View {
    fn scan(
        &mut self,
        table: u32,
        range: RangeInclusive<u64>,
        limit: usize,
        into: &mut ColdScan,
    ) -> Result<Option<u64>, ColdError> {
        self.0.scan(table, range, limit, into)
    }
}

fn tables() -> (TableSet, Arc<IndexedStore>) {
    let config = TableConfig { stripes: 4, ..ledger_config(DIM, 4) };
    let store = Arc::new(IndexedStore(MemoryColdStore::new(&[config.cold_words()])));
    let cold: Arc<dyn ColdStore> = Arc::clone(&store) as _;
    let capacity = TableResources { budget: Some(BUDGET), cold: Some(cold), ..TableResources::default() };
    (TableSet::new(0, &[config], capacity).unwrap(), store)
}

fn maintain(tables: &TableSet) {
    while !tables.maintain().unwrap().is_idle() {}
}

#[test]
fn rows_in_memory_give_way_to_the_index_and_no_push_is_lost() {
    let (tables, store) = tables();
    let (mut full, mut at_the_end) = (0, 0);
    let ids: Vec<u64> = (0..ROWS).collect();
    for part in ids.chunks(1000) {
        push(&tables, part, 1.0);
        maintain(&tables);
        let used = tables.memory_budget().unwrap().0;
        full = full.max(used);
        at_the_end = used + store.memory();
        // A quarter of the budget is left for rows in any case.
        assert!(
            used <= (BUDGET - store.memory().min(BUDGET / 4 * 3)) / 8 * 9,
            "{used} of rows, {} of the index",
            store.memory()
        );
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
    maintain(&tables);
    drop(snapshot);
    maintain(&tables);
    let used = tables.memory_budget().unwrap().0;
    assert!(
        used <= (BUDGET - store.memory().min(BUDGET / 4 * 3)) / 8 * 9,
        "{used} of rows, {} of the index",
        store.memory()
    );
    ids.chunks(1000).for_each(|part| assert_eq!(read(&tables, part), vec![-1.0; part.len() * DIM]));
}
