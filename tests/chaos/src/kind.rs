//! The faults that the tool makes.

use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    pub const ALL: [Self; 8] =
        [Self::Kill, Self::Stop, Self::Disk, Self::Slow, Self::Partition, Self::Break, Self::Late, Self::Scale];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Disk => "disk",
            Self::Slow => "slow",
            Self::Partition => "partition",
            Self::Break => "break",
            Self::Late => "late",
            Self::Scale => "scale",
        }
    }

    pub(crate) fn lasts(self) -> bool {
        !matches!(self, Self::Kill | Self::Break | Self::Scale)
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for FaultKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|kind| kind.name()).collect();
            format!("there is no such fault; choose from {}", known.join(", "))
        })
    }
}
