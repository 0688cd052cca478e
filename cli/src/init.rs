//! From data that no job file describes yet to a commented job file.
//!
//! ```text
//! data ──► sample (bounded rows and bytes) ──► table: columns of texts ──► columns: kinds ──► Sketch ──► job text
//! ```
//!
//! Only [`read_sample`] and [`rows_format`] touch files. What follows is a function of the sample, of the data's name and of the label that the
//! user names.

mod column;
mod dialect;
mod error;
mod ids;
mod job_text;
mod label;
mod leaks;
mod newest;
mod rows_format;
mod sketch;
mod table;
mod time;

pub(crate) use column::{Column, ColumnKind};
pub(crate) use dialect::TextDialect;
pub(crate) use error::InitError;
pub(crate) use job_text::job_text;
pub(crate) use label::{LabelColumn, LabelForm};
pub(crate) use newest::{NewestParts, PartBound};
pub(crate) use rows_format::{describe_format, rows_format};
pub(crate) use sketch::{Sketch, infer_sketch};
pub(crate) use table::{DataLayout, read_sample};
pub(crate) use time::TimeForm;
