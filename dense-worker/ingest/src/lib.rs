//! From files to batches: sources, parsers, transforms, splits, and the synthetic generator.

pub mod batch;
pub mod error;
pub mod files;
pub mod fingerprint;
pub mod fit;
pub mod hash;
pub mod input;
pub mod inspect;
pub mod profile;
pub mod sample;
pub mod split;
pub mod stream;
pub mod synthetic;
pub mod writing;

mod assemble;
mod category;
mod column_sums;
mod columnar;
mod content;
mod count;
mod cursor;
#[cfg(test)]
mod fixture;
mod formats;
mod parse;
mod pipeline;
mod read;
mod sketch;
mod source;
mod transform;

pub use batch::{Batch, CategoryIds, SplitEnd};
pub use category::date::{clock_seconds, is_iso_date};
pub use content::{FileStart, can_read_file, file_starts};
pub use count::{RowCount, training_rows};
pub use cursor::{StreamCursor, StreamRemainder, StreamStart};
pub use error::{BadRow, IngestError};
pub use files::{check_first_rows, check_same_types, find_files};
pub use fingerprint::{changed_at, fingerprint_files};
pub use fit::{FitReport, RareCategories, fit_features};
pub use formats::{DataContent, criteo_columns};
pub use hash::{DataPart, hash_value};
pub use input::{InputRow, InputRows};
pub use inspect::{ColumnSummaries, ValidationReport, inspect_columns, validate_rows};
pub use sample::{LIST_SEPARATOR, RowSample, SampleLimits, SampledColumn, sample_rows};
pub use split::{FileInfo, SplitSource, SplitTask, WholeFiles};
pub use stream::{BatchStream, StreamOptions, StreamStats};
pub use writing::{check_writings, detect_writings};
