//! The store as the table uses it: the behaviour of the trait, a full disk, failing files.

mod behaviour;
mod faults;
mod kept;

use std::path::Path;

use zagros_rows::cold::{LogOptions, LogStore, ReadMethod, StoreContent};
use zagros_table::{ColdError, ColdRows, ColdStore};

/// Words per row of the two tables in every test.
pub(crate) const WIDTHS: [usize; 2] = [3, 32];

/// Small segments, so that there are many of them soon.
pub(crate) fn small() -> LogOptions {
    LogOptions { segment: 4 << 10, ..LogOptions::default() }
}

pub(crate) fn without_ring() -> LogOptions {
    LogOptions { reads: ReadMethod::Calls, ..small() }
}

pub(crate) fn scratch() -> (tempfile::TempDir, LogStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(StoreContent::Scratch, folder.path()).unwrap();
    (folder, store)
}

pub(crate) fn open(content: StoreContent, folder: &Path) -> Result<LogStore, ColdError> {
    LogStore::open(content, folder, &WIDTHS, &small())
}

/// The files of segments in a folder, in the order of their names.
pub(crate) fn segments(folder: &Path) -> Vec<std::path::PathBuf> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "rows")).collect();
    files.sort();
    files
}

/// The row that every test writes at a cold key as version `version`.
pub(crate) fn row(table: u32, cold_key: u64, version: u32) -> Vec<u32> {
    (0..WIDTHS[table as usize] as u32).map(|word| (cold_key as u32).wrapping_mul(31) ^ (version << 8) ^ word).collect()
}

pub(crate) fn rows(table: u32, cold_keys: &[u64], version: u32) -> Vec<u32> {
    cold_keys.iter().flat_map(|cold_key| row(table, *cold_key, version)).collect()
}

/// Asserts that each cold key has the row of [`row`].
pub(crate) fn assert_holds(store: &dyn ColdStore, table: u32, cold_keys: &[u64], version: u32) {
    let mut found = ColdRows::default();
    store.read(table, cold_keys, &mut found).unwrap();
    assert!(found.found.iter().all(|found| *found), "{} rows are gone", found.found.iter().filter(|f| !**f).count());
    assert_eq!(found.rows, rows(table, cold_keys, version));
}
