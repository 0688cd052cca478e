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
mod parquet;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;

pub(crate) use file::{PredictionFile, part_name};
pub(crate) use format::{PredictionColumns, PredictionCounts, PredictionFormat, PredictionStream};

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
