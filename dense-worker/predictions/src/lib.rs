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

mod error;
mod file;
mod format;
mod journal;
mod parquet;
mod record;
mod stream;
#[cfg(test)]
mod tests;

pub use error::PredictionError;
pub use file::{PredictionFile, part_name};
pub use format::{PredictionColumns, PredictionFormat};
pub use journal::PredictionCounts;
pub use stream::PredictionStream;
