//! The folder of a log: what lies in it, who holds it, whose rows it has.
//!
//! ```text
//! lock                            held by the process that writes
//! lineage.json                    whose rows these are, and where they are: written last when a log is made
//! written                         how far the log was written when a push was last acknowledged
//! discarded                       the other files are rows of no log: a log is being made or deleted
//! base-<lsn>/manifest.json        a base: written last. Without it the base is none.
//! base-<lsn>/part-<number>.log    its rows
//! segment-<first lsn>.log         records from that lsn on
//! spare-<number>.log              room for the next segment
//! ```
//!
//! Numbers in names have 16 hexadecimal digits, so that the order of names is the order of the log.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::log::LogError;
use crate::log::format::{SegmentPreamble, VERSION};
use crate::log::small_files::{
    create_mark, lock_file, mark_path, parse_json, split_checksum, sync_folder, write_json, write_whole,
};

const LOCK: &str = "lock";
const LINEAGE: &str = "lineage.json";
const DISCARDED: &str = "discarded";
const SEGMENT: (&str, &str) = ("segment-", ".log");
const SPARE: (&str, &str) = ("spare-", ".log");
const BASE: (&str, &str) = ("base-", "");

/// The folder of a log that this process holds.
#[derive(Debug)]
pub struct LogFolder {
    path: PathBuf,
    /// Locked as long as it is open.
    _lock: File,
}

/// Whose rows a log has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineageFile {
    pub version: u16,
    /// Chosen at random when the files were made. Every file of the log names it.
    pub log: u64,
    /// Chosen at random when the log had no row. A server that has these rows has this number.
    pub lineage: u64,
    /// The tables, in their order: rows of others cannot be put in.
    pub tables: Vec<TableDescription>,
    /// Whether rows that have left memory lie in a cold tier.
    pub cold: bool,
    /// Where all acknowledged records are.
    pub place: LogPlace,
}

/// Where all acknowledged records of a log are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogPlace {
    Disk,
    /// Some may be in the cache of the machine with this boot id alone: they are gone once it was started again.
    Cache(String),
}

/// What decides whether the rows of a log fit into a table: settings as text, by their names. Settings that may change from one
/// process to the next, such as a learning rate, are not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableDescription {
    pub name: String,
    /// Such as `dim`.
    pub settings: BTreeMap<String, String>,
}

/// Only what tells the version of a lineage: the rest may look different in another version.
#[derive(Deserialize)]
struct LineageVersion {
    version: u64,
}

impl LogFolder {
    /// Makes the folder if need be and locks it.
    pub fn open(path: &Path) -> Result<Self, LogError> {
        fs::create_dir_all(path).map_err(LogError::io("make the folder", path))?;
        let lock_path = path.join(LOCK);
        let Some(mut lock) = lock_file(&lock_path).map_err(LogError::io("lock", &lock_path))? else {
            let holder = fs::read_to_string(&lock_path).unwrap_or_default();
            return Err(LogError::InUse { folder: path.to_owned(), holder });
        };
        // For a person who wonders who holds it.
        let named = lock.set_len(0).and_then(|()| lock.write_all(std::process::id().to_string().as_bytes()));
        named.map_err(LogError::io("write", &lock_path))?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whose rows are here. `None` when there is no log yet, or an earlier process had begun to delete it.
    /// Where files of a log are here, a missing lineage is an error.
    pub fn read_lineage(&self) -> Result<Option<LineageFile>, LogError> {
        if self.path.join(DISCARDED).exists() {
            return Ok(None);
        }
        let known = read_lineage(&self.path)?;
        let files = list_segments(&self.path)?.into_iter().chain(base_folders(&self.path)?).next();
        match (known, files) {
            (None, Some((_, file))) => {
                let why = format!("{} is there, and nothing says whose rows it has", file.display());
                Err(LogError::missing(self.path.join(LINEAGE), why))
            }
            (Some(_), _) if !mark_path(&self.path).exists() => {
                Err(LogError::missing(mark_path(&self.path), "nothing else says how far the log was written"))
            }
            (known, _) => Ok(known),
        }
    }

    /// Deletes what is left of a log that no server needs. From now until [`Self::begin_log`] the files in the folder are rows of no log.
    pub fn discard_old_log(&self) -> Result<(), LogError> {
        let mark = self.path.join(DISCARDED);
        let text =
            b"The other files in this folder are the rows of no server. The next server that uses the folder deletes them.\n";
        write_whole(&mark, text).map_err(LogError::io("write", &mark))?;
        for file in list_segments(&self.path)?.into_iter().chain(list_spares(&self.path)?) {
            remove_file(&file.1)?;
        }
        for base in base_folders(&self.path)? {
            fs::remove_dir_all(&base.1).map_err(LogError::io("delete", &base.1))?;
        }
        let marks = [mark_path(&self.path), self.path.join(LINEAGE)];
        marks.iter().filter(|path| path.exists()).try_for_each(|path| remove_file(path))
    }

    /// Makes a log without records in a folder that is prepared. A process that ends before has made none.
    pub fn begin_log(&self, lineage: &LineageFile) -> Result<(), LogError> {
        let first = segment_path(&self.path, 0);
        let preamble = SegmentPreamble { lineage: lineage.log, first: 0, next: None }.to_bytes();
        write_whole(&first, &preamble).map_err(LogError::io("write", &first))?;
        create_mark(&self.path, lineage.log, 0)?;
        self.set_lineage(lineage)?;
        let mark = self.path.join(DISCARDED);
        if mark.exists() {
            remove_file(&mark)?;
        }
        // A mark that came back after a loss of power would discard what is acknowledged from now on.
        sync_folder(&self.path).map_err(LogError::io("sync", &self.path))
    }

    pub fn set_lineage(&self, lineage: &LineageFile) -> Result<(), LogError> {
        write_json(&self.path.join(LINEAGE), serde_json::to_vec_pretty(lineage).unwrap_or_default())
    }

    /// Waits until all that was written is on the disk.
    pub fn sync(&self) -> Result<(), LogError> {
        for path in list_segments(&self.path)?.into_iter().map(|(_, path)| path).chain([mark_path(&self.path)]) {
            File::open(&path).and_then(|file| file.sync_all()).map_err(LogError::io("sync", &path))?;
        }
        sync_folder(&self.path).map_err(LogError::io("sync", &self.path))
    }

    /// Deletes all rows, the file that says whose they were, and the folder. A process that ends meanwhile leaves rows of no log.
    pub fn wipe(&self) -> Result<(), LogError> {
        self.discard_old_log()?;
        remove_file(&self.path.join(DISCARDED))?;
        remove_file(&self.path.join(LOCK))?;
        // A process that waits for the lock may have made it again, and a person may keep a file here.
        let _ = fs::remove_dir(&self.path);
        Ok(())
    }
}

pub(crate) fn read_lineage(folder: &Path) -> Result<Option<LineageFile>, LogError> {
    let path = folder.join(LINEAGE);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(LogError::io("read", &path)(error)),
    };
    let damaged = |error: serde_json::Error| LogError::damaged(&path, 0, error.to_string());
    let LineageVersion { version } = serde_json::from_slice(split_checksum(&text).0).map_err(damaged)?;
    if version != u64::from(VERSION) {
        return Err(LogError::OtherVersion { folder: folder.to_owned(), found: version, expected: VERSION });
    }
    parse_json(&path, &text).map(Some)
}

/// The segments in their order: first lsn and path.
pub(crate) fn list_segments(folder: &Path) -> Result<Vec<(u64, PathBuf)>, LogError> {
    numbered(folder, SEGMENT)
}

pub(crate) fn list_spares(folder: &Path) -> Result<Vec<(u64, PathBuf)>, LogError> {
    numbered(folder, SPARE)
}

/// Folders of bases in their order, whole or not: lsn and path.
pub(crate) fn base_folders(folder: &Path) -> Result<Vec<(u64, PathBuf)>, LogError> {
    numbered(folder, BASE)
}

pub(crate) fn segment_path(folder: &Path, first: u64) -> PathBuf {
    folder.join(format!("{}{first:016x}{}", SEGMENT.0, SEGMENT.1))
}

pub(crate) fn spare_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{}{number:016x}{}", SPARE.0, SPARE.1))
}

pub(crate) fn base_path(folder: &Path, lsn: u64) -> PathBuf {
    folder.join(format!("{}{lsn:016x}", BASE.0))
}

pub(crate) fn remove_file(path: &Path) -> Result<(), LogError> {
    fs::remove_file(path).map_err(LogError::io("delete", path))
}

fn numbered(folder: &Path, (prefix, suffix): (&str, &str)) -> Result<Vec<(u64, PathBuf)>, LogError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(LogError::io("read", folder))? {
        let path = entry.map_err(LogError::io("read", folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let digits = name.strip_prefix(prefix).and_then(|name| name.strip_suffix(suffix));
        if let Some(number) =
            digits.filter(|digits| digits.len() == 16).and_then(|digits| u64::from_str_radix(digits, 16).ok())
        {
            found.push((number, path.clone()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::small_files::is_file_at;

    #[test]
    fn one_process_holds_a_folder_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let held = LogFolder::open(folder.path()).unwrap();
        let refused = LogFolder::open(folder.path()).unwrap_err().to_string();
        let holder = format!("in use by another process, of id {};", std::process::id());
        assert!(refused.contains(&holder) && refused.contains("log_folder"), "{refused}");
        drop(held);
        LogFolder::open(folder.path()).unwrap();
    }

    #[test]
    fn a_wiped_folder_has_neither_rows_nor_a_lineage() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = LogFolder::open(temporary.path()).unwrap();
        assert_eq!(folder.read_lineage().unwrap(), None);
        let lineage = lineage();
        folder.begin_log(&lineage).unwrap();
        assert_eq!(folder.read_lineage().unwrap(), Some(lineage));
        fs::write(spare_path(folder.path(), 1), "x").unwrap();
        fs::create_dir(base_path(folder.path(), 3)).unwrap();
        assert_eq!(list_segments(folder.path()).unwrap(), [(0, segment_path(folder.path(), 0))]);
        let waiting = File::open(folder.path().join(LOCK)).unwrap();
        assert!(is_file_at(&waiting, &folder.path().join(LOCK)));
        folder.wipe().unwrap();
        assert!(!folder.path().exists());
        let next = LogFolder::open(folder.path()).unwrap();
        assert!(!is_file_at(&waiting, &next.path().join(LOCK)), "a process that waited holds nothing");
        assert_eq!((names(&next), next.read_lineage().unwrap()), (vec![LOCK.to_owned()], None));
    }

    fn lineage() -> LineageFile {
        let settings = BTreeMap::from([("dim".to_owned(), "4".to_owned())]);
        let tables = vec![TableDescription { name: "a".to_owned(), settings }];
        LineageFile { version: VERSION, log: u64::MAX, lineage: 7, tables, cold: true, place: LogPlace::Disk }
    }

    fn names(folder: &LogFolder) -> Vec<String> {
        let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}
