//! From data that no job file describes yet to a commented job file.
//!
//! ```text
//! data ──► sample: columns of texts (bounded rows and bytes) ──► columns: kinds ──► Sketch ──► job text
//! ```
//!
//! Only [`read_sample`] and [`rows_format`] touch files. What follows is a function of the sample, of the data's name and of the label that the
//! user names.

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
pub(crate) use newest::NewestParts;
pub(crate) use rows_format::{describe_format, rows_format};
pub(crate) use sketch::{Sketch, infer_sketch};
pub(crate) use table::{DataLayout, read_sample};
pub(crate) use time::TimeForm;

/// Why there is no job for some data, and what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InitError {
    #[error(transparent)]
    Unreadable(#[from] IngestError),
    /// No column is the label, or the one that the user names cannot be.
    #[error("{0}")]
    Label(String),
    #[error("{0}")]
    Data(String),
}
