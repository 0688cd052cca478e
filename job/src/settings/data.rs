//! Where samples come from, and how a line is laid out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DataSettings {
    pub format: Format,
    /// Training files, folders and patterns, in reading order.
    pub train: Vec<PathBuf>,
    pub test: HeldOutRows,
    /// Held-out part that is scored while training.
    pub validation: HeldOutRows,
    /// How many malformed rows are skipped (and counted) before the run stops.
    pub max_bad_rows: u64,
    /// The share of a worker's rows that may be malformed as well, 0..1.
    pub max_bad_share: f64,
    /// Longest line accepted, bytes.
    pub max_line_bytes: usize,
    pub threads: usize,
    /// Rows in the shuffle window; 0 keeps file order.
    pub shuffle_rows: usize,
    pub order: DataOrder,
    /// Whether batches with fewer samples than the others are dropped.
    pub drop_last: bool,
    /// How the first training rows write the columns of categories. It is measured, and no job file has it.
    #[serde(skip)]
    pub written: BTreeMap<String, BTreeSet<WrittenForm>>,
}

pub const STDIN: &str = "-";

/// Order of the rows of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DataOrder {
    /// Another order in each epoch: parts of all files, and rows within the shuffle window.
    #[default]
    Shuffled,
    /// The order of the files, as of rows that are sorted by time. The measures of training are then progressive: each row is
    /// scored before it is learned from, by what was learned of the rows before it.
    Time,
}

impl DataSettings {
    /// Whether rows are trained on that standard input gives.
    pub fn reads_stdin(&self) -> bool {
        self.train.iter().any(|path| path == std::path::Path::new(STDIN))
    }

    /// Whether there is a validation part for early stopping and the choice of the best state.
    pub fn has_validation(&self) -> bool {
        self.validation != HeldOutRows::None
    }

    /// The column of times that divides the training files, if one does.
    pub fn time_column(&self) -> Option<&str> {
        self.test.newest_rows().or(self.validation.newest_rows()).map(|newest| newest.column.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NewestRows {
    pub column: String,
    /// The first time that is in.
    pub from: TimeBound,
}

/// A time as a column writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TimeBound {
    /// Values are compared as numbers.
    Number(f64),
    /// Values are compared letter by letter, as texts such as `2026-11-23` can be.
    Text(String),
}

impl TimeBound {
    /// Whether this bound is before another one; `None` if one is a number and the other a text.
    pub fn is_before(&self, other: &Self) -> Option<bool> {
        match (self, other) {
            (Self::Number(one), Self::Number(other)) => Some(one < other),
            (Self::Text(one), Self::Text(other)) => Some(one < other),
            _ => None,
        }
    }
}

/// Rows that are not trained on: the test part, or the part by which early stopping and the choice of the best state go.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum HeldOutRows {
    Files(Vec<PathBuf>),
    /// This share (0..1) of the training files' rows, chosen by a hash of the row and its place. No row is in both parts.
    Share(f64),
    /// The newest of the training files' rows; in the validation part, of those that are not in the test part.
    Newest(NewestRows),
    /// No part. Without a test part nothing is evaluated at the end. Without a validation part, the test part is scored during training.
    None,
}

impl HeldOutRows {
    pub fn file_paths(&self) -> &[PathBuf] {
        if let Self::Files(files) = self { files } else { &[] }
    }

    /// The share of the training files' rows; 0 for rows that are not chosen by a share.
    pub fn row_share(&self) -> f64 {
        if let Self::Share(share) = self { *share } else { 0.0 }
    }

    pub fn newest_rows(&self) -> Option<&NewestRows> {
        if let Self::Newest(newest) = self { Some(newest) } else { None }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Format {
    /// Criteo's TSV: label, 13 integers, 26 categories, tab-separated, no header.
    Criteo,
    /// Columns by name or position, quoted fields as in RFC 4180.
    Delimited(DelimitedFormat),
    Parquet(ColumnarFormat),
    Arrow(ColumnarFormat),
    Jsonl(ColumnarFormat),
}

impl Format {
    pub fn missing_texts(&self) -> &[String] {
        match self {
            Self::Criteo => &[],
            Self::Delimited(delimited) => &delimited.missing,
            Self::Parquet(columnar) | Self::Arrow(columnar) | Self::Jsonl(columnar) => &columnar.missing,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ColumnarFormat {
    /// Texts that mean "missing", besides the empty one and null.
    pub missing: Vec<String>,
}

/// What is before the fraction of a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DecimalMark {
    /// A point, as in `3.14`.
    #[default]
    #[serde(rename = ".")]
    Point,
    /// A comma, as in `3,14`. Numbers with a point are read as well.
    #[serde(rename = ",")]
    Comma,
}

/// A generic CSV or TSV.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DelimitedFormat {
    /// Field separator, one ASCII byte.
    pub delimiter: u8,
    /// Whether files start with a line of column names.
    pub header: bool,
    /// Column names, in order; from the header when the job gives none.
    pub columns: Vec<String>,
    /// Lines that start with this are skipped.
    pub comment: Option<String>,
    /// Whether blanks around a field are removed.
    pub trim: bool,
    /// Whether quoted fields may hold line breaks.
    pub quoted_breaks: bool,
    pub decimal: DecimalMark,
    /// Field texts that mean "missing", besides the empty one.
    pub missing: Vec<String>,
}

/// A way to write values whose texts are categories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WrittenForm {
    /// `7`.
    Whole,
    /// `7.0`.
    PointZero,
    /// `0.25`, without a zero at the end.
    Fraction,
    /// `12.50`.
    Padded,
    /// 0 and 1 alone.
    ZeroOne,
    /// `true`, `false`.
    Lower,
    /// `True`, `False`, as Python writes them.
    Capital,
    /// `TRUE`, `FALSE`.
    Upper,
    /// `2026-11-23`.
    Date,
    /// `2026-11-23 18:45:00`.
    DateBlankTime,
    /// `2026-11-23T18:45:00`.
    DateTTime,
    /// Any other text.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WrittenKind {
    Number,
    Truth,
    Time,
    Text,
}

impl WrittenForm {
    pub fn kind(self) -> WrittenKind {
        match self {
            Self::Whole | Self::PointZero | Self::Fraction | Self::Padded => WrittenKind::Number,
            Self::ZeroOne | Self::Lower | Self::Capital | Self::Upper => WrittenKind::Truth,
            Self::Date | Self::DateBlankTime | Self::DateTTime => WrittenKind::Time,
            Self::Other => WrittenKind::Text,
        }
    }
}

impl fmt::Display for WrittenForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Whole => "whole numbers, such as 7",
            Self::PointZero => "whole numbers with a point, such as 7.0",
            Self::Fraction => "numbers such as 0.25",
            Self::Padded => "numbers with zeros at their end, such as 12.50",
            Self::ZeroOne => "0 and 1",
            Self::Lower => "true and false",
            Self::Capital => "True and False",
            Self::Upper => "TRUE and FALSE",
            Self::Date => "dates, such as 2026-11-23",
            Self::DateBlankTime => "dates with times, such as 2026-11-23 18:45:00",
            Self::DateTTime => "dates with times, such as 2026-11-23T18:45:00",
            Self::Other => "texts",
        })
    }
}
