//! The run's coordinator: the real state machine, with the calls that processes of a run make.

use std::time::Duration;

use zagros_coordinator_core::{Core, CoreConfig, MemberSlot, Role, SplitOrder};
use zagros_job::Mode;
use zagros_protocol::control::assign_response::Work;
use zagros_protocol::control::{
    AssignRequest, CompleteRequest, DataFile, GroupRequest, GroupResponse, HeartbeatRequest, JoinRequest,
};
use zagros_protocol::{PROTOCOL_VERSION, Refusal, RunId};

use crate::scenario::Scenario;

/// Rows of the shuffle window: the default of a job.
const WINDOW_ROWS: u64 = 32_768;
/// Fingerprint of the job, the same for all.
const FINGERPRINT: u64 = 1;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SimMembership {
    pub(crate) member: u64,
    pub(crate) incarnation: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitAnswer {
    Split {
        id: u64,
        samples: u64,
    },
    /// Nothing for so long.
    Wait(Duration),
    /// Nothing more in this epoch.
    Nothing,
}

#[derive(Debug)]
pub(crate) struct SimCoordinator {
    core: Core,
    files: Vec<DataFile>,
    instances: u64,
}

impl SimCoordinator {
    /// A run over `samples` samples. Without heartbeats no lease ends.
    pub(crate) fn new(scenario: &Scenario, samples: u64, has_heartbeats: bool) -> Self {
        let (workers, servers) = (scenario.worker_count() as u32, scenario.server_count().max(1) as u32);
        let lease = if has_heartbeats { scenario.settings.lease_seconds } else { 1e9 };
        let config = CoreConfig {
            run: RunId(1),
            job: "simulated".to_owned(),
            servers,
            workers,
            min_workers: workers,
            max_workers: workers,
            buckets: 1024.max(servers),
            epochs: 1,
            order: SplitOrder::Shuffled { seed: scenario.settings.seed, window_rows: WINDOW_ROWS },
            asynchronous: scenario.work.mode == Mode::Async,
            staleness: scenario.work.staleness as u32,
            lease: Duration::from_secs_f64(lease),
            // A lost process always comes back.
            timeout: Duration::from_secs(1 << 32),
            fingerprint: FINGERPRINT,
            ..CoreConfig::default()
        };
        // One byte for each sample, so that a split is so many samples.
        let files = vec![DataFile { path: "train".to_owned(), bytes: samples, splittable: true, fingerprint: 0 }];
        Self { core: Core::new(config), files, instances: 0 }
    }

    /// A process takes a slot. `recovered`: a server has the rows of the process before.
    pub(crate) fn join(&mut self, now: f64, slot: MemberSlot, recovered: bool) -> Result<SimMembership, Refusal> {
        self.instances += 1;
        let is_worker = slot.role == Role::DenseWorker;
        let request = JoinRequest {
            role: slot.role.to_wire(),
            index: slot.index,
            address: format!("{slot}"),
            instance: self.instances,
            job_fingerprint: FINGERPRINT,
            protocol_version: PROTOCOL_VERSION,
            files: if is_worker { self.files.clone() } else { Vec::new() },
            lineage: if is_worker { 0 } else { u64::from(slot.index) + 1 },
            recovered,
            supersede: is_worker,
            ..JoinRequest::default()
        };
        let joined = self.core.join(time(now), &request)?;
        Ok(SimMembership { member: joined.member, incarnation: joined.incarnation })
    }

    /// Renews a lease. Returns the newest group that has lost a worker.
    pub(crate) fn heartbeat(&mut self, now: f64, who: SimMembership) -> Result<u64, Refusal> {
        let SimMembership { member, incarnation } = who;
        let request = HeartbeatRequest { member, incarnation, ..HeartbeatRequest::default() };
        Ok(self.core.heartbeat(time(now), &request)?.broken_group)
    }

    pub(crate) fn assign_split(
        &mut self,
        now: f64,
        who: SimMembership,
        continuing: bool,
    ) -> Result<SplitAnswer, Refusal> {
        let SimMembership { member, incarnation } = who;
        let answer = self.core.assign(
            time(now),
            &AssignRequest { member, incarnation, epoch: 0, continuing, ..AssignRequest::default() },
        )?;
        Ok(match answer.work {
            Some(Work::Split(split)) => SplitAnswer::Split { id: split.id, samples: split.end - split.start },
            Some(Work::Wait(wait)) => SplitAnswer::Wait(Duration::from_millis(u64::from(wait.retry_ms))),
            Some(Work::EpochDone(_) | Work::ResumeCursor(_)) | None => SplitAnswer::Nothing,
        })
    }

    /// Splits whose every gradient is acknowledged.
    pub(crate) fn complete_splits(&mut self, now: f64, who: SimMembership, splits: Vec<u64>) -> Result<(), Refusal> {
        let SimMembership { member, incarnation } = who;
        let request = CompleteRequest { member, incarnation, epoch: 0, splits, bad_rows: Vec::new() };
        self.core.complete(time(now), &request).map(|_| ())
    }

    /// The group of a worker that asks for one newer than `after`; its generation is not above `after` while a worker is missing.
    pub(crate) fn join_group(&mut self, now: f64, who: SimMembership, after: u64) -> Result<GroupResponse, Refusal> {
        let SimMembership { member, incarnation } = who;
        self.core.group(time(now), &GroupRequest { member, incarnation, after })
    }

    pub(crate) fn is_epoch_complete(&mut self, now: f64) -> bool {
        let status = self.core.status(time(now));
        status.splits > 0 && status.splits_done == status.splits
    }
}

fn time(now: f64) -> Duration {
    Duration::from_secs_f64(now.max(0.0))
}
