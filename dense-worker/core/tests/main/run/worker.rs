//! A dense worker's process: what its driver and its clients know.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use zagros_protocol::BucketMap;
use zagros_protocol::control::GroupResponse;
use zagros_worker_core::{Action, LoopEnd, TrainingLoop};

use super::server::{BucketNumber, PushId};

/// A batch: epoch, split, number in the split.
pub(crate) type BatchId = (u32, u64, u64);
/// A split, by epoch.
pub(crate) type SplitId = (u32, u64);

/// A push without all its answers.
#[derive(Clone, Debug)]
pub(crate) struct OpenPush {
    pub(crate) id: PushId,
    pub(crate) split: SplitId,
    pub(crate) left: BTreeSet<BucketNumber>,
}

pub(crate) struct WorkerProcess {
    pub(crate) instance: u64,
    pub(crate) member: u64,
    /// 0 until it has joined.
    pub(crate) incarnation: u32,
    pub(crate) next_beat: Duration,
    /// When its last answered heartbeat was sent.
    pub(crate) heard: Duration,
    pub(crate) newest_group: u64,
    pub(crate) broken_group: u64,
    pub(crate) training: Option<TrainingLoop>,
    pub(crate) at: Action,
    pub(crate) group: Option<GroupResponse>,
    pub(crate) is_forming: bool,
    pub(crate) map: Option<BucketMap>,
    pub(crate) is_outdated: bool,
    pub(crate) next_seq: u64,
    pub(crate) pushes: Vec<OpenPush>,
    /// Read and not trained on.
    pub(crate) stream: VecDeque<BatchId>,
    pub(crate) has_stream: bool,
    /// Batches of a split that are not trained on yet.
    pub(crate) open: BTreeMap<SplitId, u64>,
    pub(crate) batch: Option<BatchId>,
    pub(crate) in_flight: Option<BatchId>,
    pub(crate) steps: u64,
    pub(crate) evaluated: Option<u64>,
    /// Turns that it takes to save; `None` before it begins.
    pub(crate) unsaved: Option<u64>,
    pub(crate) ending: Option<LoopEnd>,
    pub(crate) has_left: bool,
}

impl WorkerProcess {
    pub(crate) fn new(instance: u64) -> Self {
        Self {
            instance,
            member: 0,
            incarnation: 0,
            next_beat: Duration::ZERO,
            heard: Duration::ZERO,
            newest_group: 0,
            broken_group: 0,
            training: None,
            at: Action::Resume,
            group: None,
            is_forming: true,
            map: None,
            is_outdated: true,
            next_seq: 1,
            pushes: Vec::new(),
            stream: VecDeque::new(),
            has_stream: false,
            open: BTreeMap::new(),
            batch: None,
            in_flight: None,
            steps: 0,
            evaluated: None,
            unsaved: None,
            ending: None,
            has_left: false,
        }
    }

    /// Generation of its group; 0 without one.
    pub(crate) fn generation(&self) -> u64 {
        self.group.as_ref().map_or(0, |group| group.generation)
    }

    /// It has given its group up and has no other yet.
    pub(crate) fn is_forming_anew(&self) -> bool {
        self.is_forming && matches!(self.at, Action::Form { .. })
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

    pub(crate) fn epoch(&self) -> u32 {
        self.training.as_ref().map_or(0, TrainingLoop::epoch)
    }

    pub(crate) fn has_trained(&self) -> bool {
        self.training.as_ref().is_some_and(|training| training.rank_progress().has_trained)
    }
}
