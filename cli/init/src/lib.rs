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

pub use column::{Column, ColumnKind};
pub use dialect::TextDialect;
pub use error::InitError;
pub use job_text::job_text;
pub use label::{LabelColumn, LabelForm};
pub use leaks::LabelLeak;
pub use newest::{NewestParts, PartBound};
pub use rows_format::{describe_format, rows_format};
pub use sketch::{Sketch, infer_sketch};
pub use table::{DataLayout, read_sample};
pub use time::TimeForm;
