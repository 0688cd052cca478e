//! A view: the content of the store at one moment. It is a RocksDB snapshot that keeps the database open.

use std::ops::RangeInclusive;
use std::sync::Arc;

use rocksdb::{ReadOptions, Snapshot};
use self_cell::self_cell;
use zagros_table::{ColdError, ColdScan, ColdView};

use super::database::RocksDatabase;
use super::keys::{cold_key, key, words};

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
