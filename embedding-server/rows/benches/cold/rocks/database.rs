//! The database that the store and its views share.
//!
//! A key is `table u32 BE ‖ cold_key u64 BE`, so the rows of a table are contiguous and in ascending order of cold keys. A row is
//! its words, little-endian.

use std::path::{Path, PathBuf};

use rocksdb::{DB, DEFAULT_COLUMN_FAMILY_NAME, Options, WriteBatch, WriteOptions};
use zagros_table::{ColdError, ColdRows};
use zagros_zip::ZipEq;

/// Rows per call of RocksDB. Their blocks stay in memory during the call.
const AT_ONCE: usize = 1024;

pub(crate) struct RocksDatabase {
    pub(crate) db: DB,
    /// Dropped after the database is closed, which empties the folder.
    folder: Folder,
    /// Words per row, by table.
    widths: Box<[usize]>,
}

/// A folder whose rows are deleted when this value is dropped.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
}

impl RocksDatabase {
    /// Wraps an open database. A row of table `t` has `widths[t]` words.
    pub(crate) fn new(db: DB, folder: &Path, widths: &[usize]) -> Self {
        let folder = Folder { path: folder.to_owned() };
        Self { db, folder, widths: widths.into() }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder.path
    }

    pub(crate) fn width(&self, doing: &'static str, table: u32) -> Result<usize, ColdError> {
        let width = self.widths.get(table as usize).copied();
        width.ok_or_else(|| ColdError { doing, reason: format!("no table {table} of {}", self.widths.len()) })
    }

    /// RocksDB's error with the folder.
    pub(crate) fn failed(&self, doing: &'static str, error: &rocksdb::Error) -> ColdError {
        ColdError { doing, reason: format!("{error} (in {})", self.folder.path.display()) }
    }

    /// Reads rows in `order`, which is ascending, so that each block is fetched once.
    pub(crate) fn read(
        &self,
        table: u32,
        cold_keys: &[u64],
        order: &[u32],
        into: &mut ColdRows,
    ) -> Result<(), ColdError> {
        let width = self.width("read", table)?;
        let family = self.db.cf_handle(DEFAULT_COLUMN_FAMILY_NAME).ok_or_else(|| self.lost())?;
        for part in order.chunks(AT_ONCE) {
            let keys = part.iter().map(|index| key(table, cold_keys[*index as usize]));
            let rows = self.db.batched_multi_get_cf(family, keys, true);
            for (position, row) in rows.into_iter().enumerate() {
                let Some(row) = row.map_err(|error| self.failed("read", &error))? else { continue };
                let index = part[position] as usize;
                into.found[index] = true;
                for (word, read) in into.rows[index * width..][..width].iter_mut().zip_eq(words(&row, width)?) {
                    *word = read;
                }
            }
        }
        Ok(())
    }

    fn lost(&self) -> ColdError {
        ColdError { doing: "read", reason: format!("no rows were ever opened in {}", self.folder.path.display()) }
    }

    /// Writes without a log, as the crate's documentation explains.
    pub(crate) fn apply(&self, doing: &'static str, batch: WriteBatch) -> Result<(), ColdError> {
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        self.db.write_opt(batch, &options).map_err(|error| self.failed(doing, &error))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If this fails, the next store in this folder deletes the files.
        let _ = DB::destroy(&Options::default(), &self.path);
    }
}

pub(crate) const KEY: usize = 12;
const TABLE: usize = 4;

#[inline]
pub(crate) fn key(table: u32, cold_key: u64) -> [u8; KEY] {
    let mut key = [0; KEY];
    key[..TABLE].copy_from_slice(&table.to_be_bytes());
    key[TABLE..].copy_from_slice(&cold_key.to_be_bytes());
    key
}

/// The cold key in a key of `table`. `None` if the key belongs to another table.
#[inline]
pub(crate) fn cold_key(table: u32, key: &[u8]) -> Option<u64> {
    let key: &[u8; KEY] = key.try_into().ok()?;
    let (of, cold_key) = key.split_first_chunk::<TABLE>()?;
    (u32::from_be_bytes(*of) == table).then(|| cold_key.try_into().map(u64::from_be_bytes).ok())?
}

pub(crate) fn words(row: &[u8], width: usize) -> Result<impl ExactSizeIterator<Item = u32>, ColdError> {
    let (words, rest) = row.as_chunks::<4>();
    if words.len() != width || !rest.is_empty() {
        let reason = format!("a row has {} bytes, but {} were written", row.len(), width * 4);
        return Err(ColdError { doing: "read", reason });
    }
    Ok(words.iter().map(|word| u32::from_le_bytes(*word)))
}

/// The bytes of a row. On a big-endian machine they are in `buffer`.
#[inline]
pub(crate) fn bytes_of<'a>(row: &'a [u32], buffer: &'a mut Vec<u8>) -> &'a [u8] {
    if cfg!(target_endian = "little") {
        return bytemuck::cast_slice(row);
    }
    buffer.clear();
    buffer.extend(row.iter().flat_map(|word| word.to_le_bytes()));
    buffer
}
