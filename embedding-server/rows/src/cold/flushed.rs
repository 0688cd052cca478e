//! The mark of a store whose rows outlive it: how much of each table's log is surely on the disk.
//!
//! A damaged record before the mark is an error. After the mark the log may be torn: a process may have ended in the middle
//! of a write, and the disk may have lost what was not flushed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

use zagros_table::ColdError;

use super::segment::file_error;
use crate::log::small_files::write_whole;

pub(crate) const NAME: &str = "flushed";
const TITLE: &str = "zagros cold log 1";

/// Up to where the log of a table is on the disk: all segments of lower numbers, and so many records of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FlushedTable {
    pub(crate) up_to: SyncedUpTo,
    /// Its segments by number, and how many records each has. A segment that is deleted later leaves a file that says so.
    pub(crate) segments: Vec<(u64, u32)>,
}

/// Writes the mark, whole or not at all.
pub(crate) fn write(folder: &Path, tables: &[FlushedTable]) -> Result<(), ColdError> {
    let line = |FlushedTable { up_to, segments }: &FlushedTable| {
        let segments: String = segments.iter().map(|(number, rows)| format!(" {number}:{rows}")).collect();
        format!("{} {} {}{segments}\n", up_to.table, up_to.number, up_to.rows)
    };
    let lines: String = tables.iter().map(line).collect();
    let checksum = crc32c::crc32c(lines.as_bytes());
    let (path, text) = (folder.join(NAME), format!("{TITLE} {checksum:08x}\n{lines}"));
    write_whole(&path, text.as_bytes()).map_err(|error| file_error("flush", &error, &path))
}

/// Waits until the names of the files in a folder are on the disk.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), ColdError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| file_error("flush", &error, folder))
}

/// Reads the mark: up to where each table's log is on the disk.
/// Without the mark the store cannot say which rows are missing.
pub(crate) fn read(folder: &Path) -> Result<BTreeMap<u32, FlushedTable>, ColdError> {
    let path = folder.join(NAME);
    let unknown = |what: &str| {
        let next = "restore it, or delete the folders of the cold tier and of the log and resume from a checkpoint";
        ColdError { doing: "open", reason: format!("{} {what}; {next}", path.display()) }
    };
    match fs::read_to_string(&path) {
        Ok(text) => parse(&text).ok_or_else(|| unknown("is damaged, or of another release")),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(unknown("is missing, or the rows are of an earlier release"))
        }
        Err(error) => Err(file_error("open", &error, &path)),
    }
}

fn parse(text: &str) -> Option<BTreeMap<u32, FlushedTable>> {
    let (title, lines) = text.split_once('\n')?;
    let checksum = u32::from_str_radix(title.strip_prefix(TITLE)?.trim(), 16).ok()?;
    if crc32c::crc32c(lines.as_bytes()) != checksum {
        return None;
    }
    let line = |line: &str| {
        let mut numbers = line.split(' ');
        let table = numbers.next()?.parse().ok()?;
        let up_to = SyncedUpTo { table, number: numbers.next()?.parse().ok()?, rows: numbers.next()?.parse().ok()? };
        let segment = |pair: &str| {
            let (number, rows) = pair.split_once(':')?;
            Some((number.parse().ok()?, rows.parse().ok()?))
        };
        Some((table, FlushedTable { up_to, segments: numbers.map(segment).collect::<Option<_>>()? }))
    };
    lines.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_read_as_it_was_written_and_any_change_of_it_is_found() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read(folder.path()).unwrap_err().reason.contains("flushed is missing, or the rows are of an earlier"));
        let up_to = SyncedUpTo { table: 0, number: 7, rows: 9 };
        let other = SyncedUpTo { table: 4, number: 0, rows: 0 };
        let marks = [
            FlushedTable { up_to, segments: vec![(2, 30), (7, 9)] },
            FlushedTable { up_to: other, segments: Vec::new() },
        ];
        write(folder.path(), &marks).unwrap();
        assert_eq!(read(folder.path()).unwrap().into_values().collect::<Vec<_>>(), marks);
        let path = folder.path().join(NAME);
        let text = fs::read_to_string(&path).unwrap();
        for (old, new) in [("7 9", "7 8"), ("2:30", "2:31"), ("log 1", "log 2"), ("4 0 0\n", ""), ("\n", " ")] {
            fs::write(&path, text.replace(old, new)).unwrap();
            let error = read(folder.path()).unwrap_err();
            assert!(error.reason.contains("flushed is damaged, or of another release"), "{old}: {error}");
        }
        assert!(up_to.has_record(6, 100) && up_to.has_record(7, 8));
        assert!(!up_to.has_record(7, 9) && !up_to.has_record(8, 0));
    }
}
