//! The store as the table uses it: the behaviour of the trait, a full disk, failing files.

mod behaviour;
mod disk;
mod faults;

use zagros_cold::RocksOptions;
use zagros_table::{ColdRows, ColdStore};

/// Words per row of the two tables in every test.
pub(crate) const WIDTHS: [usize; 2] = [3, 32];

/// The smallest memory of a store, so that rows reach the disk soon.
pub(crate) fn small() -> RocksOptions {
    RocksOptions { memory: 4 << 20, ..RocksOptions::default() }
}

/// The row that every test writes at a cold key as version `version`.
pub(crate) fn row(table: u32, cold_key: u64, version: u32) -> Vec<u32> {
    (0..WIDTHS[table as usize] as u32).map(|word| (cold_key as u32).wrapping_mul(31) ^ (version << 8) ^ word).collect()
}

/// The rows at these cold keys, in order.
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
