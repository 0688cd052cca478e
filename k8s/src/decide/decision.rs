//! What a decision is made on, and what it says.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::build::BuildStage;
use crate::crd::{CleanPodPolicy, HybridJobSpec, HybridJobStatus, Progress};
use crate::observe::ObservedObjects;

/// What a decision is made on.
#[derive(Debug)]
pub struct DecisionFacts<'a> {
    /// Name of the job.
    pub job: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// Its spec, checked.
    pub spec: &'a HybridJobSpec,
    /// Generation of the spec.
    pub generation: Option<i64>,
    /// Its status as it is recorded.
    pub status: &'a HybridJobStatus,
    /// What the attempt would be made from now.
    pub template: &'a str,
    /// What there is.
    pub observed: &'a ObservedObjects,
    /// Whether the others wait for a lost worker, which Kubernetes then starts again.
    pub rejoins: bool,
    /// What the coordinator reported just now.
    pub progress: Option<Progress>,
    /// Now.
    pub now: Timestamp,
}

/// The next status and the work at hand.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What to record.
    pub status: HybridJobStatus,
    /// What to do.
    pub work: OperatorWork,
    /// When to look again, if nothing happens before.
    pub again: Option<Duration>,
    /// What to tell as an Event.
    pub news: Option<EventNote>,
    /// Workers' pods on nodes that nobody hears of, which their Job waits for.
    pub given_up: Vec<String>,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorWork {
    /// Record the status and look again.
    Record,
    /// Make the objects of the attempt up to a stage; what is left of others goes, one step at a time.
    Run(BuildStage),
    /// Other attempts go, and nothing of this one is made before their workers have ended.
    Drain,
    /// Everything that runs goes, one step at a time.
    Clear,
    /// The job is over: pods go as the policy says, one step at a time.
    Tidy(CleanPodPolicy),
    /// The job itself goes.
    Delete,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventNote {
    /// Whether someone should look at it.
    pub is_warning: bool,
    /// In one CamelCase word.
    pub reason: &'static str,
    /// For a person.
    pub note: String,
}
