//! Stores whose rows outlive them: what the next process finds, also after a kill and on a torn or damaged disk.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use zagros_rows::cold::{LogStore, StoreContent};
use zagros_table::{ColdError, ColdRows, ColdStore};

use crate::store::{WIDTHS, assert_holds, open, row, rows, segments, small};

/// Bytes of a segment's head, and of a record of table 1.
const HEAD: u64 = 64;
const RECORD: u64 = (4 + 8 + 4 * WIDTHS[1]) as u64;
/// Where a child process of this test has its store.
const CHILD: &str = "ZAGROS_COLD_TEST_CHILD";

fn kept(folder: &Path) -> Result<LogStore, ColdError> {
    open(StoreContent::Kept, folder)
}

#[test]
fn the_next_store_has_the_rows_and_a_scratch_store_deletes_them() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(StoreContent::New, folder.path()).unwrap();
    store.write(0, &[1, 2, 3], &rows(0, &[1, 2, 3], 0)).unwrap();
    store.write(1, &[7], &rows(1, &[7], 0)).unwrap();
    store.remove(0, &[2]).unwrap();
    drop(store);
    let store = kept(folder.path()).unwrap();
    assert_holds(&store, 0, &[1, 3], 0);
    assert_eq!(store.size().rows, 3);
    drop(store);
    assert_eq!(open(StoreContent::New, folder.path()).unwrap().size().rows, 0);
    assert_eq!(kept(folder.path()).unwrap().size().rows, 0);
}

#[test]
fn rows_that_are_discarded_are_deleted_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(StoreContent::New, folder.path()).unwrap();
    store.write(0, &[1], &rows(0, &[1], 0)).unwrap();
    store.delete_at_end();
    drop(store);
    assert!(!folder.path().exists());
    let error = kept(folder.path()).unwrap_err();
    let problem = "flushed is missing; restore it";
    assert!(error.doing == "open" && error.reason.contains(problem), "{error}");
}

/// A store of 100 flushed rows of table 1 and 20 later ones, all in one segment.
fn partly_flushed(folder: &Path) -> std::path::PathBuf {
    let options = zagros_rows::cold::LogOptions { segment: 1 << 20, ..small() };
    let store = LogStore::open(StoreContent::New, folder, &WIDTHS, &options).unwrap();
    let cold_keys: Vec<u64> = (0..120).collect();
    store.write(1, &cold_keys[..100], &rows(1, &cold_keys[..100], 0)).unwrap();
    store.flush().unwrap();
    store.write(1, &cold_keys[100..], &rows(1, &cold_keys[100..], 0)).unwrap();
    segments(folder).remove(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_log_that_is_cut_off_anywhere_has_a_prefix_or_says_what_is_missing(cut in HEAD + 90 * RECORD..HEAD + 120 * RECORD) {
        let folder = tempfile::tempdir().unwrap();
        let path = partly_flushed(folder.path());
        File::options().write(true).open(&path).unwrap().set_len(cut).unwrap();
        let whole = (cut - HEAD) / RECORD;
        match kept(folder.path()) {
            Ok(store) => {
                prop_assert!(whole >= 100);
                prop_assert_eq!(store.size().rows, whole);
                assert_holds(&store, 1, &(0..whole).collect::<Vec<_>>(), 0);
                // The next flush says that all of the present rows are there, so the torn end must be gone.
                store.write(1, &[500], &rows(1, &[500], 0)).unwrap();
                store.flush().unwrap();
                drop(store);
                prop_assert_eq!(kept(folder.path()).unwrap().size().rows, whole + 1);
            }
            Err(error) => {
                prop_assert!(whole < 100);
                let expected = format!("{} is cut off: it has {whole} records, and 100 were on the disk", path.display());
                prop_assert_eq!(error.reason, expected);
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_named_where_rows_were_surely_on_the_disk(bit in 8 * HEAD..8 * (HEAD + 120 * RECORD)) {
        let folder = tempfile::tempdir().unwrap();
        let path = partly_flushed(folder.path());
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, bit / 8).unwrap();
        file.write_all_at(&[byte[0] ^ (1 << (bit % 8))], bit / 8).unwrap();
        let record = (bit / 8 - HEAD) / RECORD;
        match kept(folder.path()) {
            Ok(store) => prop_assert!(record >= 100 && store.size().rows == record),
            Err(error) => {
                let named = format!("{} is damaged: the record at byte {}", path.display(), HEAD + record * RECORD);
                prop_assert!(record < 100 && error.reason.starts_with(&named), "{}", error);
            }
        }
    }
}

#[test]
fn a_damaged_mark_a_damaged_head_and_rows_of_another_size_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = partly_flushed(folder.path());
    let error = LogStore::open(StoreContent::Kept, folder.path(), &[3, 33], &small()).unwrap_err();
    assert!(error.reason.contains("is damaged, or of a table with rows of another size"), "{error}");
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[9], 3).unwrap();
    let error = kept(folder.path()).unwrap_err();
    assert!(error.reason.contains(&format!("the head of {} is damaged", path.display())), "{error}");
    fs::write(folder.path().join("flushed"), "nonsense").unwrap();
    let error = kept(folder.path()).unwrap_err();
    assert!(error.reason.contains("flushed is damaged, or of another release"), "{error}");
}

/// The version of a key's row that the child has written in a round: later rounds write other keys again.
fn keys_of(round: u32) -> Vec<u64> {
    (0..200).map(|key| u64::from(round % 7) * 100 + key).collect()
}

/// What a child process does until it is killed: it writes, removes, flushes and compacts, and says what is done.
#[test]
fn child_that_writes_until_it_is_killed() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let store = open(StoreContent::New, Path::new(&folder)).unwrap();
    for round in 0.. {
        let keys = keys_of(round);
        store.write(1, &keys, &rows(1, &keys, round)).unwrap();
        store.remove(1, &keys[..10]).unwrap();
        if round % 5 == 0 {
            store.flush().unwrap();
        }
        println!("done {round}");
    }
}

/// After `kill -9` the next store has every row that was written, as the last write left it.
#[test]
fn a_killed_process_loses_no_row_that_was_written() {
    for least in [3, 20, 60, 200] {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["store::kept::child_that_writes_until_it_is_killed", "--exact", "--nocapture"])
            .env(CHILD, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut done = None;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            done = line.split("done ").nth(1).and_then(|round| round.trim().parse::<u32>().ok()).or(done);
            if done.is_some_and(|round| round >= least) {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        let (done, mut model) = (done.unwrap(), BTreeMap::new());
        for round in 0..=done {
            keys_of(round).into_iter().for_each(|key| _ = model.insert(key, round));
            keys_of(round)[..10].iter().for_each(|key| _ = model.remove(key));
        }
        let store = kept(folder.path()).unwrap();
        // The round after may have been done in part.
        let open_round = keys_of(done + 1);
        model.retain(|key, _| !open_round.contains(key));
        let keys: Vec<u64> = model.keys().copied().collect();
        let mut found = ColdRows::default();
        store.read(1, &keys, &mut found).unwrap();
        let expected: Vec<u32> = model.iter().flat_map(|(key, round)| row(1, *key, *round)).collect();
        assert!(found.found.iter().all(|found| *found) && found.rows == expected, "after {done} rounds");
        assert!(keys.len() > 100);
        let mut gone = ColdRows::default();
        let removed: Vec<u64> = (0..900).filter(|key| !model.contains_key(key) && !open_round.contains(key)).collect();
        store.read(1, &removed, &mut gone).unwrap();
        assert!(gone.found.iter().all(|found| !found), "a removed row is there again");
    }
}
