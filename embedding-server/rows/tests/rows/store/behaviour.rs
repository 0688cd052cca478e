//! The behaviour that the trait requires of every store, compared with a plain map.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tempfile::TempDir;
use zagros_fakes::MemoryColdStore;
use zagros_rows::cold::{LogOptions, LogStore, ReadMethod, StoreContent};
use zagros_table::{ColdError, ColdRead, ColdRows, ColdScan, ColdStore, ColdView};
use zagros_zip::ZipEq;

use crate::store::{WIDTHS, assert_holds, row, rows, scratch, segments, small, without_ring};

#[derive(Clone, Debug)]
enum StoreCall {
    Read(u32, Vec<u64>),
    Write(u32, Vec<u64>, u32),
    Remove(u32, Vec<u64>),
    RemoveAll(u32),
    /// Freezes the store and keeps the view to the end of the test.
    Freeze,
    /// Moves rows together, if the store does such a thing.
    Compact,
    /// Ends the store and opens it again with its rows, if they are kept.
    Reopen,
}

trait Tested {
    fn store(&self) -> &dyn ColdStore;
    fn compact(&self) {}
    fn reopen(&mut self) {}
}

impl Tested for MemoryColdStore {
    fn store(&self) -> &dyn ColdStore {
        self
    }
}

/// A store on disk, with the least segments that there are.
struct OnDisk {
    folder: TempDir,
    options: LogOptions,
    content: StoreContent,
    store: Option<LogStore>,
}

impl OnDisk {
    fn new(content: StoreContent, reads: ReadMethod) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = LogOptions { segment: 400, reads, ..LogOptions::default() };
        let store = LogStore::open(content, folder.path(), &WIDTHS, &options).unwrap();
        Self { folder, options, content, store: Some(store) }
    }
}

impl Tested for OnDisk {
    fn store(&self) -> &dyn ColdStore {
        self.store.as_ref().unwrap()
    }

    fn compact(&self) {
        self.store.as_ref().unwrap().compact().unwrap();
    }

    fn reopen(&mut self) {
        if self.content == StoreContent::New {
            drop(self.store.take());
            self.store = Some(LogStore::open(StoreContent::Kept, self.folder.path(), &WIDTHS, &self.options).unwrap());
        }
    }
}

type StoreModel = BTreeMap<(u32, u64), Vec<u32>>;

fn cold_key() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..20, Just(u64::MAX), (0_u32..64).prop_map(|bit| 1 << bit)]
}

fn call() -> impl Strategy<Value = StoreCall> {
    let (table, cold_keys) = (|| 0..WIDTHS.len() as u32, || prop::collection::vec(cold_key(), 0..8));
    prop_oneof![
        3 => (table(), cold_keys()).prop_map(|(table, cold_keys)| StoreCall::Read(table, cold_keys)),
        3 => (table(), cold_keys(), 0_u32..9).prop_map(|(table, cold_keys, version)| StoreCall::Write(table, cold_keys, version)),
        1 => (table(), cold_keys()).prop_map(|(table, cold_keys)| StoreCall::Remove(table, cold_keys)),
        1 => table().prop_map(StoreCall::RemoveAll),
        1 => Just(StoreCall::Freeze),
        1 => Just(StoreCall::Compact),
        1 => Just(StoreCall::Reopen),
    ]
}

/// Reads all rows of a table, `limit` rows at a time.
fn scan_all(view: &mut dyn ColdView, table: u32, limit: usize) -> Vec<(u64, Vec<u32>)> {
    let (mut scan, mut from) = (ColdScan::default(), Some(0));
    while let Some(start) = from {
        let old_len = scan.cold_keys.len();
        from = view.scan(table, start..=u64::MAX, limit, &mut scan).unwrap();
        assert!(scan.cold_keys.len() - old_len <= limit);
    }
    let row = |(index, cold_key): (usize, &u64)| {
        (*cold_key, scan.rows[index * WIDTHS[table as usize]..][..WIDTHS[table as usize]].to_vec())
    };
    scan.cold_keys.iter().enumerate().map(row).collect()
}

fn of_table(model: &StoreModel, table: u32) -> Vec<(u64, Vec<u32>)> {
    model.iter().filter(|(key, _)| key.0 == table).map(|(key, row)| (key.1, row.clone())).collect()
}

/// Makes the calls on a store and on a map. The results must agree, also in the frozen views.
fn agrees_with_a_map(tested: &mut dyn Tested, calls: &[StoreCall], limit: usize) {
    let (mut model, mut frozen) = (StoreModel::new(), Vec::new());
    for call in calls {
        let store = tested.store();
        match call {
            StoreCall::Read(table, cold_keys) => {
                let mut found = ColdRows { found: vec![true; 3], rows: vec![9; 5] };
                store.read(*table, cold_keys, &mut found).unwrap();
                let zeros = vec![0; WIDTHS[*table as usize]];
                let row = |cold_key: &u64| model.get(&(*table, *cold_key)).unwrap_or(&zeros).clone();
                assert_eq!(found.rows, cold_keys.iter().flat_map(row).collect::<Vec<_>>());
                let there = |cold_key: &u64| model.contains_key(&(*table, *cold_key));
                assert_eq!(found.found, cold_keys.iter().map(there).collect::<Vec<_>>());
            }
            StoreCall::Write(table, cold_keys, version) => {
                store.write(*table, cold_keys, &rows(*table, cold_keys, *version)).unwrap();
                model.extend(cold_keys.iter().map(|cold_key| ((*table, *cold_key), row(*table, *cold_key, *version))));
            }
            StoreCall::Remove(table, cold_keys) => {
                store.remove(*table, cold_keys).unwrap();
                cold_keys.iter().for_each(|cold_key| _ = model.remove(&(*table, *cold_key)));
            }
            StoreCall::RemoveAll(table) => {
                store.remove_all(*table).unwrap();
                model.retain(|key, _| key.0 != *table);
            }
            StoreCall::Freeze => frozen.push((store.freeze().unwrap(), model.clone())),
            StoreCall::Compact => tested.compact(),
            StoreCall::Reopen => {
                // A store has its folder until its last view is dropped.
                agree(std::mem::take(&mut frozen), limit);
                tested.reopen();
            }
        }
    }
    frozen.push((tested.store().freeze().unwrap(), model));
    agree(frozen, limit);
}

fn agree(frozen: Vec<(Box<dyn ColdView>, StoreModel)>, limit: usize) {
    for (mut view, model) in frozen {
        for table in 0..WIDTHS.len() as u32 {
            assert_eq!(scan_all(view.as_mut(), table, limit), of_table(&model, table));
        }
    }
}

proptest! {
    #[test]
    fn the_store_in_memory_is_a_map(calls in prop::collection::vec(call(), 1..60), limit in 1_usize..9) {
        agrees_with_a_map(&mut MemoryColdStore::new(&WIDTHS), &calls, limit);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn a_scratch_store_is_a_map(calls in prop::collection::vec(call(), 1..120), limit in 1_usize..9) {
        agrees_with_a_map(&mut OnDisk::new(StoreContent::Scratch, ReadMethod::Ring), &calls, limit);
    }

    #[test]
    fn a_scratch_store_is_a_map_without_io_uring(calls in prop::collection::vec(call(), 1..120), limit in 1_usize..9) {
        agrees_with_a_map(&mut OnDisk::new(StoreContent::Scratch, ReadMethod::Calls), &calls, limit);
    }

    #[test]
    fn a_store_that_keeps_its_rows_is_a_map(calls in prop::collection::vec(call(), 1..160), limit in 1_usize..9) {
        agrees_with_a_map(&mut OnDisk::new(StoreContent::New, ReadMethod::Ring), &calls, limit);
    }
}

#[test]
fn a_scan_ends_where_its_range_does() {
    let (_folder, store) = scratch();
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
    // It goes on where the last call ended, to another end.
    assert_eq!(scan(0..=u64::MAX, 1), (vec![1], Some(5)));
    assert_eq!(scan(5..=8, 1), (vec![5], None));
}

fn hashed(count: u64) -> Vec<u64> {
    (0..count).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

#[test]
fn overwritten_rows_are_read_by_either_method_and_their_space_comes_back() {
    for options in [small(), without_ring()] {
        let folder = tempfile::tempdir().unwrap();
        let store = LogStore::open(StoreContent::Scratch, folder.path(), &WIDTHS, &options).unwrap();
        let cold_keys = hashed(20_000);
        for version in 0..5 {
            cold_keys.chunks(500).for_each(|part| store.write(1, part, &rows(1, part, version)).unwrap());
        }
        store.compact().unwrap();
        assert_holds(&store, 1, &cold_keys, 4);
        let (size, counts) = (store.size(), store.io_counts());
        let of_rows = 20_000 * (WIDTHS[1] * 4) as u64;
        assert_eq!(size.rows, 20_000);
        assert!(size.bytes < 5 * of_rows / 2, "{size:?} for {of_rows} bytes of rows");
        let on_disk: u64 = segments(folder.path()).iter().map(|path| path.metadata().unwrap().len()).sum();
        assert!(on_disk < size.bytes + size.bytes / 10, "{on_disk} bytes in files, {size:?}");
        assert!(counts.reads > 0 && counts.row_bytes == 5 * of_rows, "{counts:?}");
        assert!(counts.write_amplification() < 2.5, "{counts:?}");
    }
}

#[test]
fn keys_without_a_row_cost_no_read() {
    let (_folder, store) = scratch();
    let (present, absent) = (hashed(2000), (0..2000).map(|number| number * 3 + 1).collect::<Vec<u64>>());
    store.write(1, &present, &rows(1, &present, 0)).unwrap();
    let mut found = ColdRows::default();
    store.read(1, &absent, &mut found).unwrap();
    assert_eq!((found.found.iter().filter(|found| **found).count(), store.io_counts().reads), (0, 0));
}

/// Many rows are read ahead, in the order of a scan, and each one is answered once.
#[test]
fn a_long_scan_reads_many_rows_together() {
    let (_folder, store) = scratch();
    let mut cold_keys = hashed(30_000);
    cold_keys.sort_unstable();
    cold_keys.chunks(250).for_each(|part| store.write(1, part, &rows(1, part, 1)).unwrap());
    let mut view = store.freeze().unwrap();
    cold_keys.iter().take(10_000).for_each(|key| store.write(1, &[*key], &rows(1, &[*key], 2)).unwrap());
    store.compact().unwrap();
    let earlier_reads = store.io_counts().reads;
    let found = scan_all(view.as_mut(), 1, 1000);
    assert_eq!(found, cold_keys.iter().map(|key| (*key, row(1, *key, 1))).collect::<Vec<_>>());
    let reads = store.io_counts().reads - earlier_reads;
    assert!(reads < 2000, "{reads} reads for {} rows", cold_keys.len());
}

#[test]
fn an_index_at_its_limit_takes_no_more_rows_and_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let options = LogOptions { index: 1 << 20, ..small() };
    let store = LogStore::open(StoreContent::Scratch, folder.path(), &WIDTHS, &options).unwrap();
    let (mut held, mut error) = (Vec::new(), None);
    for part in hashed(200_000).chunks(500) {
        match store.write(1, part, &rows(1, part, 0)) {
            Ok(()) => held.extend_from_slice(part),
            Err(refused) => error = error.or(Some(refused)),
        }
    }
    let error = error.unwrap();
    let help = "MiB of memory, of 1 that it may; raise `cluster.memory`";
    assert!(error.doing == "write" && error.reason.contains(help), "{error}");
    assert!(held.len() > 40_000 && store.memory() >= 1 << 20, "{} rows", held.len());
    assert_holds(&store, 1, &held, 0);
    // Rows that it has can still change.
    store.write(1, &held[..500], &rows(1, &held[..500], 1)).unwrap();
    assert_holds(&store, 1, &held[..500], 1);
    store.remove(1, &held[..held.len() / 2]).unwrap();
    store.write(1, &[1], &rows(1, &[1], 0)).unwrap();
}

#[test]
fn a_view_outlives_its_store() {
    let (_folder, store) = scratch();
    store.write(0, &[7], &rows(0, &[7], 0)).unwrap();
    let mut view = store.freeze().unwrap();
    store.write(0, &[7], &rows(0, &[7], 1)).unwrap();
    store.remove_all(0).unwrap();
    drop(store);
    assert_eq!(scan_all(view.as_mut(), 0, 10), [(7, row(0, 7, 0))]);
}

/// Rows of several tables in one call: each goes to its own place, by either way of reading.
#[test]
fn one_read_has_the_rows_of_several_tables() {
    for options in [small(), without_ring()] {
        let folder = tempfile::tempdir().unwrap();
        let store = LogStore::open(StoreContent::Scratch, folder.path(), &WIDTHS, &options).unwrap();
        let keys = |from: u64| (from..from + 300).map(|key| key * 7919).collect::<Vec<_>>();
        for (table, cold_keys) in [(0, keys(0)), (1, keys(100))] {
            store.write(table, &cold_keys, &rows(table, &cold_keys, 1)).unwrap();
        }
        let mut found = [ColdRows::default(), ColdRows::default()];
        let wanted = [(1, keys(250)), (0, keys(0))];
        let earlier_reads = store.io_counts().reads;
        let mut reads: Vec<ColdRead<'_>> = Vec::new();
        for ((table, cold_keys), into) in wanted.iter().zip_eq(&mut found) {
            reads.push(ColdRead { table: *table, cold_keys, into });
        }
        store.read_all(&mut reads).unwrap();
        assert!(store.io_counts().reads > earlier_reads);
        let is_there = |key: &u64| *key / 7919 < 400;
        assert_eq!(found[0].found, wanted[0].1.iter().map(is_there).collect::<Vec<_>>());
        let there: Vec<u64> = wanted[0].1.iter().copied().filter(is_there).collect();
        assert_eq!(found[0].rows[..there.len() * WIDTHS[1]], rows(1, &there, 1));
        assert_eq!((&found[1].found, &found[1].rows), (&vec![true; 300], &rows(0, &wanted[1].1, 1)));
        let error = store.read_all(&mut [ColdRead { table: 2, cold_keys: &[1], into: &mut found[0] }]).unwrap_err();
        assert_eq!(error, ColdError { doing: "read", reason: "no table 2 of 2".to_owned() });
    }
}
