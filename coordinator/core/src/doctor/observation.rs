//! What is known of a run at one moment.

use std::fmt;
use std::time::Duration;

use crate::{MemberSlot, Role};
use serde::{Deserialize, Serialize};
use zagros_protocol::control::{LongWait, MemberStatus, ScaleStatus, ServerWait, StageSeconds, StatusResponse};

/// A run at one moment, from its coordinator or put together from its processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    pub job: String,
    /// `waiting`, `training`, `finished`, `interrupted` or `failed`.
    pub state: String,
    /// What the run waits for, or why it ended; empty when there is nothing to say.
    pub reason: String,
    pub servers: u32,
    pub workers: u32,
    pub lease: Duration,
    pub timeout: Duration,
    pub step: u64,
    /// The newest process group: indices of its workers. Empty before the first.
    pub group: Vec<u32>,
    /// The buckets that move between embedding servers. `None` while none has to.
    pub moving: Option<ScaleStatus>,
    /// Everyone who ever joined.
    pub members: Vec<ObservedMember>,
    pub coordinator: CoordinatorSign,
    /// The run's processes on this machine, as far as they are known.
    pub processes: Vec<ObservedProcess>,
    /// How old this observation is: how long ago the coordinator wrote it.
    pub age: Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CoordinatorSign {
    #[default]
    Answers,
    /// It has not: in words, who was asked and how.
    Silent(String),
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Party {
    Coordinator,
    Member(MemberSlot),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObservedMember {
    pub slot: MemberSlot,
    /// `alive`, `left`, `lost`, `away` or `given up`.
    pub state: String,
    /// `host:port` of its data path; empty for a worker without one.
    pub address: String,
    pub silent: Duration,
    /// Time since a worker's step last changed; `None` before its first.
    pub still: Option<Duration>,
    pub step: u64,
    pub stages: Option<StageSeconds>,
    pub requests: Vec<ServerWait>,
    /// As of now: the time since it was heard is part of their ages.
    pub waits: Vec<LongWait>,
    /// Free and all bytes of the disk it writes to.
    pub disk: Option<(u64, u64)>,
    /// Requests that a server is working on.
    pub under_way: u32,
}

/// What a process says of its own waits, at `/waits` of its HTTP port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnWaits {
    /// Its long waits, oldest first.
    pub waits: Vec<LongWait>,
    pub requests: Vec<ServerWait>,
}

/// A process of this machine, as the operating system knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObservedProcess {
    pub party: Party,
    pub pid: u32,
    pub state: ProcessState,
    /// Whether its HTTP port answers; `None` where the doctor has not asked it.
    pub answers: Option<bool>,
    /// How it ended, once it has.
    pub end: Option<ProcessEnd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessState {
    Lives,
    Stopped,
    /// It waits for a disk, and no signal reaches it.
    DiskSleep,
    Gone,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessEnd {
    /// In words: `was killed by signal 9`.
    pub how: String,
    /// Whether this is an end as it should be.
    pub well: bool,
    /// Whether it was asked to end.
    pub asked: bool,
    /// The order in which processes ended: the first has the lowest number.
    pub order: u64,
    pub last_error: Option<String>,
}

impl Observation {
    pub(crate) fn find_member(&self, slot: MemberSlot) -> Option<&ObservedMember> {
        self.members.iter().find(|member| member.slot == slot)
    }

    /// The newest process of a party on this machine.
    pub(crate) fn newest_process(&self, party: Party) -> Option<&ObservedProcess> {
        self.processes.iter().rfind(|process| process.party == party)
    }

    /// Whether the run still goes on, as far as is known.
    pub fn is_live(&self) -> bool {
        !matches!(self.state.as_str(), "finished" | "interrupted" | "failed")
    }

    /// The slots that no process has taken, and without which the run does not train.
    pub(crate) fn missing_slots(&self) -> Vec<MemberSlot> {
        // A process group that has formed waits for no worker that was asked for later.
        let workers = self.missing_workers().into_iter().filter(|_| self.group.is_empty());
        // While buckets move, training goes on without the servers that are to come.
        let servers = self.missing_servers().into_iter().filter(|_| self.moving.is_none());
        servers.chain(workers).collect()
    }

    /// The slots of dense workers that no process has taken.
    pub(crate) fn missing_workers(&self) -> Vec<MemberSlot> {
        (0..self.workers).map(MemberSlot::worker).filter(|slot| self.find_member(*slot).is_none()).collect()
    }

    /// The slots of embedding servers that no process has taken.
    pub(crate) fn missing_servers(&self) -> Vec<MemberSlot> {
        (0..self.servers).map(MemberSlot::server).filter(|slot| self.find_member(*slot).is_none()).collect()
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinator => f.write_str("coordinator"),
            Self::Member(slot) => slot.fmt(f),
        }
    }
}

impl From<&StatusResponse> for Observation {
    fn from(status: &StatusResponse) -> Self {
        Self {
            job: status.job.clone(),
            state: status.state.clone(),
            reason: status.reason.clone(),
            servers: status.servers,
            workers: status.workers,
            lease: Duration::from_millis(status.lease_ms),
            timeout: Duration::from_millis(status.timeout_ms),
            step: status.step,
            group: status.group.clone(),
            moving: status.scale.clone().filter(|scale| scale.buckets_left > 0),
            members: status.members.iter().filter_map(ObservedMember::from_status).collect(),
            ..Self::default()
        }
    }
}

impl ObservedMember {
    /// `None` for a role that this release does not know.
    fn from_status(member: &MemberStatus) -> Option<Self> {
        let progress = member.progress.unwrap_or_default();
        Some(Self {
            slot: MemberSlot { role: Role::from_wire(member.role)?, index: member.index },
            state: member.state.clone(),
            address: member.address.clone(),
            silent: Duration::from_millis(member.silent_ms),
            still: member.still_ms.map(Duration::from_millis),
            step: progress.step,
            stages: progress.stages,
            requests: member.waits.clone(),
            waits: member.long_waits.iter().map(|wait| aged(wait, member.silent_ms)).collect(),
            disk: member.disk.map(|disk| (disk.free_bytes, disk.size_bytes)),
            under_way: member.load.map_or(0, |load| load.under_way),
        })
    }
}

/// A wait that was reported so many milliseconds ago.
fn aged(wait: &LongWait, ago_ms: u64) -> LongWait {
    let left_ms = wait.left_ms.map(|left| left.saturating_sub(ago_ms));
    LongWait { age_ms: wait.age_ms.saturating_add(ago_ms), left_ms, ..wait.clone() }
}

pub(crate) fn wait_age(wait: &LongWait) -> Duration {
    Duration::from_millis(wait.age_ms)
}
