//! An embedding server: what its process knows of the run, the requests that it answers, its side of a move, and its tables in memory, with
//! push windows by bucket groups as in ADR 39, and a log that outlives the process.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use zagros_protocol::control::PlacementResponse;
use zagros_protocol::{BucketMap, Generation};

/// A part of a push, as a worker sends it.
#[derive(Clone, Debug)]
pub(crate) struct PushPart {
    pub(crate) generation: u64,
    pub(crate) id: PushId,
    pub(crate) buckets: BTreeSet<BucketNumber>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushAnswer {
    Acknowledged,
    /// It was routed by an older map.
    Moved,
    /// Another process has taken the writer's slot.
    Fenced,
    Unavailable,
    /// The server died of it.
    Died,
}

#[derive(Debug, Default)]
pub(crate) struct RunServer {
    pub(crate) tables: ServerTables,
    /// Which log it is; another one is made after the log was deleted.
    pub(crate) lineage: u64,
    /// It has joined with this log before.
    pub(crate) is_known: bool,
    pub(crate) process: Option<ServerProcess>,
    /// When a process that was killed is started again.
    pub(crate) due: Option<Duration>,
}

#[derive(Debug, Default)]
pub(crate) struct ServerProcess {
    pub(crate) instance: u64,
    pub(crate) member: u64,
    /// 0 until it has joined.
    pub(crate) incarnation: u32,
    pub(crate) next_beat: Duration,
    /// The generation is 0 without a placement.
    pub(crate) generation: u64,
    owners: Option<BucketMap>,
    writers: BTreeMap<u64, u32>,
    /// It has heard that its placement is old.
    pub(crate) is_outdated: bool,
    pub(crate) outgoing: Option<SourceMove>,
    pub(crate) incoming: Option<TargetMove>,
    /// The newest move whose end it knows.
    ended: u64,
}

/// Buckets that another server copies.
#[derive(Clone, Debug)]
pub(crate) struct SourceMove {
    pub(crate) id: u64,
    pub(crate) buckets: BTreeSet<BucketNumber>,
    /// Buckets that have changed since they were sent, or were not sent.
    pub(crate) changed: BTreeSet<BucketNumber>,
    pub(crate) is_frozen: bool,
}

/// Buckets that come from another server.
#[derive(Clone, Debug)]
pub(crate) struct TargetMove {
    pub(crate) id: u64,
    pub(crate) source: usize,
    pub(crate) buckets: BTreeSet<BucketNumber>,
    pub(crate) stage: CopyStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyStage {
    Begin,
    Copy,
    CaughtUp,
    Freeze,
    Report,
}

impl RunServer {
    pub(crate) fn push(&mut self, index: usize, part: &PushPart, dies_after: Option<u64>) -> PushAnswer {
        let Some(process) = self.process.as_mut().filter(|process| process.generation > 0) else {
            return PushAnswer::Unavailable;
        };
        match process.writers.get(&part.id.writer) {
            Some(newest) if part.id.incarnation < *newest => return PushAnswer::Fenced,
            Some(newest) if part.id.incarnation == *newest => {}
            _ => {
                process.is_outdated = true;
                return PushAnswer::Unavailable;
            }
        }
        if part.generation < process.generation {
            return PushAnswer::Moved;
        }
        if part.generation > process.generation {
            process.is_outdated = true;
            return PushAnswer::Unavailable;
        }
        if process.outgoing.as_ref().is_some_and(|outgoing| outgoing.is_frozen) {
            return PushAnswer::Unavailable;
        }
        // Invariant PL-3.
        assert!(part.buckets.iter().all(|bucket| process.owns(index, *bucket)), "server {index} is asked for {part:?}");
        let has_windows = part.buckets.iter().all(|bucket| self.tables.has(*bucket));
        assert!(has_windows, "server {index} has no window for {part:?}");
        match self.tables.apply(part.id, &part.buckets, dies_after) {
            PushOutcome::HalfWay => PushAnswer::Died,
            PushOutcome::Whole => {
                if let Some(outgoing) = &mut process.outgoing {
                    outgoing.changed.extend(outgoing.buckets.intersection(&part.buckets));
                }
                PushAnswer::Acknowledged
            }
        }
    }

    pub(crate) fn adopt(&mut self, index: usize, placement: &PlacementResponse) {
        let Some(process) = self.process.as_mut() else { return };
        if placement.generation == 0 || placement.generation < process.generation {
            return;
        }
        let map = BucketMap::unpack_owners(Generation(placement.generation), &placement.owners).expect("a map");
        let active = placement.bucket_move.as_ref();
        process.writers = placement.writers.iter().map(|writer| (writer.member, writer.incarnation)).collect();
        (process.generation, process.owners, process.is_outdated) = (placement.generation, Some(map), false);
        // A move that is named no more is decided: the map says how.
        let is_active = |id: u64| active.is_some_and(|active| active.id == id);
        process.outgoing = process.outgoing.take().filter(|outgoing| is_active(outgoing.id));
        process.incoming = process.incoming.take().filter(|incoming| is_active(incoming.id));
        if let Some(active) = active.filter(|active| active.id > process.ended) {
            let buckets: BTreeSet<BucketNumber> =
                active.buckets.as_chunks::<4>().0.iter().map(|bucket| u32::from_le_bytes(*bucket)).collect();
            if active.target as usize == index && process.incoming.is_none() {
                let (id, source) = (active.id, active.source as usize);
                process.incoming = Some(TargetMove { id, source, buckets, stage: CopyStage::Begin });
            }
        }
        let coming = process.incoming.as_ref().filter(|incoming| incoming.stage != CopyStage::Begin);
        let coming = coming.map(|incoming| incoming.buckets.clone()).unwrap_or_default();
        let owns = |bucket: BucketNumber| process.owns(index, bucket);
        self.tables.purge(|bucket| !owns(bucket) && !coming.contains(&bucket));
        // At first a server has one group: what it owns. Later buckets come with theirs.
        if !std::mem::replace(&mut self.tables.has_served, true) {
            let buckets: BTreeSet<BucketNumber> = (0..super::world::BUCKETS).filter(|bucket| owns(*bucket)).collect();
            self.tables.groups.push(WindowGroup { buckets, applied: BTreeSet::new() });
        }
        // A process that is gone does not repeat what died half-way.
        let writers = &process.writers;
        self.tables.partial.retain(|id, _| writers.get(&id.writer).is_none_or(|newest| *newest <= id.incarnation));
    }

    /// The source of a move notes what changes from now on.
    pub(crate) fn begin(&mut self, id: u64, buckets: &BTreeSet<BucketNumber>) -> bool {
        let Some(process) = self.process.as_mut().filter(|process| process.generation > 0) else { return false };
        if process.outgoing.as_ref().is_some_and(|outgoing| outgoing.id == id) {
            return true;
        }
        if process.outgoing.is_some() || process.ended >= id {
            return false;
        }
        let changed = buckets.clone();
        process.outgoing = Some(SourceMove { id, buckets: buckets.clone(), changed, is_frozen: false });
        true
    }

    pub(crate) fn outgoing(&mut self, id: u64) -> Option<&mut SourceMove> {
        self.process.as_mut()?.outgoing.as_mut().filter(|outgoing| outgoing.id == id)
    }

    pub(crate) fn end_move(&mut self, id: u64) {
        if let Some(process) = &mut self.process {
            process.ended = process.ended.max(id);
            process.incoming = None;
            process.is_outdated = true;
        }
    }
}

impl ServerProcess {
    pub(crate) fn new(instance: u64) -> Self {
        Self { instance, ..Self::default() }
    }

    fn owns(&self, index: usize, bucket: BucketNumber) -> bool {
        self.owners.as_ref().and_then(|map| map.bucket_owner(bucket)).is_some_and(|owner| owner.0 as usize == index)
    }
}

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
