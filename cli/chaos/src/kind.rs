//! The faults that the tool makes.

use std::fmt;
use std::str::FromStr;

/// What is done to a process or a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// The process is killed: `kill -9`.
    Kill,
    /// The process stands still for a while: SIGSTOP, then SIGCONT.
    Stop,
}

impl FaultKind {
    /// All kinds, in the order of the report.
    pub const ALL: [Self; 2] = [Self::Kill, Self::Stop];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
        }
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
