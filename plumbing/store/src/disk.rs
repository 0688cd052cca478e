//! Folders on a disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::StoreError;

pub(crate) fn disk_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Disk { what, path: path.to_owned(), source }
}

/// Returns the absolute path.
pub(crate) fn make_folder(path: &Path) -> Result<PathBuf, StoreError> {
    fs::create_dir_all(path).map_err(disk_error("create", path))?;
    fs::canonicalize(path).map_err(disk_error("open", path))
}

/// Names of the folders inside of a folder. Empty if the folder does not exist.
pub(crate) fn folder_names(path: &Path) -> Result<Vec<String>, StoreError> {
    entries(path, true)
}

pub(crate) fn file_names(path: &Path) -> Result<Vec<String>, StoreError> {
    entries(path, false)
}

fn entries(path: &Path, folders: bool) -> Result<Vec<String>, StoreError> {
    let entries = match fs::read_dir(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        entries => entries.map_err(disk_error("read", path))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(disk_error("read", path))?;
        if entry.path().is_dir() == folders {
            names.extend(entry.file_name().into_string());
        }
    }
    Ok(names)
}

/// A file that does not exist is no error.
pub(crate) fn delete_file(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(disk_error("delete", path)(error)),
        _ => Ok(()),
    }
}

/// With its content. A folder that does not exist is no error.
pub(crate) fn delete_folder(path: &Path) -> Result<(), StoreError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(disk_error("delete", path)(error)),
        _ => Ok(()),
    }
}
