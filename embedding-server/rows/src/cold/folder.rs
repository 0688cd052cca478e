//! The folder of a store: one store at a time has it, and nothing but the store's own files is ever deleted.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use zagros_table::ColdError;

use super::flushed;
use super::segment::{GONE, file_error, parse_name};
use crate::log::small_files::is_file_at;

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
        fs::create_dir_all(path).map_err(|error| file_error("open", &error, path))?;
        let file = File::options().write(true).create(true).truncate(false).open(&lock);
        let file = file.map_err(|error| file_error("open", &error, &lock))?;
        let mut locked = file.try_lock();
        for _ in 0..ATTEMPTS {
            if !matches!(locked, Err(TryLockError::WouldBlock)) {
                break;
            }
            thread::sleep(PAUSE);
            locked = file.try_lock();
        }
        match locked {
            // A store that ended just now has deleted this file, and another one may have made its own.
            Ok(()) if !is_file_at(&file, &lock) => Self::lock(path),
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: file }),
            Err(TryLockError::Error(error)) => Err(file_error("open", &error, &lock)),
            Err(TryLockError::WouldBlock) => {
                let path = path.display();
                let what = "give each run a `cluster.cold_folder` of its own";
                Err(ColdError { doing: "open", reason: format!("{path} is in use by another process; {what}") })
            }
        }
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
        for path in std::iter::once(self.path.join(flushed::NAME)).chain(files) {
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
