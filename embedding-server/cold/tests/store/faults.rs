//! Damaged folders and files, and invalid calls.

use std::fs::{self, OpenOptions};
use std::path::Path;

use zagros_cold::RocksStore;
use zagros_table::{ColdError, ColdRows, ColdStore};

use crate::{WIDTHS, assert_holds, rows, small};

fn open(folder: &Path) -> Result<RocksStore, ColdError> {
    RocksStore::open(folder, &WIDTHS, &small())
}

#[test]
fn a_folder_that_is_in_use_is_named_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path()).unwrap();
    first.write(0, &[1, 2], &rows(0, &[1, 2], 0)).unwrap();
    let error = open(folder.path()).unwrap_err();
    let expected = format!("the cold tier cannot open: {} is in use by another process", folder.path().display());
    assert!(error.to_string().starts_with(&expected), "{error}");
    assert_holds(&first, 0, &[1, 2], 0);
}

#[test]
fn files_of_a_killed_store_are_deleted_and_other_files_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let (killed, inside) = (folder.path().join("killed"), folder.path().join("made/if/need/be"));
    let store = open(&killed).unwrap();
    store.write(0, &[1], &rows(0, &[1], 0)).unwrap();
    fs::create_dir_all(&inside).unwrap();
    for entry in fs::read_dir(&killed).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, inside.join(path.file_name().unwrap())).unwrap();
    }
    fs::write(inside.join("notes.txt"), "mine").unwrap();
    let mut found = ColdRows::default();
    open(&inside).unwrap().read(0, &[1], &mut found).unwrap();
    assert_eq!(found.found, [false]);
    assert_eq!(fs::read_to_string(inside.join("notes.txt")).unwrap(), "mine");
}

#[test]
fn a_folder_that_cannot_be_created_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = open(&file.join("inside")).unwrap_err();
    assert!(error.to_string().contains("Not a directory") && error.reason.contains("file/inside"), "{error}");
}

#[test]
fn wrong_calls_are_refused_and_write_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    let short = store.write(0, &[1, 2], &rows(0, &[1], 0)).unwrap_err();
    assert_eq!(short.to_string(), "the cold tier cannot write: 3 words for 2 rows of 3 words");
    let unknown = store.write(2, &[], &[]).unwrap_err();
    assert_eq!(unknown.to_string(), "the cold tier cannot write: no table 2 of 2");
    let mut found = ColdRows::default();
    assert_eq!(store.read(2, &[1], &mut found).unwrap_err().doing, "read");
    assert_eq!(store.remove(2, &[1]).unwrap_err().doing, "remove");
    store.read(0, &[1, 2], &mut found).unwrap();
    assert_eq!(found.found, [false, false]);
}

/// Reading an emptied file is an error. Its rows must not seem to be missing.
#[test]
fn damaged_files_are_an_error_and_not_a_missing_row() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    let cold_keys: Vec<u64> = (0..30_000).collect();
    cold_keys.chunks(1000).for_each(|cold_keys| store.write(1, cold_keys, &rows(1, cold_keys, 0)).unwrap());
    let is_table = |path: &Path| path.extension().is_some_and(|extension| extension == "sst");
    let files =
        || fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).filter(|path| is_table(path));
    assert!(files().count() > 0, "nothing reached the disk");
    files().for_each(|path| OpenOptions::new().write(true).truncate(true).open(path).map(drop).unwrap());
    let error = store.read(1, &cold_keys, &mut ColdRows::default()).unwrap_err();
    assert_eq!(error.doing, "read");
    assert!(error.reason.contains(&folder.path().display().to_string()), "{error}");
}

/// The folder is deleted. Written rows can still be read from memory, and a write reports why it fails.
#[test]
fn a_store_without_its_folder_reads_rows_and_reports_why_it_cannot_write() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("cold");
    let store = open(&inside).unwrap();
    let mut held = Vec::new();
    fs::remove_dir_all(&inside).unwrap();
    let error = (0_u64..).step_by(1000).find_map(|first| {
        let cold_keys: Vec<u64> = (first..first + 1000).collect();
        let written = store.write(1, &cold_keys, &rows(1, &cold_keys, 0));
        written.map(|()| held.extend(cold_keys)).err()
    });
    let error = error.unwrap();
    assert!(error.doing == "write" && error.reason.contains("No such file"), "{error}");
    assert!(held.len() >= 1000);
    assert_holds(&store, 1, &held, 0);
}
