//! The workers of a run that goes on without a lost one, or waits for it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::Planner;
use super::verdict::end_of;
use crate::crd::RunPhase;
use crate::names::PodRole;
use crate::observe::PodState;
use crate::validate::ValidJob;

/// The workers of a run in which the others wait for a lost one.
#[derive(Debug)]
pub(super) enum WorkerFleet {
    Whole,
    /// How a worker was lost, and when it ended.
    Lost(String, Option<Timestamp>),
    /// A worker was lost before, and the others wait.
    Waiting(String),
    Back,
}

impl WorkerFleet {
    pub(super) fn loss(&self) -> Option<&str> {
        match self {
            Self::Whole | Self::Back => None,
            Self::Lost(how, _) | Self::Waiting(how) => Some(how),
        }
    }
}

impl Planner<'_> {
    pub(super) fn workers_back(&self) -> Option<Timestamp> {
        self.recorded.workers_back.as_ref().map(|time| time.0)
    }

    pub(super) fn worker_fleet(&self, is_ready: bool) -> WorkerFleet {
        if !self.workers_rejoin() {
            return WorkerFleet::Whole;
        }
        let ended = self.staying.lost_worker(self.workers_back());
        let end_time = ended.and_then(|pod| pod.exit.as_ref()?.at);
        let how = || ended.map_or_else(|| "a worker's pod was deleted or its node was lost".to_owned(), end_of);
        match self.recorded.workers_lost.as_ref().map(|time| time.0) {
            Some(_) if is_ready && self.every_worker_is_ready() => WorkerFleet::Back,
            Some(reported) if end_time > Some(reported) => WorkerFleet::Lost(how(), end_time),
            Some(_) => WorkerFleet::Waiting(how()),
            None if ended.is_some() || self.is_worker_gone() => WorkerFleet::Lost(how(), end_time),
            None => WorkerFleet::Whole,
        }
    }

    pub(super) fn record_fleet(&mut self, fleet: &WorkerFleet) {
        let now = self.seen.now;
        match fleet {
            WorkerFleet::Whole | WorkerFleet::Waiting(_) => {}
            WorkerFleet::Lost(_, ended) => {
                self.status.workers_lost = Some(Time(ended.map_or(now, |ended| ended.max(now))));
            }
            WorkerFleet::Back => {
                self.status.workers_lost = None;
                self.status.workers_back = Some(Time(now));
            }
        }
        self.status.worker_restarts = self.worker_restarts();
    }

    /// Whether the other workers wait for a lost one, which Kubernetes then restarts.
    pub(super) fn workers_rejoin(&self) -> bool {
        self.valid.as_ref().is_some_and(ValidJob::workers_rejoin)
    }

    /// It was deleted, or evicted, which its Job does not even count.
    fn is_worker_gone(&self) -> bool {
        let is_present = |pod: &PodState| pod.role == PodRole::Worker && pod.exit.is_none() && pod.departure.is_none();
        let is_missing = self.staying.count_pods(is_present) < self.numbers.joined_workers();
        let is_up = self.recorded.phase == Some(RunPhase::Running);
        is_up && (is_missing || self.worker_restarts() > self.recorded.worker_restarts)
    }

    /// Counts the pods themselves, because a Job counts a pod as ready for a moment after it has ended.
    fn every_worker_is_ready(&self) -> bool {
        self.staying.ready_count(PodRole::Worker) >= self.present.dense_workers.replicas
    }

    /// The last failure may be the end of the attempt, but then the operator does not use this number.
    fn worker_restarts(&self) -> i32 {
        let failed = self.seen.run.workers.as_ref().map_or(0, |workers| workers.failed);
        if self.workers_rejoin() { failed } else { 0 }
    }
}
