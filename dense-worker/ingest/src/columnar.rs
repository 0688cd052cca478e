//! From files of columns, Parquet's and Arrow's, to rows.
//!
//! ```text
//! footer ──► schema: columns by name and kind        (once a file)
//!        └─► row groups ──► a split owns some ──► slices of rows      (reading thread)
//! slice ──► a reader a column: page ──► levels, values ──► cells ──► rows (parsing threads)
//! ```
//!
//! Decoding is the work of the crates `parquet` and `arrow-ipc` (docs/adr/0061). What is here is what they leave
//! open: which rows are whose, what a value means to a job, and where a fault is. A record batch of Arrow is a row group here.

pub(crate) mod arrow;
pub(crate) mod file;
pub(crate) mod groups;
pub(crate) mod kind;
pub(crate) mod magic;
pub(crate) mod parquet;
pub(crate) mod parser;
pub(crate) mod sample;
pub(crate) mod shapes;

mod categories;
mod decoded;
mod fault;
mod lists;
mod numbers;
mod output;
mod texts;
