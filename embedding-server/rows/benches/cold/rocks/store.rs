//! The store: reads and writes many rows of one table per call.
//!
//! A key is `table u32 BE ‖ cold_key u64 BE`, as in a store of several tables. A row is its words.

use std::path::Path;

use rocksdb::{
    ColumnFamilyDescriptor, DB, DBCompressionType, DEFAULT_COLUMN_FAMILY_NAME, WriteBatch, WriteOptions, properties,
};
use zagros_table::{ColdError, ColdRows, ColdSize, ColdStore, ColdView};
use zagros_zip::ZipEq;

use super::options;

/// Rows per call of RocksDB. Their blocks stay in memory during the call.
const AT_ONCE: usize = 1024;
const NOT_COMPARED: &str = "the comparison writes and reads";

#[derive(Debug)]
pub(crate) struct RocksStore {
    db: DB,
    /// Words per row.
    width: usize,
}

impl RocksStore {
    /// Opens an empty store in an empty folder.
    pub(crate) fn open(folder: &Path, width: usize, compression: DBCompressionType) -> Result<Self, rocksdb::Error> {
        let set = options::build(compression)?;
        let rows = ColumnFamilyDescriptor::new(DEFAULT_COLUMN_FAMILY_NAME, set.clone());
        Ok(Self { db: DB::open_cf_descriptors(&set, folder, [rows])?, width })
    }
}

impl ColdStore for RocksStore {
    fn read(&self, table: u32, cold_keys: &[u64], into: &mut ColdRows) -> Result<(), ColdError> {
        into.found.clear();
        into.found.resize(cold_keys.len(), false);
        into.rows.clear();
        into.rows.resize(cold_keys.len() * self.width, 0);
        let family = self.db.cf_handle(DEFAULT_COLUMN_FAMILY_NAME).expect("the store was opened with it");
        // In ascending order, each block is fetched once.
        for part in ascending(cold_keys).chunks(AT_ONCE) {
            let keys = part.iter().map(|index| key(table, cold_keys[*index as usize]));
            let rows = self.db.batched_multi_get_cf(family, keys, true);
            for (index, row) in part.iter().zip_eq(rows) {
                let Some(row) = row.map_err(|error| failed("read", &error))? else { continue };
                let index = *index as usize;
                into.found[index] = true;
                let slot = &mut into.rows[index * self.width..][..self.width];
                bytemuck::cast_slice_mut::<u32, u8>(slot).copy_from_slice(&row);
            }
        }
        Ok(())
    }

    /// Writes without a log, as the log of the server has the rows.
    fn write(&self, table: u32, cold_keys: &[u64], rows: &[u32]) -> Result<(), ColdError> {
        let (mut batch, mut options) = (WriteBatch::default(), WriteOptions::default());
        options.disable_wal(true);
        // In ascending order, each row goes into the buffer next to the row before it.
        for index in ascending(cold_keys) {
            let row = &rows[index as usize * self.width..][..self.width];
            batch.put(key(table, cold_keys[index as usize]), bytemuck::cast_slice::<u32, u8>(row));
        }
        self.db.write_opt(batch, &options).map_err(|error| failed("write", &error))
    }

    fn remove(&self, _: u32, _: &[u64]) -> Result<(), ColdError> {
        unreachable!("{NOT_COMPARED}")
    }

    fn remove_all(&self, _: u32) -> Result<(), ColdError> {
        unreachable!("{NOT_COMPARED}")
    }

    fn flush(&self) -> Result<(), ColdError> {
        self.db.flush().map_err(|error| failed("flush", &error))
    }

    fn freeze(&self) -> Result<Box<dyn ColdView>, ColdError> {
        unreachable!("{NOT_COMPARED}")
    }

    fn size(&self) -> ColdSize {
        let number = |name| self.db.property_int_value(name).ok().flatten().unwrap_or(0);
        ColdSize { rows: number(properties::ESTIMATE_NUM_KEYS), bytes: number(properties::TOTAL_SST_FILES_SIZE) }
    }
}

fn failed(doing: &'static str, error: &rocksdb::Error) -> ColdError {
    ColdError { doing, reason: error.to_string() }
}

fn ascending(cold_keys: &[u64]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..cold_keys.len() as u32).collect();
    order.sort_unstable_by_key(|index| cold_keys[*index as usize]);
    order
}

fn key(table: u32, cold_key: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&table.to_be_bytes());
    key[4..].copy_from_slice(&cold_key.to_be_bytes());
    key
}
