//! What is wrong in a file, without its place.

use std::fmt;

/// What is wrong. The place is added by whoever knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault(pub(super) String);

/// A result of reading.
pub(super) type Result<T> = std::result::Result<T, Fault>;

impl Fault {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Fails with a fault.
pub(super) fn fail<T>(text: impl Into<String>) -> Result<T> {
    Err(Fault::new(text))
}
