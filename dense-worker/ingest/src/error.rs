//! Errors between a file and a batch. Every message says where, and what to do next.

use std::any::Any;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use zagros_store::StoreError;

#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    /// A data file does not exist or cannot be read.
    #[error("cannot read {}: {source}; check data.train, data.validation and data.test in the job file", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// An object store refused or did not answer. Its error names the object.
    #[error(transparent)]
    Store {
        #[from]
        source: StoreError,
    },
    /// A folder or a pattern that stands for no file.
    #[error(
        "{} {reason}; empty files, and in folders names that begin with . or _, are passed over; check data.train, data.validation and data.test",
        path.display()
    )]
    NoDataFiles { path: PathBuf, reason: String },
    #[error(
        "the files have several formats: {found}; name the files of one format, by a pattern such as 'FOLDER/*.csv' or one by one"
    )]
    SeveralFormats {
        /// How many files of each, and the first of them.
        found: String,
    },
    /// No data files, although some are needed.
    #[error("no data files given; name at least one in data.{key}")]
    NoFiles {
        /// `train` or `test`.
        key: &'static str,
    },
    #[error(
        "{}: no column \"{column}\"{}; its columns are: {}",
        path.display(),
        similar.as_ref().map(|name| format!(", did you mean \"{name}\"?")).unwrap_or_default(),
        found.join(", ")
    )]
    MissingColumn {
        /// The file whose header (or the job's list of columns) was read.
        path: PathBuf,
        column: String,
        similar: Option<String>,
        found: Vec<String>,
    },
    /// The job says that there is a header line, but there is none, or it cannot be read.
    #[error("{}: cannot read the header: {reason}; set data.header = false if there is none", path.display())]
    BadHeader { path: PathBuf, reason: String },
    /// A file that cannot be used as it is. The reason says what to do.
    #[error("{}: {reason}", path.display())]
    BadFile { path: PathBuf, reason: String },
    #[error("{}: {unit} {number}, column \"{column}\": {reason}; if the file is damaged, write it again", path.display())]
    DamagedColumn {
        path: PathBuf,
        /// What its format calls a row group.
        unit: &'static str,
        /// Which one, from 0.
        number: usize,
        column: String,
        reason: String,
    },
    #[error("{}: column \"{column}\": {reason}", path.display())]
    UnusableColumn { path: PathBuf, column: String, reason: String },
    #[error(
        "feature \"{feature}\" has more than {most} different categories, too many to count for its vocabulary; remove `vocabulary`, and \
         leave rare categories out by [tables.<name>] admission = {{ kind = \"count\" }}, or share rows by hash_size = N"
    )]
    LargeVocabulary { feature: String, most: usize },
    #[error("{}", describe_bad_rows(*count, *limit, (*share, *rows), first))]
    TooManyBadRows {
        count: u64,
        limit: u64,
        share: f64,
        /// Rows that were read by this reader, good and malformed.
        rows: u64,
        first: Vec<BadRow>,
    },
    /// A malformed record with quoted line breaks that may be many rows.
    #[error(
        "{row}; its {lines} lines may be as many rows, so {reason}: close the quote, double it inside a field, or remove data.quoted_breaks"
    )]
    LostRecord { row: Box<BadRow>, lines: u64, reason: &'static str },
    #[error("{}", describe_no_rows(files, *rows, part))]
    NoRows {
        files: String,
        /// Rows read, of any part.
        rows: u64,
        part: &'static str,
    },
    #[error("cannot get the next split of the data: {reason}")]
    Source { reason: String },
    /// A reading or parsing thread ended without an error.
    #[error("the {thread} thread stopped unexpectedly while reading {}: {reason}; this is a bug, please report it", path.display())]
    ThreadDied { thread: String, path: PathBuf, reason: String },
    #[error("cannot start the {thread} thread: {source}; lower data.threads or raise the system's limit on threads")]
    Spawn { thread: String, source: io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Unwritable { path: PathBuf, source: io::Error },
    #[error("cannot generate: {reason}")]
    BadSpec { reason: String },
    #[error("reading was cancelled")]
    Cancelled,
}

impl IngestError {
    pub(crate) fn bad_file(path: &Path, reason: impl Into<String>) -> Self {
        Self::BadFile { path: path.into(), reason: reason.into() }
    }
}

/// What a panic says.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRow {
    pub path: PathBuf,
    /// Line, from 1, counting every line of the file (header and comments too).
    pub line: u64,
    /// Of a file with row groups, what its format calls one, and its number from 0. The line is then the row in it, from 1.
    pub row_group: Option<(&'static str, usize)>,
    /// Field, from 1.
    pub column: usize,
    pub expected: String,
    /// The text of the field, shortened.
    pub found: String,
}

impl fmt::Display for BadRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, row_group, column, expected, found } = self;
        match row_group {
            None => write!(f, "{}:{line}:{column}: ", path.display())?,
            Some((unit, number)) => write!(f, "{}: {unit} {number}, row {line}, column {column}: ", path.display())?,
        }
        write!(f, "expected {expected}, found {found}")
    }
}

fn describe_no_rows(files: &str, rows: u64, part: &str) -> String {
    if rows == 0 {
        return format!("{files}: no rows (only empty lines, comments or a header); check data.train and data.test");
    }
    format!(
        "{files}: {rows} rows read, none in the {part} part; check data.test_fraction, data.test_from, \
         data.validation_share, data.validation_from and data.max_bad_rows"
    )
}

fn describe_bad_rows(count: u64, limit: u64, (share, read): (f64, u64), first: &[BadRow]) -> String {
    let rows = if count == 1 { "row" } else { "rows" };
    let limit = match share > 0.0 {
        true => format!("{limit}, and data.max_bad_share {share} of the {read} rows read"),
        false => limit.to_string(),
    };
    if first.is_empty() {
        return format!(
            "{count} malformed {rows} in the splits of all workers and epochs, but data.max_bad_rows allows {limit}; `zagros data \
             validate` lists them; correct them or raise the limit"
        );
    }
    let mut text = format!(
        "{count} malformed {rows} (file:line:field below), but data.max_bad_rows allows {limit}; correct them or raise the limit"
    );
    for row in first {
        text.push_str(&format!("\n  {row}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_bad_rows_lists_the_first() {
        let (expected, found) = ("a number in column \"I2\"".into(), "\"abc\"".into());
        let row = BadRow { path: "train.txt".into(), line: 17, row_group: None, column: 3, expected, found };
        let error = IngestError::TooManyBadRows { count: 1, limit: 0, share: 0.0, rows: 9, first: vec![row] };
        assert_eq!(
            error.to_string(),
            "1 malformed row (file:line:field below), but data.max_bad_rows allows 0; correct them or raise the limit\n  \
             train.txt:17:3: expected a number in column \"I2\", found \"abc\""
        );
    }

    #[test]
    fn rows_of_other_workers_are_counted_without_their_places() {
        let error =
            IngestError::TooManyBadRows { count: 7, limit: 3, share: 0.0, rows: 9, first: Vec::new() }.to_string();
        assert!(error.starts_with("7 malformed rows in the splits of all workers and epochs,"), "{error}");
        assert!(error.contains("`zagros data validate` lists them"), "{error}");
    }

    #[test]
    fn files_without_rows_differ_from_files_whose_rows_belong_to_another_part() {
        let message = |rows| IngestError::NoRows { files: "a.txt".into(), rows, part: "train" }.to_string();
        assert!(message(0).starts_with("a.txt: no rows (only empty lines"), "{}", message(0));
        assert!(message(7).starts_with("a.txt: 7 rows read, none in the train part; check"), "{}", message(7));
    }
}
