//! The steps of a plan: what the operator does, in order, to bring a run nearer to what its HybridJob says.

use std::time::Duration;

use zagros_protocol::control::ScaleRequest;

use crate::build::{ObjectManifest, SharedObject};
use crate::crd::{GangScheduler, HybridJobStatus};
use crate::observe::{OwnedKind, RemovalScope};

/// How soon a removal is looked at again, if no watch reports a change before.
pub const SOON: Duration = Duration::from_secs(5);
/// How long a deleted job waits for the end of its workers to be requested, whatever keeps Kubernetes from it.
pub const LATE: Duration = Duration::from_secs(300);

#[derive(Clone, Debug, PartialEq)]
pub enum PlanStep {
    SetStatus(Box<HybridJobStatus>),
    Publish(EventNote),
    /// Whether the HybridJob is held until its workers have ended.
    Hold(bool),
    /// Makes the Secret of the run, unless it is there, and reads it.
    MakeSecret,
    /// Creates or patches objects that do not depend on each other.
    Apply(Vec<ObjectManifest>),
    /// Asks Kubernetes itself, because the caches may not know a new worker. The plan ends here if there is one.
    ConfirmNoWorkers(RemovalScope),
    /// The pods of this Job end, and those that have ended stay with their logs.
    Suspend(String),
    Delete(ObjectDeletion),
    /// The node of this pod does not report. The pod counts as failed, so that its Job makes another.
    GiveUp(String),
    /// Asks the coordinator for these numbers. The Event says so if it admits them.
    Scale(ScaleRequest, EventNote),
    DeleteJob,
    /// The plan ends, and why. The next one is made after this time, if nothing happens before.
    Wait(&'static str, Option<Duration>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectDeletion {
    /// A StatefulSet or a Job, with its pods.
    Workload(OwnedKind, String),
    /// What the pods of attempts need until they have ended: Services, job files, claims, groups.
    Attempts(RemovalScope, Option<GangScheduler>),
    Claims,
    Shared(SharedObject),
}

impl ObjectDeletion {
    /// The request as it is remembered. An object that is applied and one that is deleted forget each other.
    pub fn title(&self, job: &str) -> String {
        match self {
            Self::Shared(shared) => shared.title(job),
            Self::Workload(..) | Self::Attempts(..) | Self::Claims => format!("deletion of {self:?}"),
        }
    }
}

/// The request for the Secret of the run as it is remembered.
pub const SECRET_TITLE: &str = "Secret of the run";
/// The hash of a request that applies no manifest.
pub const NO_CONTENT: u64 = 0;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventNote {
    pub is_warning: bool,
    pub reason: &'static str,
    pub note: String,
}

impl EventNote {
    pub fn normal_note(reason: &'static str, note: impl Into<String>) -> Self {
        Self { is_warning: false, reason, note: note.into() }
    }

    pub fn warning_note(reason: &'static str, note: impl Into<String>) -> Self {
        Self { is_warning: true, reason, note: note.into() }
    }
}
