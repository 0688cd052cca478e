//! The behaviour that the trait requires of every store, compared with a plain map.

use std::collections::BTreeMap;

use proptest::prelude::*;
use zagros_cold::{Compression, RocksOptions, RocksStore};
use zagros_table::{ColdRows, ColdScan, ColdStore, MemoryColdStore};

use crate::{WIDTHS, assert_holds, row, rows, small};

/// One call of a store.
#[derive(Clone, Debug)]
enum Call {
    Read(u32, Vec<u64>),
    Write(u32, Vec<u64>, u32),
    Remove(u32, Vec<u64>),
    RemoveAll(u32),
    /// Freezes the store and keeps the view to the end of the test.
    Freeze,
}

type Model = BTreeMap<(u32, u64), Vec<u32>>;

fn cold_key() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..20, Just(u64::MAX), (0_u32..64).prop_map(|bit| 1 << bit)]
}

fn call() -> impl Strategy<Value = Call> {
    let (table, cold_keys) = (|| 0..WIDTHS.len() as u32, || prop::collection::vec(cold_key(), 0..8));
    prop_oneof![
        3 => (table(), cold_keys()).prop_map(|(table, cold_keys)| Call::Read(table, cold_keys)),
        3 => (table(), cold_keys(), 0_u32..9).prop_map(|(table, cold_keys, version)| Call::Write(table, cold_keys, version)),
        1 => (table(), cold_keys()).prop_map(|(table, cold_keys)| Call::Remove(table, cold_keys)),
        1 => table().prop_map(Call::RemoveAll),
        1 => Just(Call::Freeze),
    ]
}

/// Reads all rows of a table, `limit` rows at a time.
fn scan_all(view: &mut dyn zagros_table::ColdView, table: u32, limit: usize) -> Vec<(u64, Vec<u32>)> {
    let (mut scan, mut from) = (ColdScan::default(), Some(0));
    while let Some(start) = from {
        let before = scan.cold_keys.len();
        from = view.scan(table, start..=u64::MAX, limit, &mut scan).unwrap();
        assert!(scan.cold_keys.len() - before <= limit);
    }
    let row = |(index, cold_key): (usize, &u64)| {
        (*cold_key, scan.rows[index * WIDTHS[table as usize]..][..WIDTHS[table as usize]].to_vec())
    };
    scan.cold_keys.iter().enumerate().map(row).collect()
}

fn of_table(model: &Model, table: u32) -> Vec<(u64, Vec<u32>)> {
    model.iter().filter(|(key, _)| key.0 == table).map(|(key, row)| (key.1, row.clone())).collect()
}

/// Makes the calls on a store and on a map. The results must agree, also in the frozen views.
fn agrees_with_a_map(store: &dyn ColdStore, calls: &[Call], limit: usize) {
    let (mut model, mut frozen) = (Model::new(), Vec::new());
    for call in calls {
        match call {
            Call::Read(table, cold_keys) => {
                let mut found = ColdRows { found: vec![true; 3], rows: vec![9; 5] };
                store.read(*table, cold_keys, &mut found).unwrap();
                let zeros = vec![0; WIDTHS[*table as usize]];
                let row = |cold_key: &u64| model.get(&(*table, *cold_key)).unwrap_or(&zeros).clone();
                assert_eq!(found.rows, cold_keys.iter().flat_map(row).collect::<Vec<_>>());
                let there = |cold_key: &u64| model.contains_key(&(*table, *cold_key));
                assert_eq!(found.found, cold_keys.iter().map(there).collect::<Vec<_>>());
            }
            Call::Write(table, cold_keys, version) => {
                store.write(*table, cold_keys, &rows(*table, cold_keys, *version)).unwrap();
                model.extend(cold_keys.iter().map(|cold_key| ((*table, *cold_key), row(*table, *cold_key, *version))));
            }
            Call::Remove(table, cold_keys) => {
                store.remove(*table, cold_keys).unwrap();
                cold_keys.iter().for_each(|cold_key| _ = model.remove(&(*table, *cold_key)));
            }
            Call::RemoveAll(table) => {
                store.remove_all(*table).unwrap();
                model.retain(|key, _| key.0 != *table);
            }
            Call::Freeze => frozen.push((store.freeze().unwrap(), model.clone())),
        }
    }
    frozen.push((store.freeze().unwrap(), model));
    for (mut view, model) in frozen {
        for table in 0..WIDTHS.len() as u32 {
            assert_eq!(scan_all(view.as_mut(), table, limit), of_table(&model, table));
        }
    }
}

proptest! {
    #[test]
    fn the_store_in_memory_is_a_map(calls in prop::collection::vec(call(), 1..60), limit in 1_usize..9) {
        agrees_with_a_map(&MemoryColdStore::new(&WIDTHS), &calls, limit);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn the_store_on_disk_is_a_map(calls in prop::collection::vec(call(), 1..60), limit in 1_usize..9) {
        let folder = tempfile::tempdir().unwrap();
        agrees_with_a_map(&RocksStore::open(folder.path(), &WIDTHS, &small()).unwrap(), &calls, limit);
    }
}

#[test]
fn a_scan_ends_where_its_range_does() {
    let folder = tempfile::tempdir().unwrap();
    let store = RocksStore::open(folder.path(), &WIDTHS, &small()).unwrap();
    store.write(0, &[1, 5, 9], &rows(0, &[1, 5, 9], 0)).unwrap();
    store.write(1, &[4], &rows(1, &[4], 0)).unwrap();
    let mut view = store.freeze().unwrap();
    let mut scan = |range, limit| {
        let mut scan = ColdScan::default();
        let next = view.scan(0, range, limit, &mut scan).unwrap();
        (scan.cold_keys, next)
    };
    assert_eq!(scan(2..=8, 9), (vec![5], None));
    assert_eq!(scan(0..=9, 2), (vec![1, 5], Some(9)));
    assert_eq!(scan(9..=u64::MAX, 1), (vec![9], None));
    assert_eq!(scan(10..=u64::MAX, 1), (vec![], None));
}

/// More rows than fit into the write buffers, so that files are written and merged during the reads.
#[test]
fn rows_are_read_from_disk_with_any_compression() {
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let folder = tempfile::tempdir().unwrap();
        let options = RocksOptions { compression, ..small() };
        let store = RocksStore::open(folder.path(), &WIDTHS, &options).unwrap();
        let cold_keys: Vec<u64> =
            (0..20_000_u64).map(|cold_key| cold_key.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        for version in 0..3 {
            cold_keys
                .chunks(5000)
                .for_each(|cold_keys| store.write(1, cold_keys, &rows(1, cold_keys, version)).unwrap());
        }
        assert_holds(&store, 1, &cold_keys, 2);
        assert!(store.reads().misses > 0, "nothing was read from disk");
        assert!(store.size().bytes > 0 && store.size().rows > 0, "{:?}", store.size());
    }
}

#[test]
fn nothing_is_left_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("cold");
    let store = RocksStore::open(&inside, &WIDTHS, &small()).unwrap();
    store.write(0, &[7], &rows(0, &[7], 0)).unwrap();
    assert!(inside.join("CURRENT").exists());
    drop(store);
    assert!(!inside.exists());
}

#[test]
fn a_view_outlives_its_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = RocksStore::open(folder.path(), &WIDTHS, &small()).unwrap();
    store.write(0, &[7], &rows(0, &[7], 0)).unwrap();
    let mut view = store.freeze().unwrap();
    store.write(0, &[7], &rows(0, &[7], 1)).unwrap();
    drop(store);
    assert_eq!(scan_all(view.as_mut(), 0, 10), [(7, row(0, 7, 0))]);
}
