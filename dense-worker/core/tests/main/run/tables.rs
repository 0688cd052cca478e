//! Tables of an embedding server in memory, with push windows by bucket groups as in ADR 39, and a log that outlives the process.
//!
//! A row is what its pushes have made of it: a bucket holds the list of the pushes that changed it.

use std::collections::{BTreeMap, BTreeSet};

pub(crate) type BucketNumber = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PushId {
    pub(crate) writer: u64,
    pub(crate) incarnation: u32,
    pub(crate) seq: u64,
}

/// Buckets that always moved together, and the pushes that they have.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WindowGroup {
    pub(crate) buckets: BTreeSet<BucketNumber>,
    pub(crate) applied: BTreeSet<PushId>,
}

/// What the log of a server has: another process starts from it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerTables {
    /// It has served a map before.
    pub(crate) has_served: bool,
    pub(crate) rows: BTreeMap<BucketNumber, Vec<PushId>>,
    pub(crate) groups: Vec<WindowGroup>,
    /// Pushes that died half-way with the process, and the buckets that have them.
    pub(crate) partial: BTreeMap<PushId, BTreeSet<BucketNumber>>,
}

/// How far a push came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushOutcome {
    Whole,
    HalfWay,
}

impl ServerTables {
    /// Applies a push to the buckets that do not have it. Dies after `dies_after` records, if that is said.
    pub(crate) fn apply(
        &mut self,
        id: PushId,
        buckets: &BTreeSet<BucketNumber>,
        dies_after: Option<u64>,
    ) -> PushOutcome {
        let mut records = 0;
        let is_new = |group: &WindowGroup| !group.applied.contains(&id);
        let todo: Vec<BucketNumber> =
            self.groups.iter().filter(|group| is_new(group)).flat_map(|group| &group.buckets).copied().collect();
        for bucket in todo.into_iter().filter(|bucket| buckets.contains(bucket)) {
            let half = self.partial.entry(id).or_default();
            if half.contains(&bucket) {
                continue;
            }
            if dies_after.is_some_and(|most| records >= most) {
                return PushOutcome::HalfWay;
            }
            half.insert(bucket);
            self.rows.entry(bucket).or_default().push(id);
            records += 1;
        }
        // The last record of a push: it is in the windows of the groups that it touches.
        for group in self.groups.iter_mut().filter(|group| !group.buckets.is_disjoint(buckets)) {
            group.applied.insert(id);
        }
        self.partial.remove(&id);
        PushOutcome::Whole
    }

    /// Whether a bucket belongs to a group here.
    pub(crate) fn has(&self, bucket: BucketNumber) -> bool {
        self.groups.iter().any(|group| group.buckets.contains(&bucket))
    }

    /// The groups of some buckets, for their next owner.
    pub(crate) fn groups_of(&self, buckets: &BTreeSet<BucketNumber>) -> Vec<WindowGroup> {
        let part = |group: &WindowGroup| WindowGroup {
            buckets: group.buckets.intersection(buckets).copied().collect(),
            applied: group.applied.clone(),
        };
        self.groups.iter().map(part).filter(|group| !group.buckets.is_empty()).collect()
    }

    pub(crate) fn purge(&mut self, is_gone: impl Fn(BucketNumber) -> bool) {
        self.rows.retain(|bucket, _| !is_gone(*bucket));
        self.groups.iter_mut().for_each(|group| group.buckets.retain(|bucket| !is_gone(*bucket)));
        self.groups.retain(|group| !group.buckets.is_empty());
    }
}
