//! The input of a decision, and its result.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use zagros_protocol::control::ScaleRequest;

use crate::build::BuildStage;
use crate::crd::{CleanPodPolicy, HybridJobSpec, HybridJobStatus, RowsRecovery, RunProgress};
use crate::observe::ObservedObjects;
use crate::scale::{ServerScale, WorkerScale};
use crate::spec_hash::SpecHash;

/// The input of a decision.
#[derive(Debug)]
pub struct DecisionFacts<'a> {
    /// Name of the job.
    pub job: &'a str,
    pub namespace: &'a str,
    /// Its spec, checked.
    pub spec: &'a HybridJobSpec,
    /// The spec with as many servers and workers as stay in the run: another number that it says is not reached yet.
    pub present: &'a HybridJobSpec,
    /// The number of servers.
    pub servers: &'a ServerScale,
    /// The number of workers.
    pub workers: &'a WorkerScale,
    /// Generation of the spec.
    pub generation: Option<i64>,
    /// Its recorded status.
    pub status: &'a HybridJobStatus,
    /// Hashes of the spec for an attempt that starts now.
    pub next: &'a SpecHash,
    /// Hashes of the spec for the attempt that runs.
    pub running: &'a SpecHash,
    /// What the rows of a lost server come back from.
    pub recovery: RowsRecovery,
    /// The objects that exist.
    pub observed: &'a ObservedObjects,
    /// Whether the other workers wait for a lost one, which Kubernetes then restarts.
    pub rejoins: bool,
    /// What the coordinator reported just now.
    pub progress: Option<RunProgress>,
    pub now: Timestamp,
}

/// The next status and the work at hand.
#[derive(Clone, Debug, PartialEq)]
pub struct JobDecision {
    /// What to record.
    pub status: HybridJobStatus,
    /// What to do.
    pub work: OperatorWork,
    /// When to look again, if nothing happens before.
    pub again: Option<Duration>,
    /// What to publish as an Event.
    pub news: Option<EventNote>,
    /// The numbers of servers and workers that the coordinator is asked for; one that stays is 0.
    pub asks_for: Option<ScaleRequest>,
    /// Workers' pods on nodes that do not report, for which their Job waits.
    pub given_up: Vec<String>,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorWork {
    /// Record the status and look again.
    Record,
    /// Make the objects of the attempt up to a stage. Remove those of other attempts, one step at a time.
    Run(BuildStage),
    /// Remove other attempts. Make nothing of this one before the workers of the others have ended.
    Drain,
    /// Remove everything that runs, one step at a time.
    Clear,
    /// The job is over: remove pods as the policy says, one step at a time.
    Tidy(CleanPodPolicy),
    /// Delete the job itself.
    Delete,
}

/// An event for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventNote {
    /// Whether a person should look at it.
    pub is_warning: bool,
    /// The reason, as one CamelCase word.
    pub reason: &'static str,
    /// The reason, in words.
    pub note: String,
}
