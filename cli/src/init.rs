//! From data that no job file describes yet to a commented job file.
//!
//! ```text
//! data ──► sample (bounded rows and bytes) ──► table: columns of texts ──► columns: kinds ──► Sketch ──► job text
//! ```
//!
//! Only [`read_sample`] and [`rows_format`] touch files. What follows is a function of the sample, of the data's name and of the label that the
//! user names.

use std::path::PathBuf;

use zagros_ingest::IngestError;

mod column;
mod dialect;
mod job_text;
mod label;
mod newest;
mod rows_format;
mod sketch;
mod table;
mod time;

pub(crate) use column::{Column, ColumnKind};
pub(crate) use dialect::TextDialect;
pub(crate) use job_text::job_text;
pub(crate) use label::{LabelColumn, LabelForm};
pub(crate) use newest::{NewestParts, PartBound};
pub(crate) use rows_format::{describe_format, rows_format};
pub(crate) use sketch::{Sketch, infer_sketch};
pub(crate) use table::{DataLayout, read_sample};
pub(crate) use time::TimeForm;

#[derive(Debug, thiserror::Error)]
pub(crate) enum InitError {
    #[error(transparent)]
    Unreadable(Box<IngestError>),
    #[error(
        "{}: its first line looks like values, so its columns have no names; write a line of names first, or name them by \
         --set data.format=delimited --set data.header=false --set 'data.columns=[\"…\", …]' (and data.delimiter, if it is no comma)",
        path.display()
    )]
    NoNames { path: PathBuf },
    #[error("the data has {rows} rows; at least {needed} are needed to tell what its columns hold")]
    TooFewRows { rows: usize, needed: usize },
    #[error(
        "no separator divides the lines into columns; tried tab, comma, semicolon and `|`; the first line is {line:?}; write the rows with one of these separators, or as JSON lines, Parquet or Arrow"
    )]
    NoSeparator { line: String },
    #[error(
        "{bad} of {rows} rows do not have {fields} fields; number {line} of the rows has {found}: the separator {separator:?} is wrong, or the file is damaged"
    )]
    Ragged {
        bad: usize,
        rows: usize,
        fields: usize,
        /// Counted from 1.
        line: usize,
        found: usize,
        separator: char,
    },
    #[error(
        "of the files {names}, which should all have the same columns (name those that do, by a pattern such as 'FOLDER/*.csv'): {source}"
    )]
    Together {
        names: String,
        /// What is wrong with their lines.
        source: Box<InitError>,
    },
    /// Text files that are no table together.
    #[error(
        "the files have different columns: {others} {} not have the {fields} fields of {}, separated by {separator:?}; name the files that belong \
         together, by a pattern such as 'FOLDER/*.csv'",
        if others.contains(", ") { "do" } else { "does" },
        like.display()
    )]
    OtherColumns {
        others: String,
        /// One of most files.
        like: PathBuf,
        separator: char,
        fields: usize,
    },
    #[error(
        "no column has exactly two values, so none is likely the label; columns and their values in the sample: {columns}; name one with `--label COLUMN`: a number becomes a regression, and a few texts become classes"
    )]
    NoLabel { columns: String },
    #[error("there is no column {name:?}; the columns are {columns}")]
    NoSuchColumn { name: String, columns: String },
    /// The label that the user names is nothing that can be learned.
    #[error(
        "column {name:?} has {values} values in the sample, and a label is one of two texts, a number or one of up to 50 classes: name another column, or write a column that says whether a row is positive, such as `rating >= 4`"
    )]
    NotALabel { name: String, values: usize },
    /// Nothing but the label is of use.
    #[error(
        "no column but the label {label:?} can be a feature: every other one is constant, differs in each row, or tells the label by itself"
    )]
    NoFeature { label: String },
}

impl InitError {
    /// The error with the names of the files whose lines were put together, if there are several.
    pub(crate) fn of_files(self, names: &[PathBuf]) -> Self {
        if names.len() < 2 || !matches!(self, Self::NoSeparator { .. } | Self::Ragged { .. }) {
            return self;
        }
        let names: Vec<String> = names.iter().map(|path| path.display().to_string()).collect();
        Self::Together { names: names.join(", "), source: Box::new(self) }
    }
}
