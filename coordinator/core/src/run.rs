//! Where the run stands.
//!
//! ```text
//! Waiting ──► Training ──► Draining ──► Ended
//!    └───────────┴────────────────────────▲
//! ```

use std::fmt;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// Every worker has finished.
    Finished,
    /// Someone was asked to stop: who, and why.
    Interrupted(String),
    /// Something went wrong: what, and where.
    Failed(String),
}

/// Where the run stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum RunState {
    /// Members are still missing.
    #[default]
    Waiting,
    /// There is a placement and a worker.
    Training,
    /// A process was asked to end, for this reason: workers save and leave before the others do.
    Draining(String),
    /// Final: the first outcome stays.
    Ended(RunOutcome),
}

impl RunOutcome {
    /// One word: `finished`, `interrupted` or `failed`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Interrupted(_) => "interrupted",
            Self::Failed(_) => "failed",
        }
    }

    /// Why, where it did not finish.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::Finished => "",
            Self::Interrupted(reason) | Self::Failed(reason) => reason,
        }
    }
}

impl fmt::Display for RunOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason() {
            "" => write!(f, "run {}", self.word()),
            reason => write!(f, "run {}: {reason}", self.word()),
        }
    }
}

impl RunState {
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            // Workers still make their last step and save.
            Self::Training | Self::Draining(_) => "training",
            Self::Ended(outcome) => outcome.word(),
        }
    }

    pub(crate) fn outcome(&self) -> Option<&RunOutcome> {
        match self {
            Self::Ended(outcome) => Some(outcome),
            Self::Waiting | Self::Training | Self::Draining(_) => None,
        }
    }
}
