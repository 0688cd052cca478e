//! The state of a run, and its outcome.
//!
//! ```text
//! Waiting ──► Training ──► Draining ──► Ended
//!    │           ├──► Saved ──────────────▲
//!    └───────────┴────────────────────────┘
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};
use zagros_protocol::control::{LeaveRequest, Outcome};
use zagros_protocol::{Refusal, RefusalKind};

use crate::MemberSlot;

/// Bytes of a member's reason to leave that are kept.
const LONGEST_REASON: usize = 16 << 10;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunOutcome {
    Finished,
    /// Who was asked to stop, and why.
    Interrupted(String),
    Failed(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RunState {
    #[default]
    Waiting,
    Training,
    /// Model and summary are written, and every worker of the process group knows. The workers only have to leave: the run does
    /// not wait for one that is lost now.
    Saved,
    /// A process was asked to end, for this reason. Workers save and leave first.
    Draining(String),
    Ended(RunOutcome),
}

impl RunOutcome {
    /// The outcome that a member reports when it leaves, with the member's name.
    pub(crate) fn from_report(slot: MemberSlot, request: &LeaveRequest) -> Result<Self, Refusal> {
        // The reason is kept, sent to every member and shown.
        let reported = &request.reason[..request.reason.floor_char_boundary(LONGEST_REASON)];
        let reason = if reported.is_empty() { slot.to_string() } else { format!("{slot}: {reported}") };
        match Outcome::try_from(request.outcome) {
            Ok(Outcome::Finished) => Ok(Self::Finished),
            Ok(Outcome::Interrupted) => Ok(Self::Interrupted(reason)),
            Ok(Outcome::Failed) => Ok(Self::Failed(reason)),
            Ok(Outcome::Unspecified) | Err(_) => Err(Refusal::invalid(format!("{slot} leaves without an outcome"))),
        }
    }

    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Interrupted(_) => "interrupted",
            Self::Failed(_) => "failed",
        }
    }

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
            "" => write!(f, "run {}", self.as_str()),
            reason => write!(f, "run {}: {reason}", self.as_str()),
        }
    }
}

impl RunState {
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            // Workers still make their last step and save.
            Self::Training | Self::Saved | Self::Draining(_) => "training",
            Self::Ended(outcome) => outcome.as_str(),
        }
    }

    /// Whether workers train, or have saved what they trained and are about to leave.
    pub(crate) fn is_under_way(&self) -> bool {
        matches!(self, Self::Training | Self::Saved)
    }

    pub(crate) fn drain_reason(&self) -> Option<&str> {
        if let Self::Draining(reason) = self { Some(reason) } else { None }
    }

    pub(crate) fn check_not_ended(&self) -> Result<(), Refusal> {
        match self.outcome() {
            Some(outcome) => Err(Refusal::new(RefusalKind::Fenced, format!("the run is over ({outcome})"))),
            None => Ok(()),
        }
    }

    pub(crate) fn outcome(&self) -> Option<&RunOutcome> {
        if let Self::Ended(outcome) = self { Some(outcome) } else { None }
    }
}
