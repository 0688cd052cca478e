//! What the doctor says.

use serde::Serialize;

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
    /// A member has not joined yet.
    MemberMissing,
    /// A process lives, and the coordinator does not hear it.
    Unreachable,
    /// A server is heard, and leaves requests unanswered.
    ServerSlow,
    /// A worker is heard, and the others wait for it.
    WorkerBusy,
    /// Processes wait for each other.
    Circle,
    /// A disk does not take what is written.
    DiskStopped,
    /// A disk is nearly full.
    DiskFull,
    /// A data source gives no rows.
    DataSource,
    /// A worker computes slower than the others.
    Straggler,
    /// Buckets that have to move do not.
    MoveWaits,
    /// A dense worker that was asked for while the run trained has not joined.
    WorkerWanted,
    /// The run is over, and failed.
    RunFailed,
}

/// One thing that a person should know.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    pub kind: FindingKind,
    pub severity: Severity,
    /// Which process or resource it is about: `embedding server 2`. Empty for a circle.
    pub subject: String,
    /// What is wrong: one sentence.
    pub what: String,
    /// For how many seconds, as far as it is known.
    pub since_seconds: Option<f64>,
    /// The evidence: who waits for whom, since when, for what.
    pub why: Vec<String>,
    pub next: String,
}

/// The worst first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Diagnosis {
    pub healthy: bool,
    pub verdict: String,
    pub findings: Vec<Finding>,
}
