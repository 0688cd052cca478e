//! A dense worker's process: what its driver and its clients know.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use zagros_protocol::BucketMap;
use zagros_protocol::control::GroupResponse;
use zagros_worker_core::Action;

use super::server::{BucketNumber, PushId};
use crate::simulated::SimulatedWorker;

/// A split, by epoch.
pub(crate) type SplitId = (u32, u64);

/// A push without all its answers.
#[derive(Clone, Debug)]
pub(crate) struct OpenPush {
    pub(crate) id: PushId,
    pub(crate) split: SplitId,
    pub(crate) left: BTreeSet<BucketNumber>,
}

#[derive(Default)]
pub(crate) struct WorkerProcess {
    /// Its training loop starts once it has joined.
    pub(crate) worker: SimulatedWorker,
    pub(crate) instance: u64,
    pub(crate) member: u64,
    /// 0 until it has joined.
    pub(crate) incarnation: u32,
    pub(crate) next_beat: Duration,
    /// When its last answered heartbeat was sent.
    pub(crate) heard: Duration,
    pub(crate) newest_group: u64,
    pub(crate) broken_group: u64,
    pub(crate) group: Option<GroupResponse>,
    pub(crate) is_forming: bool,
    pub(crate) map: Option<BucketMap>,
    pub(crate) is_outdated: bool,
    pub(crate) next_seq: u64,
    pub(crate) pushes: Vec<OpenPush>,
    pub(crate) has_stream: bool,
    /// Batches of a split that are not trained on yet.
    pub(crate) open: BTreeMap<SplitId, u64>,
    /// Turns that it takes to save; `None` before it begins.
    pub(crate) unsaved: Option<u64>,
    pub(crate) has_left: bool,
}

impl WorkerProcess {
    /// The process and its member slot, as calls of the coordinator name them.
    pub(crate) fn identity(&self) -> (u64, u32) {
        (self.member, self.incarnation)
    }

    /// It has given its group up and has no other yet.
    pub(crate) fn is_forming_anew(&self) -> bool {
        self.is_forming && self.worker.is_forming()
    }

    /// Splits whose every gradient is acknowledged.
    pub(crate) fn completed(&self) -> Vec<SplitId> {
        let is_pushed = |split: &SplitId| self.pushes.iter().all(|push| push.split != *split);
        self.open.iter().filter(|(split, left)| **left == 0 && is_pushed(split)).map(|(split, _)| *split).collect()
    }

    /// Nothing is in flight, and every complete split is reported.
    pub(crate) fn is_drained(&self) -> bool {
        self.pushes.is_empty() && self.completed().is_empty()
    }

    pub(crate) fn is_saving(&self) -> bool {
        matches!(self.worker.at, Action::Save { .. })
    }
}
