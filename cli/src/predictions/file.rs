//! Predictions in a file: unfinished under another name, and continued there by a process that makes the same predictions again.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufReader, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zagros_ingest::InputRows;
use zagros_plumbing::durable;

use crate::predictions::format::write_rows;
use crate::predictions::{PredictionColumns, PredictionCounts, PredictionError, PredictionFormat, parquet};

#[derive(Debug)]
pub(crate) struct PredictionFile {
    path: PathBuf,
    columns: PredictionColumns,
    format: PredictionFormat,
    identity: String,
    /// Rows between two points that are durable.
    pub(crate) every: u64,
    part: BufWriter<File>,
    counts: PredictionCounts,
    durable: PredictionCounts,
}

#[must_use]
pub(crate) fn part_name(path: &Path) -> PathBuf {
    with_ending(path, ".part")
}

fn journal_name(path: &Path) -> PathBuf {
    with_ending(path, ".journal")
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

impl PredictionFile {
    /// Starts, or continues where an earlier process with the same `identity` stopped, unless `fresh`. `every` so many rows
    /// the predictions are made durable, so that another process can continue there.
    pub(crate) fn open(
        path: &Path,
        (columns, format): (PredictionColumns, PredictionFormat),
        identity: &str,
        every: u64,
        fresh: bool,
    ) -> Result<Self, PredictionError> {
        let failed = |source| PredictionError::Write { path: part_name(path), source, kept: NOTHING.to_owned() };
        let part = File::options().read(true).write(true).create(true).truncate(false).open(part_name(path));
        let part = part.map_err(failed)?;
        match part.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(PredictionError::Busy { path: part_name(path) }),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        // The columns and the format decide the bytes too.
        let identity = format!("{identity} {format:?} {columns:?}");
        let journal = PredictionJournal::find(&journal_name(path), &identity).filter(|_| !fresh);
        let is_whole = |journal: &PredictionJournal| part.metadata().is_ok_and(|data| data.len() >= journal.bytes);
        let journal = journal.filter(is_whole);
        let mut file = Self {
            path: path.to_owned(),
            columns,
            format,
            identity,
            every: every.max(1),
            part: BufWriter::with_capacity(1 << 20, part),
            counts: PredictionCounts::default(),
            durable: PredictionCounts::default(),
        };
        file.start(journal).map_err(failed)?;
        Ok(file)
    }

    fn start(&mut self, journal: Option<PredictionJournal>) -> io::Result<()> {
        let bytes = journal.as_ref().map_or(0, |journal| journal.bytes);
        self.part.get_mut().set_len(bytes)?;
        self.part.seek(SeekFrom::Start(bytes))?;
        match journal {
            Some(journal) => (self.counts, self.durable) = (journal.counts, journal.counts),
            None => {
                remove(&journal_name(&self.path))?;
                self.columns.write_head(self.format, &mut self.part)?;
            }
        }
        Ok(())
    }

    /// Rows that were written before, by this process or an earlier one.
    #[must_use]
    pub(crate) fn written_counts(&self) -> PredictionCounts {
        self.counts
    }

    /// Writes rows; `scores` are those of the samples among them, a value of each column a sample.
    pub(crate) fn add_rows(&mut self, rows: &InputRows, scores: &[f64]) -> Result<(), PredictionError> {
        self.write(rows, scores).map_err(|source| self.failed(source))
    }

    fn write(&mut self, rows: &InputRows, scores: &[f64]) -> io::Result<()> {
        let added = write_rows(&mut self.part, &self.columns, self.format, rows, scores)?;
        self.counts.add(added);
        if self.counts.row_count() - self.durable.row_count() >= self.every {
            self.save()?;
        }
        Ok(())
    }

    fn save(&mut self) -> io::Result<()> {
        let bytes = self.part.stream_position()?;
        self.part.get_ref().sync_data()?;
        PredictionJournal::new(&self.identity, self.counts, bytes).write(&journal_name(&self.path))?;
        self.durable = self.counts;
        Ok(())
    }

    /// Gives the file its name: there are all rows now.
    pub(crate) fn finish(mut self) -> Result<PredictionCounts, PredictionError> {
        let finished = self.conclude();
        finished.map_err(|source| self.failed(source))?;
        Ok(self.counts)
    }

    fn conclude(&mut self) -> io::Result<()> {
        let part = part_name(&self.path);
        if self.format == PredictionFormat::Parquet {
            // A process that is stopped from here on need not score again.
            self.save()?;
            self.part.seek(SeekFrom::Start(0))?;
            let mut records = BufReader::with_capacity(1 << 20, self.part.get_ref());
            let (columns, rows) = (&self.columns, self.counts.row_count());
            let write =
                |to: &mut BufWriter<File>| parquet::write(columns, &mut records, rows, to).map_err(io::Error::other);
            durable::write_with(&self.path, write)?;
            remove(&part)?;
        } else {
            self.part.flush()?;
            self.part.get_ref().sync_all()?;
            durable::rename(&part, &self.path)?;
        }
        remove(&journal_name(&self.path))
    }

    fn failed(&self, source: io::Error) -> PredictionError {
        let kept = match self.durable.row_count() {
            0 => NOTHING.to_owned(),
            rows => format!("make room: the same command goes on after the {rows} rows that are written"),
        };
        PredictionError::Write { path: self.path.clone(), source, kept }
    }
}

/// Nothing is left of predictions that failed before the first rows were durable.
impl Drop for PredictionFile {
    fn drop(&mut self) {
        if self.durable.row_count() == 0 {
            // It does no harm where it stays.
            let _ = remove(&part_name(&self.path));
        }
    }
}

const NOTHING: &str = "make room, or choose another folder";

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PredictionJournal {
    version: u32,
    /// Other rows, or another model, have another one.
    identity: String,
    pub(crate) counts: PredictionCounts,
    pub(crate) bytes: u64,
}

impl PredictionJournal {
    const VERSION: u32 = 1;

    pub(crate) fn new(identity: &str, counts: PredictionCounts, bytes: u64) -> Self {
        Self { version: Self::VERSION, identity: identity.to_owned(), counts, bytes }
    }

    /// The journal of an unfinished file of the same rows, columns and model.
    pub(crate) fn find(path: &Path, identity: &str) -> Option<Self> {
        let found: Self = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        (found.version == Self::VERSION && found.identity == identity).then_some(found)
    }

    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        durable::write(path, &serde_json::to_vec(self)?)
    }
}
