//! What is wrong in a file, without its place.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ::parquet::errors::ParquetError;

/// What is wrong. The caller that knows the place adds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileFault(pub(super) String);

pub(super) type Result<T> = std::result::Result<T, FileFault>;

impl FileFault {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<ParquetError> for FileFault {
    fn from(error: ParquetError) -> Self {
        Self(match error {
            ParquetError::General(text) | ParquetError::NYI(text) | ParquetError::EOF(text) => text,
            other => other.to_string(),
        })
    }
}

pub(super) fn fail<T>(text: impl Into<String>) -> Result<T> {
    Err(FileFault::new(text))
}

/// Calls a decoder of a library. Libraries check what writers usually get wrong and panic at the rest: a page header that
/// names one kind of page and describes another makes the crate `parquet` unwrap nothing. A panic is a fault of the file.
/// What `decode` changed must not be used afterwards.
pub(super) fn catch_panics<T>(decode: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason");
        fail(format!("its bytes make no sense: {text}"))
    })
}
