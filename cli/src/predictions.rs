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
mod format;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use zagros_ingest::InputRows;

pub(crate) use file::PredictionFile;
pub(crate) use format::{PredictionColumns, PredictionFormat, read_record};

#[derive(Debug, thiserror::Error)]
pub(crate) enum PredictionError {
    #[error("the name of {} has no known ending; end it in .csv, .jsonl or .parquet, or give --format", path.display())]
    Format { path: PathBuf },
    /// A Parquet file ends with a description of its rows, which a stream cannot be given in bounded memory.
    #[error("Parquet cannot be written to standard output; give a file name, or --format csv or jsonl")]
    Stream,
    /// The file exists, and the caller did not ask to replace it.
    #[error("{} exists and is kept; choose another name, or use --force to replace it", path.display())]
    Exists { path: PathBuf },
    #[error(
        "two columns of the predictions would be named \"{name}\"; give the score another name with --score-column"
    )]
    Columns { name: String },
    #[error("another process writes {}; wait for it to end, or choose another name", path.display())]
    Busy { path: PathBuf },
    /// A row is malformed for one model and not for another, so their scores do not belong together.
    #[error(
        "other rows are malformed for {model} than for the first model; their jobs read the data differently: score with each model by \
         itself"
    )]
    OtherRows { model: String },
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

    #[must_use]
    pub(crate) fn row_count(&self) -> u64 {
        self.samples + self.malformed
    }
}

/// Predictions to a stream, such as standard output.
#[derive(Debug)]
pub(crate) struct PredictionStream<W> {
    to: W,
    columns: PredictionColumns,
    format: PredictionFormat,
    counts: PredictionCounts,
}

impl<W: Write> PredictionStream<W> {
    /// Writes what comes before the first row.
    pub(crate) fn start(
        mut to: W,
        columns: PredictionColumns,
        format: PredictionFormat,
    ) -> Result<Self, PredictionError> {
        if format == PredictionFormat::Parquet {
            return Err(PredictionError::Stream);
        }
        columns.write_head(format, &mut to).map_err(ended)?;
        Ok(Self { to, columns, format, counts: PredictionCounts::default() })
    }

    /// Writes rows; `scores` are those of the samples among them, a value of each column a sample.
    pub(crate) fn add_rows(&mut self, rows: &InputRows, scores: &[f64]) -> Result<(), PredictionError> {
        let added = write_rows(&mut self.to, &self.columns, self.format, rows, scores).map_err(ended)?;
        self.counts.add(added);
        Ok(())
    }

    /// Hands over what is buffered.
    pub(crate) fn finish(mut self) -> Result<PredictionCounts, PredictionError> {
        self.to.flush().map_err(ended)?;
        Ok(self.counts)
    }
}

fn ended(source: io::Error) -> PredictionError {
    let kept = "its reader has to read to its end".to_owned();
    PredictionError::Write { path: "standard output".into(), source, kept }
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
                format::write_record(row, columns.keys.len(), score, to)?;
            }
        }
    }
    Ok(counts)
}
