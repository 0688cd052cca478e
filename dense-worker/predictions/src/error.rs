//! Why predictions could not be written.

use std::io;
use std::path::PathBuf;

/// Why predictions could not be written.
#[derive(Debug, thiserror::Error)]
pub enum PredictionError {
    /// The file name has no known ending.
    #[error("the name of {} has no known ending; end it in .csv, .jsonl or .parquet, or give --format", path.display())]
    Format {
        /// The file name.
        path: PathBuf,
    },
    /// A Parquet file ends with a description of its rows, which a stream cannot be given in bounded memory.
    #[error("Parquet cannot be written to standard output; give a file name, or --format csv or jsonl")]
    Stream,
    /// The file exists, and the caller did not ask to replace it.
    #[error("{} exists and is kept; choose another name, or use --force to replace it", path.display())]
    Exists { path: PathBuf },
    /// Two columns of the output have the same name.
    #[error(
        "two columns of the predictions would be named \"{name}\"; give the score another name with --score-column"
    )]
    Columns { name: String },
    /// Another process writes the same predictions.
    #[error("another process writes {}; wait for it to end, or choose another name", path.display())]
    Busy {
        /// The unfinished file.
        path: PathBuf,
    },
    /// A row is malformed for one model and not for another, so their scores do not belong together.
    #[error(
        "other rows are malformed for {model} than for the first model; their jobs read the data differently: score with each model by \
         itself"
    )]
    OtherRows {
        /// The other model.
        model: String,
    },
    /// The file cannot be written.
    #[error("cannot write {}: {source}; {kept}", path.display())]
    Write {
        path: PathBuf,
        source: io::Error,
        /// What there is now, and what to do.
        kept: String,
    },
}
