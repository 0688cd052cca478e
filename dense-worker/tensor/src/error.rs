//! What libtorch answers when a call fails.

/// A call of libtorch failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct TorchError {
    /// In libtorch's words.
    pub reason: String,
}

impl From<String> for TorchError {
    fn from(reason: String) -> Self {
        Self { reason }
    }
}
