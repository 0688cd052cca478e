//! The folder of a store: one store at a time has it, and nothing but the store's own files is ever deleted.
//!
//! The mark of a store whose rows outlive it: how much of each table's log is surely on the disk.
//!
//! A damaged record before the mark is an error. After the mark the log may be torn: a process may have ended in the middle
//! of a write, and the disk may have lost what was not flushed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zagros_table::ColdError;

use super::segment::{GONE, file_error, parse_name};
use crate::log::small_files::{lock_file, parse_json, write_json};

const LOCK: &str = "LOCK";
/// A lock that is held is tried again so often. A program that this process starts at the same moment may have it for an instant,
/// before it closes what it inherits.
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) struct StoreFolder {
    path: PathBuf,
    /// Locked for as long as it is open.
    _lock: File,
}

impl StoreFolder {
    /// Locks a folder, which is created if necessary.
    pub(crate) fn lock(path: &Path) -> Result<Self, ColdError> {
        let lock = path.join(LOCK);
        for _ in 0..ATTEMPTS {
            // A store that ended just now has deleted the folder.
            fs::create_dir_all(path).map_err(|error| file_error("open", &error, path))?;
            if let Some(file) = lock_file(&lock).map_err(|error| file_error("open", &error, &lock))? {
                return Ok(Self { path: path.to_owned(), _lock: file });
            }
            thread::sleep(PAUSE);
        }
        let (path, what) = (path.display(), "give each run a `cluster.cold_folder` of its own");
        Err(ColdError { doing: "open", reason: format!("{path} is in use by another process; {what}") })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn list_segments(&self) -> Result<BTreeMap<u32, Vec<(u64, PathBuf)>>, ColdError> {
        let mut found = BTreeMap::<u32, Vec<_>>::new();
        for entry in fs::read_dir(&self.path).map_err(|error| file_error("open", &error, &self.path))? {
            let path = entry.map_err(|error| file_error("open", &error, &self.path))?.path();
            if let Some((table, number)) = parse_name(&path) {
                found.entry(table).or_default().push((number, path));
            }
        }
        Ok(found)
    }

    /// The files that say that a segment was deleted on purpose.
    pub(crate) fn gone_files(&self) -> Result<Vec<PathBuf>, ColdError> {
        let entries = fs::read_dir(&self.path).map_err(|error| file_error("open", &error, &self.path))?;
        let paths = entries.flatten().map(|entry| entry.path());
        Ok(paths.filter(|path| path.extension().is_some_and(|extension| extension == GONE)).collect())
    }

    /// Deletes the rows of an earlier store. The mark goes first: without it no store takes what is left for rows.
    pub(crate) fn clear(&self) -> Result<(), ColdError> {
        let files = self.list_segments()?.into_values().flatten().map(|(_, path)| path).chain(self.gone_files()?);
        for path in std::iter::once(self.path.join(MARK)).chain(files) {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(file_error("open", &error, &path));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Deletes the rows, the lock, and the folder if nothing else is in it. What cannot be deleted, the next store deletes.
    pub(crate) fn delete(&self) {
        if self.clear().is_ok() {
            let _ = fs::remove_file(self.path.join(LOCK));
            let _ = fs::remove_dir(&self.path);
        }
    }
}

pub(crate) const MARK: &str = "flushed";

/// Up to where the log of a table is on the disk: all segments of lower numbers, and so many records of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SyncedUpTo {
    pub(crate) table: u32,
    pub(crate) number: u64,
    pub(crate) rows: u32,
}

impl SyncedUpTo {
    pub(crate) fn has_record(self, number: u64, row: u32) -> bool {
        number < self.number || (number == self.number && row < self.rows)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FlushedTable {
    pub(crate) up_to: SyncedUpTo,
    /// Its segments by number, and how many records each has. A segment that is deleted later leaves a file that says so.
    pub(crate) segments: Vec<(u64, u32)>,
}

/// Writes the mark, whole or not at all.
pub(crate) fn write_mark(folder: &Path, tables: &[FlushedTable]) -> Result<(), ColdError> {
    let written = write_json(&folder.join(MARK), serde_json::to_vec(tables).unwrap_or_default());
    written.map_err(|error| ColdError { doing: "flush", reason: error.to_string() })
}

/// Waits until the names of the files in a folder are on the disk.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), ColdError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| file_error("flush", &error, folder))
}

/// Reads the mark: up to where each table's log is on the disk.
/// Without the mark the store cannot say which rows are missing.
pub(crate) fn read_mark(folder: &Path) -> Result<BTreeMap<u32, FlushedTable>, ColdError> {
    let path = folder.join(MARK);
    let unknown = |what: &str| {
        let next = "restore it, or delete the folders of the cold tier and of the log and resume from a checkpoint";
        ColdError { doing: "open", reason: format!("{} {what}; {next}", path.display()) }
    };
    let text = match fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(unknown("is missing")),
        text => text.map_err(|error| file_error("open", &error, &path))?,
    };
    let tables: Vec<FlushedTable> =
        parse_json(&path, &text).map_err(|_| unknown("is damaged, or of another release"))?;
    Ok(tables.into_iter().map(|table| (table.up_to.table, table)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_read_as_it_was_written_and_any_change_of_it_is_found() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read_mark(folder.path()).unwrap_err().reason.contains("flushed is missing; restore it"));
        let up_to = SyncedUpTo { table: 0, number: 7, rows: 9 };
        let other = SyncedUpTo { table: 4, number: 0, rows: 0 };
        let marks = [
            FlushedTable { up_to, segments: vec![(2, 30), (7, 9)] },
            FlushedTable { up_to: other, segments: Vec::new() },
        ];
        write_mark(folder.path(), &marks).unwrap();
        assert_eq!(read_mark(folder.path()).unwrap().into_values().collect::<Vec<_>>(), marks);
        let path = folder.path().join(MARK);
        let text = fs::read_to_string(&path).unwrap();
        for (old, new) in [("\"rows\":9", "\"rows\":8"), ("[2,30]", "[2,31]"), ("\n", " ")] {
            fs::write(&path, text.replace(old, new)).unwrap();
            let error = read_mark(folder.path()).unwrap_err();
            assert!(error.reason.contains("flushed is damaged, or of another release"), "{old}: {error}");
        }
        assert!(up_to.has_record(6, 100) && up_to.has_record(7, 8));
        assert!(!up_to.has_record(7, 9) && !up_to.has_record(8, 0));
    }
}
