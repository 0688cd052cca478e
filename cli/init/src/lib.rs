//! From a data file that nobody has described to a commented job file.
//!
//! ```text
//! file ──► sample (bounded bytes) ──► dialect ──► columns ──► Sketch ──► job text
//! ```
//!
//! Only [`read_sample`] touches a file. What follows is a function of the sample's text, of the file's name and of the
//! label that the user names.

mod column;
mod dialect;
mod error;
mod job_text;
mod label;
mod sample;
mod sketch;
mod time;

pub use column::{Column, ColumnKind};
pub use dialect::Dialect;
pub use error::InitError;
pub use job_text::job_text;
pub use label::Label;
pub use sample::{Sample, read_sample};
pub use sketch::{Sketch, sketch};
pub use time::TimeForm;
