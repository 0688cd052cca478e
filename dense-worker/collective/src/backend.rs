//! What moves the values between processes.

use std::fmt;

use crate::CollectiveError;

/// What moves the values between processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// c10d's Gloo, over TCP between the processors.
    #[default]
    Gloo,
    /// c10d's NCCL, between CUDA devices: rank r uses device r mod their number of those that its process sees. In
    /// programs with the cargo feature `nccl`.
    Nccl,
}

impl Backend {
    /// Whether this program was built with it. Says nothing about the machine.
    ///
    /// # Errors
    /// [`CollectiveError::Backend`] when it was not.
    pub fn is_built(self) -> Result<(), CollectiveError> {
        if self == Self::Nccl && !cfg!(feature = "nccl") {
            let reason = "this program was built without NCCL".to_owned();
            let next =
                "build it with `make setup-cuda && cargo build --release -p zagros --features nccl` (docs/nccl.md)";
            return Err(CollectiveError::Backend { backend: self, reason, next });
        }
        Ok(())
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gloo => "gloo",
            Self::Nccl => "nccl",
        })
    }
}
