//! What the doctor says, and how times, lists and names read.

use serde::Serialize;

pub use crate::time_in_words as time;

/// How bad a finding is. The worst comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The run stands still, or will end, unless a person acts or a process comes back.
    Trouble,
    /// The run goes on, slower than it could.
    Slow,
}

/// What kind of trouble it is. Scripts read these words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// The coordinator does not answer, or has ended.
    CoordinatorSilent,
    /// A member is silent, lost or stopped.
    MemberSilent,
    MemberMissing,
    /// A process lives, and the coordinator does not hear it.
    Unreachable,
    /// A server is heard, and leaves requests unanswered.
    ServerSlow,
    /// A worker is heard, and the others wait for it.
    WorkerBusy,
    Circle,
    /// A disk does not take what is written.
    DiskStopped,
    DiskFull,
    /// A data source gives no rows.
    DataSource,
    Straggler,
    MoveWaits,
    /// A dense worker that was asked for while the run trained has not joined.
    WorkerWanted,
    RunFailed,
}

/// One thing that a person should know.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    pub kind: FindingKind,
    pub severity: Severity,
    /// Which process or resource it is about: `embedding server 2`. Empty for a circle.
    pub subject: String,
    pub what: String,
    /// For how many seconds, as far as it is known.
    pub since_seconds: Option<f64>,
    /// The evidence: who waits for whom, since when, for what.
    pub why: Vec<String>,
    pub next: String,
}

impl Finding {
    /// Trouble for which there is no evidence yet.
    pub(crate) fn trouble(kind: FindingKind, subject: String, what: String, next: String) -> Self {
        Self { kind, severity: Severity::Trouble, subject, what, since_seconds: None, why: Vec::new(), next }
    }
}

/// The worst first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Diagnosis {
    pub healthy: bool,
    pub verdict: String,
    pub findings: Vec<Finding>,
}

/// A count with its noun: `1 push`, `3 pushes`.
pub(crate) fn count_noun(number: u32, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// `a`, `a and b`, `a, b and c`.
pub(crate) fn join_list(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Members of one role: `dense worker 1`, `dense workers 0, 2 and 3`.
pub(crate) fn name_members(role: &str, indices: &[u32]) -> String {
    let numbers: Vec<String> = indices.iter().map(u32::to_string).collect();
    let plural = if indices.len() == 1 { "" } else { "s" };
    format!("{role}{plural} {}", join_list(&numbers))
}

/// The ending of a verb whose subject is so many things.
pub(crate) fn verb_ending(things: usize) -> &'static str {
    if things == 1 { "s" } else { "" }
}
