//! What moves the values between processes.

use std::fmt;

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

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gloo => "gloo",
            Self::Nccl => "nccl",
        })
    }
}
