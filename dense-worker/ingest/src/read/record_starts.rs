//! The first record of a split in the middle of a file whose quoted fields may hold line breaks.
//!
//! A byte does not show whether it is inside quotes. So the file is scanned once, up to the split that starts last, and the
//! first record at or after each mebibyte is noted. A split scans on from there. The notes are shared by all streams of the
//! process, so that no epoch scans again.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::SystemTime;

use super::records::{RecordScanner, RecordSyntax};
use super::text::FileText;
use crate::IngestError;

/// Distance of the noted starts, bytes.
const GRAIN: u64 = 1 << 20;
/// Bytes that are scanned at once behind a noted start.
const PIECE: u64 = 64 << 10;

/// The notes of each file.
static NOTES: LazyLock<Mutex<HashMap<PathBuf, Arc<Mutex<StartNotes>>>>> = LazyLock::new(Mutex::default);

#[derive(Debug)]
struct StartNotes {
    of: FileState,
    /// The first start of a record at or after each multiple of [`GRAIN`].
    starts: Vec<u64>,
    scanner: RecordScanner,
    scanned: u64,
    is_whole: bool,
}

/// What notes depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileState {
    syntax: RecordSyntax,
    data_start: u64,
    bytes: u64,
    changed: Option<SystemTime>,
}

/// The first start of a record at or after byte `at`; the size of the file if there is none. `data_start` is the first one of
/// all.
pub(crate) fn record_start(
    path: &Path,
    syntax: &RecordSyntax,
    data_start: u64,
    at: u64,
    cancel: &Arc<AtomicBool>,
) -> Result<u64, IngestError> {
    let metadata = fs::metadata(path);
    let unreadable = |source| IngestError::Unreadable { path: path.into(), source };
    let metadata = metadata.map_err(unreadable)?;
    let state =
        FileState { syntax: syntax.clone(), data_start, bytes: metadata.len(), changed: metadata.modified().ok() };
    let notes = Arc::clone(NOTES.lock().unwrap_or_else(PoisonError::into_inner).entry(path.to_owned()).or_default());
    let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
    if notes.of != state {
        *notes = StartNotes::new(state);
    }
    notes.extend(path, at, cancel)?;
    let noted = notes.starts.get((at / GRAIN) as usize).copied().unwrap_or(notes.of.bytes);
    drop(notes);
    if noted >= at { Ok(noted) } else { scan_on(path, syntax, noted, at, cancel) }
}

impl Default for StartNotes {
    fn default() -> Self {
        let syntax = RecordSyntax::default();
        Self::new(FileState { syntax, data_start: 0, bytes: 0, changed: None })
    }
}

impl StartNotes {
    fn new(of: FileState) -> Self {
        let (scanner, scanned) = (RecordScanner::new(of.syntax.clone()), of.data_start);
        let mut notes = Self { of, starts: Vec::new(), scanner, scanned, is_whole: false };
        notes.note_start(scanned);
        notes
    }

    /// Notes a start, if it is the first one after a multiple.
    fn note_start(&mut self, start: u64) {
        let multiples = (start / GRAIN + 1) as usize;
        if self.starts.len() < multiples {
            self.starts.resize(multiples, start);
        }
    }

    /// Scans until the first start after the last multiple before `at` is known.
    fn extend(&mut self, path: &Path, at: u64, cancel: &Arc<AtomicBool>) -> Result<(), IngestError> {
        let wanted = (at / GRAIN) as usize;
        if self.starts.len() > wanted || self.is_whole {
            return Ok(());
        }
        let mut text = FileText::open_at(path, self.scanned, at, cancel)?;
        while self.starts.len() <= wanted && !self.is_whole {
            let piece = read_piece(&mut text, GRAIN)?;
            let ends: Vec<usize> = self.scanner.record_ends(&piece).collect();
            ends.into_iter().for_each(|end| self.note_start(self.scanned + end as u64));
            self.scanned += piece.len() as u64;
            self.is_whole = (piece.len() as u64) < GRAIN;
        }
        Ok(())
    }
}

/// The first start at or after `at`, from a start before it.
fn scan_on(
    path: &Path,
    syntax: &RecordSyntax,
    start: u64,
    at: u64,
    cancel: &Arc<AtomicBool>,
) -> Result<u64, IngestError> {
    let mut text = FileText::open_at(path, start, at, cancel)?;
    let (mut scanner, mut scanned) = (RecordScanner::new(syntax.clone()), start);
    loop {
        let piece = read_piece(&mut text, PIECE)?;
        if let Some(end) = scanner.record_ends(&piece).find(|end| scanned + *end as u64 >= at) {
            return Ok(scanned + end as u64);
        }
        scanned += piece.len() as u64;
        if (piece.len() as u64) < PIECE {
            return Ok(scanned);
        }
    }
}

/// The next `bytes` bytes; less only at the end of the text.
fn read_piece(text: &mut FileText, bytes: u64) -> Result<Vec<u8>, IngestError> {
    let mut piece = Vec::with_capacity(bytes as usize);
    let read = text.by_ref().take(bytes).read_to_end(&mut piece);
    read.map_err(|error| text.explain(error))?;
    Ok(piece)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixture;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        /// In whatever order splits are opened.
        #[test]
        fn starts_are_those_of_the_whole_scan(seed: u32, lengths in prop::collection::vec(1_usize..400_000, 1..12), at in prop::collection::vec(0_u64..5_000_000, 1..8)) {
            let mut text = String::new();
            for (row, length) in lengths.iter().enumerate() {
                let line = if (row as u32 ^ seed).is_multiple_of(2) { "ab\n" } else { "a,\"\n" };
                text.push_str(&format!("{row},\"{}\"\n", line.replace('"', "\"\"").repeat(length / 4)));
            }
            let (_folder, path) = fixture::file(&text);
            let mut scanner = RecordScanner::new(fixture::quoted_records());
            let ends = scanner.record_ends(text.as_bytes()).map(|end| end as u64);
            let starts: Vec<u64> = std::iter::once(0).chain(ends).collect();
            prop_assert_eq!(starts.len(), lengths.len() + 1);
            for at in at {
                let expected = starts.iter().copied().find(|start| *start >= at).unwrap_or(text.len() as u64);
                prop_assert_eq!(record_start(&path, &fixture::quoted_records(), 0, at, &Arc::default()).unwrap(), expected);
            }
        }
    }

    #[test]
    fn a_file_that_was_written_again_is_scanned_again() {
        let (_folder, path) = fixture::file("a,\"\n\n\n\n\"\nb\n");
        let start = |at| record_start(&path, &fixture::quoted_records(), 0, at, &Arc::default()).unwrap();
        assert_eq!(start(4), 9);
        std::fs::write(&path, "a\nb\nc\nd\n").unwrap();
        assert_eq!(start(3), 4);
    }
}
