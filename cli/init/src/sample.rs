//! Some rows of the data, in bounded memory.

use std::path::Path;

use zagros_ingest::{RowSample, SampleLimits, sample};

use crate::InitError;

/// What is looked at: a second's work, and as many rows as tell what a column holds.
const LIMITS: SampleLimits = SampleLimits { rows: 100_000, bytes: 32 << 20, files: 8 };

/// Reads rows of a file, a folder, a pattern or objects in a store, in any format that can be trained on.
///
/// # Errors
/// When there is no such data, or it cannot be read.
pub fn read_sample(data: &Path) -> Result<RowSample, InitError> {
    sample(&[data.to_path_buf()], LIMITS)
        .map_err(|source| InitError::Unreadable { data: data.into(), source: Box::new(source) })
}
