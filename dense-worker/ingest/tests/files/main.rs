//! From files to batches, through the public functions only.

mod column_types;
mod parquet;
mod streams;
