//! From cells to ids of categorical features.
//!
//! ```text
//! text ─► reading: text, range of a number, part of a date ─► id ─┬────────────────────────────┬─► sink: default, vocabulary or
//!                                  (one cell of the row each)    └─► cross: id of several ids ─┘   hash size ─► id of the row
//! ```
//!
//! Each step is one function that rows of text and columns of Parquet share.

pub(crate) mod date;
pub(crate) mod encoder;
pub(crate) mod id_map;
pub(crate) mod reading;
