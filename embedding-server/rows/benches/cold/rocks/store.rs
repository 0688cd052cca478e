//! The store: reads and writes many rows per call. A view of it is a RocksDB snapshot that keeps the database open.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use rocksdb::{
    ColumnFamilyDescriptor, DB, DEFAULT_COLUMN_FAMILY_NAME, Options, ReadOptions, Snapshot, WriteBatch, properties,
};
use self_cell::self_cell;
use zagros_table::{ColdError, ColdRows, ColdScan, ColdSize, ColdStore, ColdView};

use super::database::{RocksDatabase, bytes_of, cold_key, key, words};
use super::options::RocksOptions;

/// Rows on disk. A folder belongs to one process at a time.
pub(crate) struct RocksStore {
    database: Arc<RocksDatabase>,
    memory: usize,
    /// Bytes that a scan reads ahead in each file.
    read_ahead: usize,
}

impl RocksStore {
    /// Opens an empty store in `folder`, which is created if necessary. Files of a killed store in this folder are
    /// deleted. A row of table `t` has `widths[t]` words. The rows are deleted when the store and its views are
    /// dropped.
    pub(crate) fn open(folder: &Path, widths: &[usize], options: &RocksOptions) -> Result<Self, ColdError> {
        let failed = |error: &dyn fmt::Display| refused(folder, &error.to_string());
        std::fs::create_dir_all(folder).map_err(|error| failed(&error))?;
        DB::destroy(&Options::default(), folder).map_err(|error| failed(&error))?;
        let set = options.build().map_err(|error| failed(&error))?;
        let rows = ColumnFamilyDescriptor::new(DEFAULT_COLUMN_FAMILY_NAME, set.clone());
        let db = DB::open_cf_descriptors(&set, folder, [rows]).map_err(|error| failed(&error))?;
        let database = Arc::new(RocksDatabase::new(db, folder, widths));
        Ok(Self { database, memory: options.bound(), read_ahead: options.read_ahead() })
    }
}

impl ColdStore for RocksStore {
    fn read(&self, table: u32, cold_keys: &[u64], into: &mut ColdRows) -> Result<(), ColdError> {
        let width = self.database.width("read", table)?;
        into.found.clear();
        into.found.resize(cold_keys.len(), false);
        into.rows.clear();
        into.rows.resize(cold_keys.len() * width, 0);
        let order = ascending(cold_keys);
        self.database.read(table, cold_keys, &order, into)
    }

    fn write(&self, table: u32, cold_keys: &[u64], rows: &[u32]) -> Result<(), ColdError> {
        let width = self.database.width("write", table)?;
        if cold_keys.len().checked_mul(width) != Some(rows.len()) {
            let reason = format!("{} words for {} rows of {width} words", rows.len(), cold_keys.len());
            return Err(ColdError { doing: "write", reason });
        }
        let (mut batch, mut buffer) = (WriteBatch::default(), Vec::new());
        // In ascending order, each row goes into the buffer next to the row before it.
        for index in ascending(cold_keys) {
            let (index, cold_key) = (index as usize, cold_keys[index as usize]);
            batch.put(key(table, cold_key), bytes_of(&rows[index * width..][..width], &mut buffer));
        }
        self.database.apply("write", batch)
    }

    fn remove(&self, table: u32, cold_keys: &[u64]) -> Result<(), ColdError> {
        self.database.width("remove", table)?;
        let mut batch = WriteBatch::default();
        cold_keys.iter().for_each(|cold_key| batch.delete(key(table, *cold_key)));
        self.database.apply("remove", batch)
    }

    /// Writes one deletion mark for the whole range. Views keep their rows. Merges remove the rows from files.
    fn remove_all(&self, table: u32) -> Result<(), ColdError> {
        self.database.width("remove", table)?;
        let mut batch = WriteBatch::default();
        batch.delete_range(key(table, 0), key(table + 1, 0));
        self.database.apply("remove", batch)
    }

    fn flush(&self) -> Result<(), ColdError> {
        self.database.db.flush().map_err(|error| self.database.failed("flush", &error))
    }

    fn freeze(&self) -> Result<Box<dyn ColdView>, ColdError> {
        Ok(Box::new(RocksView::new(Arc::clone(&self.database), self.read_ahead)))
    }

    fn size(&self) -> ColdSize {
        let number = |name| self.database.db.property_int_value(name).ok().flatten().unwrap_or(0);
        ColdSize { rows: number(properties::ESTIMATE_NUM_KEYS), bytes: number(properties::TOTAL_SST_FILES_SIZE) }
    }
}

impl fmt::Debug for RocksStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { database, memory, .. } = self;
        f.debug_struct("RocksStore").field("folder", &database.folder()).field("memory", memory).finish_non_exhaustive()
    }
}

fn ascending(cold_keys: &[u64]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..cold_keys.len() as u32).collect();
    order.sort_unstable_by_key(|index| cold_keys[*index as usize]);
    order
}

/// Explains why a folder cannot be opened. The most common reason is a lock, of which RocksDB names only the file.
fn refused(folder: &Path, reason: &str) -> ColdError {
    let folder = folder.display();
    let reason = if reason.contains("lock") {
        format!("{folder} is in use by another process; give each run a `cluster.cold_folder` of its own ({reason})")
    } else {
        format!("{reason} (in {folder})")
    };
    ColdError { doing: "open", reason }
}

self_cell!(
    struct Owned {
        owner: Arc<RocksDatabase>,
        #[covariant]
        dependent: Snapshot,
    }
);

pub(crate) struct RocksView {
    snapshot: Owned,
    read_ahead: usize,
}

impl RocksView {
    pub(crate) fn new(database: Arc<RocksDatabase>, read_ahead: usize) -> Self {
        Self { snapshot: Owned::new(database, |database| database.db.snapshot()), read_ahead }
    }

    fn database(&self) -> &RocksDatabase {
        self.snapshot.borrow_owner()
    }
}

impl ColdView for RocksView {
    fn scan(
        &mut self,
        table: u32,
        range: RangeInclusive<u64>,
        limit: usize,
        into: &mut ColdScan,
    ) -> Result<Option<u64>, ColdError> {
        let width = self.database().width("scan", table)?;
        let mut rows = self.snapshot.borrow_dependent().raw_iterator_opt(once(self.read_ahead));
        rows.seek(key(table, *range.start()));
        let mut read = 0;
        while let Some((key, row)) = rows.item() {
            let Some(cold_key) = cold_key(table, key).filter(|cold_key| cold_key <= range.end()) else {
                return Ok(None);
            };
            if read == limit {
                return Ok(Some(cold_key));
            }
            into.rows.extend(words(row, width)?);
            into.cold_keys.push(cold_key);
            read += 1;
            rows.next();
        }
        rows.status().map_err(|error| self.database().failed("scan", &error))?;
        Ok(None)
    }
}

/// A scan reads each block once, so the blocks need no place in the cache.
fn once(read_ahead: usize) -> ReadOptions {
    let mut options = ReadOptions::default();
    options.fill_cache(false);
    options.set_readahead_size(read_ahead);
    options
}
