//! The workers of a run that goes on without a lost one, or waits for it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::DecisionFacts;
use crate::crd::{HybridJobStatus, RunPhase};
use crate::judge::end_of;
use crate::names::PodRole;
use crate::observe::{ObservedObjects, PodState, count_pods};

pub(super) fn workers_back(facts: &DecisionFacts<'_>) -> Option<Timestamp> {
    facts.status.workers_back.as_ref().map(|time| time.0)
}

/// The workers of a run in which the others wait for a lost one.
#[derive(Debug)]
pub(super) enum WorkerFleet<'a> {
    Whole,
    Lost(Option<&'a PodState>),
    /// A worker was lost before, and the others wait.
    Waiting(Option<&'a PodState>),
    Back,
}

impl<'a> WorkerFleet<'a> {
    /// `staying` is what is observed of the members that stay in the run.
    pub(super) fn new(facts: &DecisionFacts<'_>, staying: &'a ObservedObjects, is_ready: bool) -> Self {
        let reported = facts.status.workers_lost.as_ref().map(|time| time.0);
        if !facts.rejoins {
            return Self::Whole;
        }
        let ended = staying.lost_worker(workers_back(facts));
        let is_newer = |pod: &PodState| pod.exit.as_ref().and_then(|exit| exit.at) > reported;
        match reported {
            Some(_) if is_ready && every_worker_is_ready(facts, staying) => Self::Back,
            Some(_) if ended.is_some_and(is_newer) => Self::Lost(ended),
            Some(_) => Self::Waiting(ended),
            None if ended.is_some() || a_worker_is_gone(facts, staying) => Self::Lost(ended),
            None => Self::Whole,
        }
    }

    pub(super) fn loss_message(&self) -> Option<String> {
        match self {
            Self::Whole | Self::Back => None,
            Self::Lost(pod) | Self::Waiting(pod) => {
                Some(pod.map_or_else(|| "a worker's pod was deleted or its node was lost".to_owned(), end_of))
            }
        }
    }

    pub(super) fn record_loss(&self, status: &mut HybridJobStatus, now: Timestamp) {
        match self {
            Self::Whole | Self::Waiting(_) => {}
            Self::Lost(pod) => {
                let ended = pod.and_then(|pod| pod.exit.as_ref()?.at);
                status.workers_lost = Some(Time(ended.map_or(now, |ended| ended.max(now))));
            }
            Self::Back => {
                status.workers_lost = None;
                status.workers_back = Some(Time(now));
            }
        }
    }
}

/// It was deleted, or evicted, which its Job does not even count.
fn a_worker_is_gone(facts: &DecisionFacts<'_>, staying: &ObservedObjects) -> bool {
    let is_present = |pod: &PodState| pod.role == PodRole::Worker && pod.exit.is_none() && pod.departure.is_none();
    let present = count_pods(&staying.pods, is_present);
    let is_up = facts.status.phase == Some(RunPhase::Running);
    is_up && (present < facts.workers.joined_count() || worker_restarts(facts) > facts.status.worker_restarts)
}

/// Counts the pods themselves, because a Job counts a pod as ready for a moment after it has ended.
fn every_worker_is_ready(facts: &DecisionFacts<'_>, staying: &ObservedObjects) -> bool {
    let ready = count_pods(&staying.pods, |pod| pod.role == PodRole::Worker && pod.is_ready);
    let ended_well = facts.observed.workers.as_ref().map_or(0, |workers| workers.succeeded);
    ready.saturating_add(ended_well) >= facts.present.dense_workers.replicas
}

/// The last failure may be the end of the attempt, but then the operator does not use this number.
pub(super) fn worker_restarts(facts: &DecisionFacts<'_>) -> i32 {
    let failed = facts.observed.workers.as_ref().map_or(0, |workers| workers.failed);
    if facts.rejoins { failed } else { 0 }
}
