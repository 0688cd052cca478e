//! Predictions in a file: unfinished under another name, and continued there by a process that makes the same predictions again.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as PhysicalType};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{Type, TypePtr};
use serde::{Deserialize, Serialize};
use zagros_ingest::InputRows;
use zagros_plumbing::durable;
use zagros_zip::ZipEq;

use super::{PredictionColumns, PredictionCounts, PredictionError, PredictionFormat, read_record, write_rows};

/// A file of predictions, or standard output, of which nothing is kept.
#[derive(Debug)]
pub(crate) struct PredictionFile {
    path: PathBuf,
    is_stream: bool,
    columns: PredictionColumns,
    format: PredictionFormat,
    identity: String,
    /// Rows between two points that are durable.
    pub(crate) every: u64,
    part: BufWriter<File>,
    counts: PredictionCounts,
    durable: PredictionCounts,
}

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
            Err(TryLockError::WouldBlock) => {
                let part = part_name(path);
                let what =
                    format!("another process writes {}; wait for it to end, or choose another name", part.display());
                return Err(PredictionError::Refused(what));
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        // The columns and the format decide the bytes too.
        let identity = format!("{identity} {format:?} {columns:?}");
        let earlier = fs::read(journal_name(path)).ok().filter(|_| !fresh);
        let journal = earlier.and_then(|text| serde_json::from_slice::<PredictionJournal>(&text).ok());
        let is_whole = |journal: &PredictionJournal| part.metadata().is_ok_and(|data| data.len() >= journal.bytes);
        let journal = journal.filter(|journal| journal.identity == identity && is_whole(journal));
        let mut file = Self {
            path: path.to_owned(),
            is_stream: false,
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

    pub(crate) fn open_stdout(columns: PredictionColumns, format: PredictionFormat) -> Result<Self, PredictionError> {
        if format == PredictionFormat::Parquet {
            // It ends with a description of its rows, which a stream cannot be given in bounded memory.
            let what = "Parquet cannot be written to standard output; give a file name, or --format csv or jsonl";
            return Err(PredictionError::Refused(what.to_owned()));
        }
        let path = PathBuf::from("standard output");
        let failed = |source| PredictionError::Write { path: path.clone(), source, kept: READER.to_owned() };
        let stdout = io::stdout().as_fd().try_clone_to_owned().map_err(failed)?;
        let mut part = BufWriter::with_capacity(1 << 16, File::from(stdout));
        columns.write_head(format, &mut part).map_err(failed)?;
        let (counts, durable) = (PredictionCounts::default(), PredictionCounts::default());
        Ok(Self {
            path,
            is_stream: true,
            columns,
            format,
            identity: String::new(),
            every: u64::MAX,
            part,
            counts,
            durable,
        })
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
        let journal = PredictionJournal { identity: self.identity.clone(), counts: self.counts, bytes };
        durable::write(&journal_name(&self.path), &serde_json::to_vec(&journal)?)?;
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
        if self.is_stream {
            return self.part.flush();
        }
        let part = part_name(&self.path);
        if self.format == PredictionFormat::Parquet {
            // A process that is stopped from here on need not score again.
            self.save()?;
            self.part.seek(SeekFrom::Start(0))?;
            let mut records = BufReader::with_capacity(1 << 20, self.part.get_ref());
            let (columns, rows) = (&self.columns, self.counts.row_count());
            let write =
                |to: &mut BufWriter<File>| write_parquet(columns, &mut records, rows, to).map_err(io::Error::other);
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
            _ if self.is_stream => READER.to_owned(),
            0 => NOTHING.to_owned(),
            rows => format!("make room: the same command goes on after the {rows} rows that are written"),
        };
        PredictionError::Write { path: self.path.clone(), source, kept }
    }
}

/// Nothing is left of predictions that failed before the first rows were durable.
impl Drop for PredictionFile {
    fn drop(&mut self) {
        if self.durable.row_count() == 0 && !self.is_stream {
            // It does no harm where it stays.
            let _ = remove(&part_name(&self.path));
        }
    }
}

const NOTHING: &str = "make room, or choose another folder";
const READER: &str = "its reader has to read to its end";

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[derive(Serialize, Deserialize)]
struct PredictionJournal {
    /// Other rows, another model or another release have another one.
    identity: String,
    counts: PredictionCounts,
    bytes: u64,
}

const GROUP_ROWS: u64 = 1 << 17;

/// Records become a Parquet file, one row group after another, so that memory is bounded.
struct RowGroup {
    keys: Vec<Vec<ByteArray>>,
    scores: Vec<Vec<f64>>,
    /// 1 where a row has scores.
    defined: Vec<i16>,
}

/// Writes a file of so many records.
fn write_parquet(
    columns: &PredictionColumns,
    from: &mut impl Read,
    rows: u64,
    to: &mut (impl Write + Send),
) -> parquet::errors::Result<()> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(format!("zagros {}", env!("CARGO_PKG_VERSION")))
        .build();
    let mut writer = SerializedFileWriter::new(to, schema(columns)?, Arc::new(properties))?;
    let mut done = 0;
    while done < rows {
        let group = read_group(columns, from, GROUP_ROWS.min(rows - done))?;
        done += group.defined.len() as u64;
        write_group(&mut writer, &group)?;
    }
    writer.close()?;
    Ok(())
}

fn schema(columns: &PredictionColumns) -> parquet::errors::Result<TypePtr> {
    let key = |name: &String| {
        let text = Type::primitive_type_builder(name, PhysicalType::BYTE_ARRAY).with_repetition(Repetition::REQUIRED);
        Ok(Arc::new(text.with_logical_type(Some(LogicalType::String)).build()?))
    };
    let mut fields: Vec<TypePtr> = columns.keys.iter().map(key).collect::<parquet::errors::Result<_>>()?;
    for name in &columns.scores {
        let score = Type::primitive_type_builder(name, PhysicalType::DOUBLE);
        fields.push(Arc::new(score.with_repetition(Repetition::OPTIONAL).build()?));
    }
    Ok(Arc::new(Type::group_type_builder("row").with_fields(fields).build()?))
}

fn read_group(columns: &PredictionColumns, from: &mut impl Read, rows: u64) -> parquet::errors::Result<RowGroup> {
    let (keys, scores) = (columns.keys.len(), columns.scores.len());
    let mut group = RowGroup { keys: vec![Vec::new(); keys], scores: vec![Vec::new(); scores], defined: Vec::new() };
    let mut texts = vec![Vec::new(); keys];
    for _ in 0..rows {
        let is_scored = read_record(from, &mut texts, &mut group.scores)?;
        group.defined.push(i16::from(is_scored));
        for (column, text) in group.keys.iter_mut().zip_eq(&texts) {
            column.push(String::from_utf8_lossy(text).as_bytes().to_vec().into());
        }
    }
    Ok(group)
}

fn write_group<W: Write + Send>(writer: &mut SerializedFileWriter<W>, rows: &RowGroup) -> parquet::errors::Result<()> {
    let mut group = writer.next_row_group()?;
    for texts in &rows.keys {
        let Some(mut column) = group.next_column()? else { break };
        column.typed::<ByteArrayType>().write_batch(texts, None, None)?;
        column.close()?;
    }
    for scores in &rows.scores {
        let Some(mut column) = group.next_column()? else { break };
        column.typed::<DoubleType>().write_batch(scores, Some(&rows.defined), None)?;
        column.close()?;
    }
    group.close()?;
    Ok(())
}
