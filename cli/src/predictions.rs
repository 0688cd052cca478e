//! Files of predictions: the score of each row of the input, in its order, beside the row's keys.
//!
//! | format | a row | a malformed row |
//! |---|---|---|
//! | CSV, with a header (RFC 4180) | `7,0.031` | `7,` |
//! | JSON lines | `{"id":"7","score":0.031}` | `{"id":"7","score":null}` |
//! | Parquet | texts, and a double | null |
//!
//! ```text
//!            rows                          all rows written
//! scores.csv.part  ─────────────────────────► rename ► scores.csv
//! scores.csv.journal  (how many are durable) ───────► deleted
//! ```
//!
//! A Parquet file ends with a description of all that is in it, so nothing can be added to one. Its rows are collected in
//! records first, and become the file at the end.

mod file;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zagros_ingest::{InputRow, InputRows};

pub(crate) use file::PredictionFile;

#[derive(Debug, thiserror::Error)]
pub(crate) enum PredictionError {
    /// What the caller asks for cannot be, in words.
    #[error("{0}")]
    Refused(String),
    #[error("cannot write {}: {source}; {kept}", path.display())]
    Write { path: PathBuf, source: io::Error, kept: String },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PredictionCounts {
    /// Rows with a score.
    pub(crate) samples: u64,
    /// Malformed rows, which have none.
    pub(crate) malformed: u64,
    /// Rows with a score that is no finite number.
    #[serde(default)]
    pub(crate) not_finite: u64,
}

impl PredictionCounts {
    pub(crate) fn add(&mut self, more: Self) {
        self.samples += more.samples;
        self.malformed += more.malformed;
        self.not_finite += more.not_finite;
    }

    pub(crate) fn row_count(&self) -> u64 {
        self.samples + self.malformed
    }
}

/// Writes rows; those of a Parquet file as records.
fn write_rows(
    to: &mut impl Write,
    columns: &PredictionColumns,
    format: PredictionFormat,
    rows: &InputRows,
    scores: &[f64],
) -> io::Result<PredictionCounts> {
    let mut counts = PredictionCounts::default();
    for row in rows.iter() {
        let each = columns.scores.len();
        let score = match row.sample {
            Some(sample) => {
                let own = scores.get(sample * each..(sample + 1) * each);
                Some(own.ok_or_else(|| io::Error::other("a row has no score"))?)
            }
            None => None,
        };
        counts.samples += u64::from(score.is_some());
        counts.malformed += u64::from(score.is_none());
        counts.not_finite += u64::from(score.is_some_and(|score| score.iter().any(|score| !score.is_finite())));
        match format {
            PredictionFormat::Csv => columns.write_csv(row, score, to)?,
            PredictionFormat::Jsonl => columns.write_json(row, score, to)?,
            PredictionFormat::Parquet | PredictionFormat::Records => {
                write_record(row, columns.keys.len(), score, to)?;
            }
        }
    }
    Ok(counts)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PredictionFormat {
    /// Comma-separated, with a header.
    Csv,
    /// One JSON object a line.
    Jsonl,
    /// Apache Parquet.
    Parquet,
    /// Of the scores that are averaged with others.
    #[value(skip)]
    Records,
}

impl PredictionFormat {
    pub(crate) fn from_path(path: &Path) -> Result<Self, PredictionError> {
        match path.extension().and_then(std::ffi::OsStr::to_str) {
            Some("csv") => Ok(Self::Csv),
            Some("jsonl") => Ok(Self::Jsonl),
            Some("parquet") => Ok(Self::Parquet),
            _ => Err(PredictionError::Refused(format!(
                "the name of {} has no known ending; end it in .csv, .jsonl or .parquet, or give --format",
                path.display()
            ))),
        }
    }
}

/// The columns of predictions: keys, then the scores. A record is a byte that says whether there are scores, the scores, and each key with
/// its length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PredictionColumns {
    pub(crate) keys: Vec<String>,
    pub(crate) scores: Vec<String>,
}

impl PredictionColumns {
    pub(crate) fn new(keys: Vec<String>, scores: Vec<String>) -> Result<Self, PredictionError> {
        let mut seen = BTreeSet::new();
        let twice = keys.iter().chain(&scores).find(|name| !seen.insert(name.as_str())).cloned();
        match twice {
            Some(name) => Err(PredictionError::Refused(format!(
                "two columns of the predictions would be named \"{name}\"; give the score another name with --score-column"
            ))),
            None => Ok(Self { keys, scores }),
        }
    }

    /// Scores that no user sees.
    pub(crate) fn unnamed(scores: usize) -> Self {
        Self { keys: Vec::new(), scores: vec![String::new(); scores] }
    }

    /// The line before the first row, if the format has one.
    pub(crate) fn write_head(&self, format: PredictionFormat, to: &mut impl Write) -> io::Result<()> {
        if format != PredictionFormat::Csv {
            return Ok(());
        }
        for (column, name) in self.keys.iter().chain(&self.scores).enumerate() {
            to.write_all(if column > 0 { b"," } else { b"" })?;
            write_field(name.as_bytes(), to)?;
        }
        to.write_all(b"\n")
    }

    fn write_csv(&self, row: InputRow<'_>, scores: Option<&[f64]>, to: &mut impl Write) -> io::Result<()> {
        for column in 0..self.keys.len() {
            write_field(row.key(column), to)?;
            to.write_all(b",")?;
        }
        // A line without any text would be read as no row.
        let nothing: &[u8] = if self.keys.is_empty() && self.scores.len() == 1 { b"\"\"" } else { b"" };
        for column in 0..self.scores.len() {
            to.write_all(if column > 0 { b"," } else { b"" })?;
            match scores {
                Some(scores) => write!(to, "{}", scores[column])?,
                None => to.write_all(nothing)?,
            }
        }
        to.write_all(b"\n")
    }

    fn write_json(&self, row: InputRow<'_>, scores: Option<&[f64]>, to: &mut impl Write) -> io::Result<()> {
        to.write_all(b"{")?;
        for (column, name) in self.keys.iter().enumerate() {
            serde_json::to_writer(&mut *to, name)?;
            to.write_all(b":")?;
            serde_json::to_writer(&mut *to, &String::from_utf8_lossy(row.key(column)))?;
            to.write_all(b",")?;
        }
        for (column, name) in self.scores.iter().enumerate() {
            to.write_all(if column > 0 { b"," } else { b"" })?;
            serde_json::to_writer(&mut *to, name)?;
            match scores.map(|scores| scores[column]).filter(|score| score.is_finite()) {
                Some(score) => write!(to, ":{score}")?,
                // JSON has no word for what is no number.
                None => to.write_all(b":null")?,
            }
        }
        to.write_all(b"}\n")
    }
}

/// A field of a comma-separated line, in quotes where RFC 4180 wants them.
fn write_field(text: &[u8], to: &mut impl Write) -> io::Result<()> {
    let is_blank = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_whitespace);
    let quoted = text.iter().any(|byte| matches!(byte, b',' | b'"' | b'\n' | b'\r'));
    if !quoted && !is_blank(text.first()) && !is_blank(text.last()) {
        return to.write_all(text);
    }
    to.write_all(b"\"")?;
    for (part, piece) in text.split(|byte| *byte == b'"').enumerate() {
        if part > 0 {
            to.write_all(b"\"\"")?;
        }
        to.write_all(piece)?;
    }
    to.write_all(b"\"")
}

fn write_record(row: InputRow<'_>, keys: usize, scores: Option<&[f64]>, to: &mut impl Write) -> io::Result<()> {
    to.write_all(&[u8::from(scores.is_some())])?;
    for score in scores.unwrap_or_default() {
        to.write_all(&score.to_le_bytes())?;
    }
    for key in (0..keys).map(|column| row.key(column)) {
        to.write_all(&u32::try_from(key.len()).map_err(io::Error::other)?.to_le_bytes())?;
        to.write_all(key)?;
    }
    Ok(())
}

/// Reads a row, adds its scores to those of each column, and puts its keys into `keys`. Answers whether it has scores.
pub(crate) fn read_record(from: &mut impl Read, keys: &mut [Vec<u8>], scores: &mut [Vec<f64>]) -> io::Result<bool> {
    let mut scored = [0];
    from.read_exact(&mut scored)?;
    let mut score = [0; 8];
    for column in scores.iter_mut().filter(|_| scored[0] == 1) {
        from.read_exact(&mut score)?;
        column.push(f64::from_le_bytes(score));
    }
    for key in keys {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        key.resize(u32::from_le_bytes(length) as usize, 0);
        from.read_exact(key)?;
    }
    Ok(scored[0] == 1)
}
