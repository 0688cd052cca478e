//! What the trait promises, of every store alike, and against a plain map.

use std::collections::BTreeMap;

use proptest::prelude::*;
use zagros_cold::{Compression, RocksOptions, RocksStore};
use zagros_table::{ColdRows, ColdScan, ColdStore, MemoryColdStore};

use crate::{WIDTHS, assert_holds, row, rows, small};

/// One call.
#[derive(Clone, Debug)]
enum Call {
    Read(u32, Vec<u64>),
    Write(u32, Vec<u64>, u32),
    Remove(u32, Vec<u64>),
    RemoveAll(u32),
    /// Freezes, and keeps the view to the end.
    Freeze,
}

type Model = BTreeMap<(u32, u64), Vec<u32>>;

fn place() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..20, Just(u64::MAX), (0_u32..64).prop_map(|bit| 1 << bit)]
}

fn call() -> impl Strategy<Value = Call> {
    let (table, places) = (|| 0..WIDTHS.len() as u32, || prop::collection::vec(place(), 0..8));
    prop_oneof![
        3 => (table(), places()).prop_map(|(table, places)| Call::Read(table, places)),
        3 => (table(), places(), 0_u32..9).prop_map(|(table, places, version)| Call::Write(table, places, version)),
        1 => (table(), places()).prop_map(|(table, places)| Call::Remove(table, places)),
        1 => table().prop_map(Call::RemoveAll),
        1 => Just(Call::Freeze),
    ]
}

/// Reads all of a table, `limit` rows at a time.
fn scan_all(view: &mut dyn zagros_table::ColdView, table: u32, limit: usize) -> Vec<(u64, Vec<u32>)> {
    let (mut scan, mut from) = (ColdScan::default(), Some(0));
    while let Some(start) = from {
        let before = scan.places.len();
        from = view.scan(table, start..=u64::MAX, limit, &mut scan).unwrap();
        assert!(scan.places.len() - before <= limit);
    }
    let row = |(index, place): (usize, &u64)| {
        (*place, scan.rows[index * WIDTHS[table as usize]..][..WIDTHS[table as usize]].to_vec())
    };
    scan.places.iter().enumerate().map(row).collect()
}

fn of_table(model: &Model, table: u32) -> Vec<(u64, Vec<u32>)> {
    model.iter().filter(|(key, _)| key.0 == table).map(|(key, row)| (key.1, row.clone())).collect()
}

/// Runs the calls on a store and on a map; they must agree, at once and in what was frozen on the way.
fn agrees_with_a_map(store: &dyn ColdStore, calls: &[Call], limit: usize) {
    let (mut model, mut frozen) = (Model::new(), Vec::new());
    for call in calls {
        match call {
            Call::Read(table, places) => {
                let mut found = ColdRows { found: vec![true; 3], rows: vec![9; 5] };
                store.read(*table, places, &mut found).unwrap();
                let zeros = vec![0; WIDTHS[*table as usize]];
                let row = |place: &u64| model.get(&(*table, *place)).unwrap_or(&zeros).clone();
                assert_eq!(found.rows, places.iter().flat_map(row).collect::<Vec<_>>());
                let there = |place: &u64| model.contains_key(&(*table, *place));
                assert_eq!(found.found, places.iter().map(there).collect::<Vec<_>>());
            }
            Call::Write(table, places, version) => {
                store.write(*table, places, &rows(*table, places, *version)).unwrap();
                model.extend(places.iter().map(|place| ((*table, *place), row(*table, *place, *version))));
            }
            Call::Remove(table, places) => {
                store.remove(*table, places).unwrap();
                places.iter().for_each(|place| _ = model.remove(&(*table, *place)));
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
    fn the_double_is_a_map(calls in prop::collection::vec(call(), 1..60), limit in 1_usize..9) {
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
        (scan.places, next)
    };
    assert_eq!(scan(2..=8, 9), (vec![5], None));
    assert_eq!(scan(0..=9, 2), (vec![1, 5], Some(9)));
    assert_eq!(scan(9..=u64::MAX, 1), (vec![9], None));
    assert_eq!(scan(10..=u64::MAX, 1), (vec![], None));
}

/// More rows than fit into the write buffers, so that files are written and merged under the reads.
#[test]
fn rows_come_back_from_disk_however_they_are_packed() {
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let folder = tempfile::tempdir().unwrap();
        let options = RocksOptions { compression, ..small() };
        let store = RocksStore::open(folder.path(), &WIDTHS, &options).unwrap();
        let places: Vec<u64> = (0..20_000_u64).map(|place| place.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        for version in 0..3 {
            places.chunks(5000).for_each(|places| store.write(1, places, &rows(1, places, version)).unwrap());
        }
        assert_holds(&store, 1, &places, 2);
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
