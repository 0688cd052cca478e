//! From Parquet files to rows.
//!
//! ```text
//! footer ──► schema: columns by name and kind        (once a file)
//!        └─► row groups ──► a split owns some ──► slices of rows      (reading thread)
//! slice ──► a reader a column: page ──► levels, values ──► cells ──► rows (parsing threads)
//! ```
//!
//! Every number in a file is a claim. Memory is taken for bytes that are there, not for bytes that a file says it has:
//! a page is at most [`pages::MOST_PAGE_BYTES`], and what a footer counts is compared with what the pages hold.
//!
//! The format is described at <https://parquet.apache.org/docs/file-format/>. Why these readers are our own: docs/adr/0061.

pub(crate) mod file;
pub(crate) mod parser;
pub(crate) mod shapes;

mod bits;
mod codec;
mod column;
mod delta;
mod fault;
mod footer;
mod kind;
mod output;
mod pages;
mod schema;
mod texts;
mod thrift;
mod values;
