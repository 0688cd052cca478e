//! From files to batches, through the public functions only.

mod column_types;
mod parquet;
mod streams;

use std::sync::Arc;

use zagros_ingest::{DataPart, StreamOptions, StreamStart};

/// The first epoch of a part, from its start.
fn options(part: DataPart) -> StreamOptions {
    StreamOptions { part, epoch: 0, start: StreamStart::default(), bad_rows: 0, cancel: Arc::default() }
}
