//! The transport of values between processes.

use std::fmt;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CollectiveBackend {
    /// c10d's Gloo, over TCP between the processors.
    #[default]
    Gloo,
    /// c10d's NCCL, between CUDA devices. Rank r uses device r modulo the number of devices that its process sees. Only in
    /// programs with the cargo feature `nccl`.
    Nccl,
}

impl fmt::Display for CollectiveBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gloo => "gloo",
            Self::Nccl => "nccl",
        })
    }
}
