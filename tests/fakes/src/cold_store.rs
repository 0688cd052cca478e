//! A cold store in memory, for tests and benchmarks.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use zagros_table::{ColdError, ColdRead, ColdScan, ColdSize, ColdStore, ColdView};

/// Rows in one ordered map per table. Tests can make it fail.
#[derive(Debug, Default)]
pub struct MemoryColdStore {
    tables: Vec<RwLock<StoredTable>>,
    failure: Mutex<Option<String>>,
}

/// The rows of one table. A frozen view shares the map, and the next write copies the map.
#[derive(Clone, Debug, Default)]
struct StoredTable {
    width: usize,
    rows: Arc<BTreeMap<u64, Box<[u32]>>>,
}

impl MemoryColdStore {
    /// An empty store for tables whose rows are `widths` words wide.
    pub fn new(widths: &[usize]) -> Self {
        let table = |width: &usize| RwLock::new(StoredTable { width: *width, ..StoredTable::default() });
        Self { tables: widths.iter().map(table).collect(), failure: Mutex::default() }
    }

    /// Lets each call fail for this reason. `None` ends the failure.
    pub fn fail_with(&self, reason: Option<String>) {
        *self.failure.lock() = reason;
    }

    fn table(&self, doing: &'static str, table: u32) -> Result<&RwLock<StoredTable>, ColdError> {
        if let Some(reason) = self.failure.lock().clone() {
            return Err(ColdError { doing, reason });
        }
        let unknown = || ColdError { doing, reason: format!("there is no table {table} in this store") };
        self.tables.get(table as usize).ok_or_else(unknown)
    }
}

impl ColdStore for MemoryColdStore {
    fn read_all(&self, reads: &mut [ColdRead<'_>]) -> Result<(), ColdError> {
        for ColdRead { table, cold_keys, into } in reads {
            // Reads under the lock. With a clone of the pointer, a write in the meantime would copy the map.
            let table = self.table("read", *table)?.read();
            into.found.clear();
            into.rows.clear();
            for cold_key in *cold_keys {
                let row = table.rows.get(cold_key);
                into.found.push(row.is_some());
                match row {
                    Some(row) => into.rows.extend_from_slice(row),
                    None => into.rows.resize(into.rows.len() + table.width, 0),
                }
            }
        }
        Ok(())
    }

    fn write(&self, table: u32, cold_keys: &[u64], rows: &[u32]) -> Result<(), ColdError> {
        let mut table = self.table("write", table)?.write();
        if rows.len() != cold_keys.len() * table.width {
            let (found, expected) = (rows.len(), cold_keys.len() * table.width);
            return Err(ColdError { doing: "write", reason: format!("{found} words came, {expected} were expected") });
        }
        let width = table.width;
        let map = Arc::make_mut(&mut table.rows);
        for (row, cold_key) in cold_keys.iter().enumerate() {
            map.insert(*cold_key, rows[row * width..][..width].into());
        }
        Ok(())
    }

    fn remove(&self, table: u32, cold_keys: &[u64]) -> Result<(), ColdError> {
        let mut table = self.table("remove", table)?.write();
        let map = Arc::make_mut(&mut table.rows);
        cold_keys.iter().for_each(|cold_key| drop(map.remove(cold_key)));
        Ok(())
    }

    fn remove_all(&self, table: u32) -> Result<(), ColdError> {
        self.table("remove", table)?.write().rows = Arc::default();
        Ok(())
    }

    fn flush(&self) -> Result<(), ColdError> {
        self.table("flush", 0).map(|_| ())
    }

    fn freeze(&self) -> Result<Box<dyn ColdView>, ColdError> {
        if let Some(reason) = self.failure.lock().clone() {
            return Err(ColdError { doing: "freeze", reason });
        }
        Ok(Box::new(MemoryColdView { tables: self.tables.iter().map(|table| table.read().clone()).collect() }))
    }

    fn size(&self) -> ColdSize {
        let mut size = ColdSize::default();
        for table in &self.tables {
            let table = table.read();
            size.rows += table.rows.len() as u64;
            size.bytes += (table.rows.len() * table.width * size_of::<u32>()) as u64;
        }
        size
    }
}

struct MemoryColdView {
    tables: Vec<StoredTable>,
}

impl ColdView for MemoryColdView {
    fn scan(
        &mut self,
        table: u32,
        range: RangeInclusive<u64>,
        limit: usize,
        into: &mut ColdScan,
    ) -> Result<Option<u64>, ColdError> {
        let unknown = || ColdError { doing: "scan", reason: format!("there is no table {table} in this store") };
        let StoredTable { rows, .. } = self.tables.get(table as usize).ok_or_else(unknown)?;
        if range.is_empty() {
            return Ok(None);
        }
        for (taken, (cold_key, row)) in rows.range(range).enumerate() {
            if taken == limit {
                return Ok(Some(*cold_key));
            }
            into.cold_keys.push(*cold_key);
            into.rows.extend_from_slice(row);
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use zagros_table::ColdRows;

    use super::*;

    fn store() -> MemoryColdStore {
        let store = MemoryColdStore::new(&[2, 1]);
        store.write(0, &[5, 1, 9], &[50, 51, 10, 11, 90, 91]).unwrap();
        store
    }

    #[test]
    fn rows_are_read_in_the_order_asked_for() {
        let store = store();
        let mut rows = ColdRows { found: vec![true; 7], rows: vec![7; 7] };
        store.read(0, &[9, 2, 1], &mut rows).unwrap();
        assert_eq!(rows, ColdRows { found: vec![true, false, true], rows: vec![90, 91, 0, 0, 10, 11] });
        store.remove(0, &[9, 4]).unwrap();
        store.write(0, &[1], &[12, 13]).unwrap();
        store.read(0, &[9, 1], &mut rows).unwrap();
        assert_eq!(rows, ColdRows { found: vec![false, true], rows: vec![0, 0, 12, 13] });
        assert_eq!(store.size(), ColdSize { rows: 2, bytes: 16 });
    }

    #[test]
    fn a_view_keeps_its_rows_and_is_read_in_parts() {
        let store = store();
        let mut view = store.freeze().unwrap();
        store.remove(0, &[1]).unwrap();
        store.write(0, &[5], &[0, 0]).unwrap();
        let mut scan = ColdScan::default();
        assert_eq!(view.scan(0, 0..=8, 1, &mut scan).unwrap(), Some(5));
        assert_eq!(view.scan(0, 5..=8, 1, &mut scan).unwrap(), None);
        assert_eq!(scan, ColdScan { cold_keys: vec![1, 5], rows: vec![10, 11, 50, 51] });
        #[expect(clippy::reversed_empty_ranges, reason = "an empty range is a range like any other")]
        let empty = view.scan(0, 9..=8, 1, &mut scan);
        assert_eq!(empty, Ok(None));
    }
}
