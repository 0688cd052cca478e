//! The faults that the tool makes.

use std::fmt;

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum FaultKind {
    /// The process is killed: `kill -9`.
    Kill,
    /// The process stands still for a while: SIGSTOP, then SIGCONT.
    Stop,
    /// The process cannot write to files for a while.
    Disk,
    /// The link is slow for a while.
    Slow,
    /// The link passes nothing for a while, and gives neither end an error.
    Partition,
    /// All connections of the link end at once. Answers that were under way are lost, so requests are repeated.
    Break,
    /// All connections of the link end, and requests that were under way arrive later, after their repetitions.
    Late,
    /// The run gets another number of embedding servers. Buckets move while the next fault is made.
    Scale,
}

impl FaultKind {
    pub(crate) fn lasts(self) -> bool {
        !matches!(self, Self::Kill | Self::Break | Self::Scale)
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}").to_lowercase())
    }
}
