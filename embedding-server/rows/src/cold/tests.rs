//! Stores whose writes fail half-way: what the next process finds.

use std::collections::BTreeMap;

use proptest::prelude::*;
use zagros_table::{ColdRows, ColdStore};

use super::segment::failing::{FAILS_TRUNCATION, ROOM};
use super::{LogOptions, LogStore, StoreContent};

const WIDTH: usize = 3;
const KEYS: u64 = 60;
/// Bytes of a record.
const RECORD: usize = 4 + 8 + 4 * WIDTH;

/// What a test does with a store. A number of bytes is the room on the disk.
#[derive(Clone, Debug)]
enum StoreAct {
    Write { keys: Vec<u64>, room: Option<usize> },
    Remove { keys: Vec<u64>, room: Option<usize> },
    FailTruncation(bool),
    Flush,
    Clear,
    Reopen,
}

fn acts() -> impl Strategy<Value = Vec<StoreAct>> {
    let keys = || prop::collection::btree_set(0..KEYS, 1..30).prop_map(|keys| keys.into_iter().collect::<Vec<_>>());
    let room = || prop::option::of(0..30 * RECORD);
    let act = prop_oneof![
        8 => (keys(), room()).prop_map(|(keys, room)| StoreAct::Write { keys, room }),
        3 => (keys(), room()).prop_map(|(keys, room)| StoreAct::Remove { keys, room }),
        1 => any::<bool>().prop_map(StoreAct::FailTruncation),
        2 => Just(StoreAct::Flush),
        1 => Just(StoreAct::Clear),
        2 => Just(StoreAct::Reopen),
    ];
    prop::collection::vec(act, 1..40)
}

fn open(content: StoreContent, folder: &std::path::Path) -> LogStore {
    LogStore::open(content, folder, &[WIDTH], &LogOptions { segment: 16 * RECORD, ..LogOptions::default() }).unwrap()
}

fn rows(keys: &[u64], version: u32) -> Vec<u32> {
    keys.iter().flat_map(|key| [*key as u32, version, 7]).collect()
}

fn assert_is(store: &LogStore, model: &BTreeMap<u64, u32>) {
    let (keys, mut found) = ((0..KEYS).collect::<Vec<_>>(), ColdRows::default());
    store.read(0, &keys, &mut found).unwrap();
    for key in keys {
        let place = key as usize;
        let version = found.found[place].then(|| found.rows[place * WIDTH + 1]);
        assert_eq!(version, model.get(&key).copied(), "row {key}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// A write that fails leaves nothing that the next process takes for a row, whatever could be cut off of it and when.
    #[test]
    fn failed_writes_leave_no_rows(acts in acts()) {
        let folder = tempfile::tempdir().unwrap();
        let (mut store, mut model) = (open(StoreContent::New, folder.path()), BTreeMap::new());
        for (version, act) in acts.into_iter().enumerate() {
            let version = version as u32;
            match act {
                StoreAct::Write { keys, room } => {
                    ROOM.set(room.unwrap_or(usize::MAX));
                    if store.write(0, &keys, &rows(&keys, version)).is_ok() {
                        model.extend(keys.iter().map(|key| (*key, version)));
                    }
                }
                StoreAct::Remove { keys, room } => {
                    ROOM.set(room.unwrap_or(usize::MAX));
                    if store.remove(0, &keys).is_ok() {
                        model.retain(|key, _| !keys.contains(key));
                    }
                }
                StoreAct::FailTruncation(fails) => FAILS_TRUNCATION.set(fails),
                StoreAct::Flush => _ = store.flush(),
                StoreAct::Clear => {
                    store.remove_all(0).unwrap();
                    model.clear();
                }
                StoreAct::Reopen => {
                    // A file that cannot be cut keeps the store from being flushed, so the log of the server has its rows.
                    FAILS_TRUNCATION.set(false);
                    if store.flush().is_ok() {
                        drop(store);
                        store = open(StoreContent::Kept, folder.path());
                    }
                }
            }
            ROOM.set(usize::MAX);
            assert_is(&store, &model);
        }
        FAILS_TRUNCATION.set(false);
        store.flush().unwrap();
        drop(store);
        assert_is(&open(StoreContent::Kept, folder.path()), &model);
    }
}

/// All rows are removed and the process is killed, twice, before anything is flushed again.
#[test]
fn a_store_that_was_cleared_opens_after_two_kills() {
    let folder = tempfile::tempdir().unwrap();
    let keys: Vec<u64> = (0..10).collect();
    let store = open(StoreContent::New, folder.path());
    store.write(0, &keys, &rows(&keys, 1)).unwrap();
    store.flush().unwrap();
    store.remove_all(0).unwrap();
    drop(store);
    for version in 2..5 {
        let store = open(StoreContent::Kept, folder.path());
        store.write(0, &keys[..version], &rows(&keys[..version], version as u32)).unwrap();
    }
    let model = keys[..4].iter().map(|key| (*key, 4)).collect();
    assert_is(&open(StoreContent::Kept, folder.path()), &model);
}
