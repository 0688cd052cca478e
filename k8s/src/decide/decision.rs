//! The input of a decision, and its result.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use zagros_protocol::control::ScaleRequest;

use crate::build::BuildStage;
use crate::crd::{CleanPodPolicy, HybridJobSpec, HybridJobStatus, RowsRecovery, RunProgress};
use crate::names::RunAttempt;
use crate::observe::ObservedObjects;
use crate::scale::{ServerScale, WorkerScale};
use crate::spec_hash::SpecHash;

#[derive(Debug)]
pub struct DecisionFacts<'a> {
    pub attempt: &'a RunAttempt,
    pub spec: &'a HybridJobSpec,
    /// The spec with as many servers and workers as stay in the run: another number that it says is not reached yet.
    pub present: &'a HybridJobSpec,
    pub servers: &'a ServerScale,
    pub workers: &'a WorkerScale,
    pub generation: Option<i64>,
    pub status: &'a HybridJobStatus,
    /// Hashes of the spec for an attempt that starts now.
    pub next: &'a SpecHash,
    /// Hashes of the spec for the attempt that runs.
    pub running: &'a SpecHash,
    pub recovery: RowsRecovery,
    pub observed: &'a ObservedObjects,
    /// Whether the other workers wait for a lost one, which Kubernetes then restarts.
    pub rejoins: bool,
    pub progress: Option<RunProgress>,
    pub now: Timestamp,
}

#[derive(Clone, Debug, PartialEq)]
pub struct JobDecision {
    pub status: HybridJobStatus,
    pub work: OperatorWork,
    /// When to look again, if nothing happens before.
    pub again: Option<Duration>,
    pub news: Option<EventNote>,
    /// The numbers of servers and workers that the coordinator is asked for; one that stays is 0.
    pub asks_for: Option<ScaleRequest>,
    /// Workers' pods on nodes that do not report, for which their Job waits.
    pub given_up: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorWork {
    Record,
    /// Make the objects of the attempt up to a stage. Remove those of other attempts, one step at a time.
    Run(BuildStage),
    /// Remove other attempts. Make nothing of this one before the workers of the others have ended.
    Drain,
    Clear,
    /// The job is over: remove pods as the policy says, one step at a time.
    Tidy(CleanPodPolicy),
    Delete,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventNote {
    pub is_warning: bool,
    pub reason: &'static str,
    pub note: String,
}
