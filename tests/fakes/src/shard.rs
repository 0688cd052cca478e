//! An embedding server whose rows are known. It checks requests as a server does, records what it applies, and fails as
//! scripted.
//!
//! The trait of a shard is the client's, which stands above this crate: a crate that uses the fake says in a few lines
//! that it is a shard.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use zagros_protocol::control::{
    DescribeResponse, FileDigest, ForgetRequest, ForgetResponse, LoadRequest, LoadResponse, SaveRequest, SaveResponse,
    TableStatus,
};
use zagros_protocol::datapath::{HintRequest, HintResponse, LookupRequest, LookupResponse, PushRequest, PushResponse};
use zagros_protocol::packed::{RequestBags, decode_ids, decode_values, encode_values};
use zagros_protocol::{BucketMap, Generation, Refusal, RefusalKind, RowKey, Segments, bucket_of};
use zagros_zip::ZipEq;

use crate::control_plane::BUCKETS;

#[derive(Clone, Copy, Debug)]
pub enum ScriptedFault {
    Refuse(RefusalKind),
    /// It serves the request, and the answer is lost.
    LoseAnswer,
    Hang,
    /// It serves the request after this many milliseconds.
    Delay(u64),
}

/// What a server does with every request of a kind, from one on.
#[derive(Clone, Copy, Debug, Default)]
struct CallScript {
    /// Lookups from this one on are refused, counted from 1.
    first_bad_lookup: Option<u64>,
    /// Pushes from this one on are refused, counted from 1.
    first_bad_push: Option<u64>,
    /// Pushes are acknowledged only once so many batches were open at a time.
    open_first: usize,
    hangs: bool,
    cannot_save: bool,
}

/// An embedding server for tests. Without a script it serves everything that a server would.
pub struct FakeShard {
    name: String,
    index: u32,
    map: Mutex<BucketMap>,
    script: CallScript,
    lookups: AtomicU64,
    pushes: AtomicU64,
    /// Batches between lookup and acknowledgement: now, and at most so far.
    open: AtomicUsize,
    most_open: AtomicUsize,
    /// One for each request to come, in order; then requests are served.
    pub faults: Mutex<VecDeque<ScriptedFault>>,
    groups: Mutex<WindowGroups>,
    /// Every applied gradient, by row.
    pub ledger: Mutex<BTreeMap<RowKey, Vec<Vec<f32>>>>,
    pub save_attempts: Mutex<Vec<u64>>,
    pub storage_generations: Mutex<Vec<u64>>,
    pub hinted: Mutex<Vec<Vec<u64>>>,
    pub forgotten: Mutex<Vec<ForgetRequest>>,
}

/// The only server of a run, under the placement of the default [`crate::FakeControlPlane`].
impl Default for FakeShard {
    fn default() -> Self {
        Self::new(0, BucketMap::split_evenly(Generation(1), BUCKETS, 1))
    }
}

pub fn row_value(key: RowKey, column: usize) -> f32 {
    // Small multiples of a power of two: every encoding holds them exactly, and a network does not overflow on them.
    ((key.id % 31) + u64::from(key.table.0 % 7) * 4 + column as u64 % 5) as f32 / 64.0
}

pub fn added(mut sum: Vec<f32>, values: &[f32]) -> Vec<f32> {
    sum.iter_mut().zip_eq(values).for_each(|(sum, value)| *sum += value);
    sum
}

impl FakeShard {
    pub fn new(index: u32, map: BucketMap) -> Self {
        Self {
            name: format!("embedding server {index} (fake)"),
            index,
            map: Mutex::new(map),
            script: CallScript::default(),
            lookups: AtomicU64::new(0),
            pushes: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            most_open: AtomicUsize::new(0),
            faults: Mutex::default(),
            groups: Mutex::default(),
            ledger: Mutex::default(),
            save_attempts: Mutex::default(),
            storage_generations: Mutex::default(),
            hinted: Mutex::default(),
            forgotten: Mutex::default(),
        }
    }

    /// Acknowledges pushes only once so many batches were looked up and not acknowledged at a time.
    #[must_use]
    pub fn acknowledging_once_open(mut self, batches: usize) -> Self {
        self.script.open_first = batches;
        self
    }

    /// Refuses every lookup from this one on, counted from 1.
    #[must_use]
    pub fn failing_at_lookup(mut self, call: u64) -> Self {
        self.script.first_bad_lookup = Some(call);
        self
    }

    /// Refuses every push from this one on, counted from 1.
    #[must_use]
    pub fn failing_at_push(mut self, call: u64) -> Self {
        self.script.first_bad_push = Some(call);
        self
    }

    #[must_use]
    pub fn hanging(mut self) -> Self {
        self.script.hangs = true;
        self
    }

    #[must_use]
    pub fn failing_to_save(mut self) -> Self {
        self.script.cannot_save = true;
        self
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn lookups(&self) -> u64 {
        self.lookups.load(Ordering::Acquire)
    }

    /// Pushes that reached it, repeated ones included.
    pub fn pushes(&self) -> u64 {
        self.pushes.load(Ordering::Acquire)
    }

    pub fn most_open(&self) -> usize {
        self.most_open.load(Ordering::Acquire)
    }

    /// Sets the generation, as if the server had fetched another placement.
    pub fn set_generation(&self, generation: u64) {
        let mut map = self.map.lock().expect("no test panics under the lock");
        *map = map.at_generation(Generation(generation));
    }

    pub fn adopt(&self, map: BucketMap) {
        *self.map.lock().expect("no test panics under the lock") = map;
    }

    /// The pushes that were applied to the rows go along, as with a move that is committed. `bucket_move` numbers the
    /// moves of the run. Neither server has another map by that.
    pub fn hand_over(&self, target: &Self, buckets: &[u32], bucket_move: u64) {
        let map = self.map.lock().expect("no test panics under the lock");
        let moves = |key: &RowKey| buckets.contains(&bucket_of(*key, map.bucket_count()));
        let rows: BTreeMap<_, _> = ledger(self).extract_if(.., |key, _| moves(key)).collect();
        ledger(target).extend(rows);
        let mut windows = self.groups.lock().expect("no test panics under the lock");
        windows.hand_over(&mut target.groups.lock().expect("no test panics under the lock"), buckets, bucket_move);
    }

    pub async fn lookup(&self, request: LookupRequest) -> Result<LookupResponse, Refusal> {
        let call = self.lookups.fetch_add(1, Ordering::AcqRel) + 1;
        let open = self.open.fetch_add(1, Ordering::AcqRel) + 1;
        self.most_open.fetch_max(open, Ordering::AcqRel);
        if self.script.hangs {
            std::future::pending::<()>().await;
        }
        if self.script.first_bad_lookup.is_some_and(|bad| call >= bad) {
            return Err(as_scripted());
        }
        self.serve(|| self.answer_lookup(&request)).await
    }

    pub async fn push(&self, request: PushRequest) -> Result<PushResponse, Refusal> {
        while self.most_open() < self.script.open_first {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let call = self.pushes.fetch_add(1, Ordering::AcqRel) + 1;
        // A test may push what it has not looked up.
        let _ = self.open.fetch_update(Ordering::AcqRel, Ordering::Acquire, |open| open.checked_sub(1));
        if self.script.first_bad_push.is_some_and(|bad| call >= bad) {
            return Err(as_scripted());
        }
        self.serve(|| self.answer_push(&request)).await
    }

    /// Keeps the ids. The rows are in memory already.
    pub async fn hint(&self, request: HintRequest) -> Result<HintResponse, Refusal> {
        if self.script.hangs {
            std::future::pending::<()>().await;
        }
        self.hinted.lock().expect("no test panics under the lock").push(decode_ids(&request.ids));
        Ok(HintResponse { ready: 0 })
    }

    /// One table of one row.
    pub async fn describe(&self) -> Result<DescribeResponse, Refusal> {
        let table = TableStatus { name: "t0".to_owned(), rows: 1, bytes: 64 };
        self.serve(|| Ok(DescribeResponse { tables: vec![table] })).await
    }

    pub async fn save(&self, request: SaveRequest) -> Result<SaveResponse, Refusal> {
        self.save_attempts.lock().expect("no test panics under the lock").push(request.attempt);
        self.storage_generations.lock().expect("no test panics under the lock").push(request.generation);
        if self.script.cannot_save {
            return Err(Refusal::new(RefusalKind::Internal, "disk full"));
        }
        let file = FileDigest { name: format!("rows-{}.zrows", self.index), ..FileDigest::default() };
        self.serve(|| Ok(SaveResponse { files: vec![file], rows: 1, ..SaveResponse::default() })).await
    }

    pub async fn load(&self, request: LoadRequest) -> Result<LoadResponse, Refusal> {
        self.storage_generations.lock().expect("no test panics under the lock").push(request.generation);
        self.serve(|| Ok(LoadResponse { rows: 1, ..LoadResponse::default() })).await
    }

    pub async fn forget(&self, request: ForgetRequest) -> Result<ForgetResponse, Refusal> {
        self.forgotten.lock().expect("no test panics under the lock").push(request);
        self.serve(|| Ok(ForgetResponse::default())).await
    }

    async fn serve<T>(&self, answer: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
        let fault = self.faults.lock().expect("no test panics under the lock").pop_front();
        match fault {
            Some(ScriptedFault::Hang) => std::future::pending().await,
            None => answer(),
            Some(ScriptedFault::Delay(ms)) => {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                answer()
            }
            Some(ScriptedFault::Refuse(kind)) => Err(Refusal::new(kind, "scripted fault")),
            Some(ScriptedFault::LoseAnswer) => {
                answer()?;
                Err(Refusal::new(RefusalKind::Unavailable, "connection reset"))
            }
        }
    }

    /// The rows of a request, after the checks of a real server.
    fn keys(&self, generation: u64, segments: &[u8], ids: &[u8]) -> Result<Vec<(RowKey, usize)>, Refusal> {
        let map = self.map.lock().expect("no test panics under the lock");
        if map.generation().0 != generation {
            return Err(Refusal::new(RefusalKind::Moved, format!("generation {generation} is not mine")));
        }
        let segments = Segments::unpack(segments, ids)?;
        let rows = segments.iter().flat_map(|s| std::iter::repeat_n((s.table, s.dim as usize), s.rows as usize));
        let rows = rows.collect::<Vec<_>>().into_iter().zip_eq(decode_ids(ids));
        let keys: Vec<_> = rows.map(|((table, dim), id)| (RowKey { table, id }, dim)).collect();
        match keys.iter().find(|(key, _)| map.row_owner(*key).0 != self.index) {
            Some((key, _)) => Err(Refusal::new(RefusalKind::Moved, format!("{key:?} is not mine"))),
            None => Ok(keys),
        }
    }

    fn answer_lookup(&self, request: &LookupRequest) -> Result<LookupResponse, Refusal> {
        let keys = self.keys(request.generation, &request.segments, &request.ids)?;
        let row = |(key, dim): (RowKey, usize)| (0..dim).map(|column| row_value(key, column)).collect::<Vec<_>>();
        let sums = wanted(&request.segments, &request.ids, &request.bags)?.into_iter().map(|(dim, members)| {
            members.into_iter().fold(vec![0.0; dim], |sum, member| added(sum, &row(keys[member])))
        });
        let values = sums.collect::<Vec<_>>().concat();
        let rows = encode_values(&values, request.encoding)?.into();
        Ok(LookupResponse { rows, encoding: request.encoding, created: 0, late: 0 })
    }

    fn answer_push(&self, request: &PushRequest) -> Result<PushResponse, Refusal> {
        let keys = self.keys(request.generation, &request.segments, &request.ids)?;
        let wanted = wanted(&request.segments, &request.ids, &request.bags)?;
        let mut values = vec![0.0; wanted.iter().map(|(dim, _)| dim).sum()];
        decode_values(&request.gradients, request.encoding, &mut values)?;
        let push = (request.writer, request.incarnation, request.seq);
        let buckets = self.map.lock().expect("no test panics under the lock").bucket_count();
        let rows = keys.iter().map(|(key, _)| (bucket_of(*key, buckets), *key)).collect();
        let new = self.groups.lock().expect("no test panics under the lock").apply(push, rows)?;
        let mut gradients: Vec<Vec<f32>> = keys.iter().map(|(_, dim)| vec![0.0; *dim]).collect();
        let mut values = &values[..];
        for (dim, members) in wanted {
            let (gradient, rest) = values.split_at(dim);
            values = rest;
            for member in members {
                gradients[member] = added(std::mem::take(&mut gradients[member]), gradient);
            }
        }
        let mut ledger = ledger(self);
        for ((key, _), gradient) in keys.into_iter().zip_eq(gradients).filter(|((key, _), _)| new.contains(key)) {
            ledger.entry(key).or_default().push(gradient);
        }
        Ok(PushResponse { duplicate: new.is_empty() })
    }
}

fn ledger(shard: &FakeShard) -> MutexGuard<'_, BTreeMap<RowKey, Vec<Vec<f32>>>> {
    shard.ledger.lock().expect("no test panics under the lock")
}

fn as_scripted() -> Refusal {
    Refusal::new(RefusalKind::Internal, "as the test wants")
}

fn wanted(segments: &[u8], ids: &[u8], bags: &[u8]) -> Result<Vec<(usize, Vec<usize>)>, Refusal> {
    let segments = Segments::unpack(segments, ids)?;
    let bags = RequestBags::unpack(bags, &segments)?;
    let (mut wanted, mut start) = (Vec::new(), 0);
    for (index, segment) in segments.iter().enumerate() {
        let (dim, of) = (segment.dim as usize, bags.segment_bags(index));
        let direct = of.map_or(segment.rows, |of| of.direct) as usize;
        wanted.extend((start..start + direct).map(|row| (dim, vec![row])));
        let sums = of.into_iter().flat_map(|of| of.iter());
        wanted.extend(sums.map(|bag| (dim, bag.iter().map(|member| start + *member as usize).collect())));
        start += segment.rows as usize;
    }
    Ok(wanted)
}

type Push = (u64, u32, u64);
/// A group: the moves by which its buckets came here, in order. Buckets that never moved are in the group without any.
type Group = Vec<u64>;
/// Rows, each with its bucket.
type Rows = BTreeSet<(u32, RowKey)>;

/// The pushes that were applied, by group of buckets that always moved together (ADR 39).
#[derive(Debug, Default)]
struct WindowGroups {
    /// Of buckets that came by a move.
    groups: BTreeMap<u32, Group>,
    applied: BTreeMap<Group, BTreeMap<Push, Rows>>,
}

impl WindowGroups {
    /// Returns the rows to which the push was not applied before. Fails if it has some rows of a group that it had
    /// before and lacks others: a client must not divide a group.
    fn apply(&mut self, push: Push, rows: Rows) -> Result<BTreeSet<RowKey>, Refusal> {
        let mut by_group = BTreeMap::<Group, Rows>::new();
        for (bucket, row) in rows {
            by_group.entry(self.groups.get(&bucket).cloned().unwrap_or_default()).or_default().insert((bucket, row));
        }
        let mut new = BTreeSet::new();
        for (group, rows) in by_group {
            let previous = self.applied.entry(group).or_default().insert(push, rows.clone());
            match previous {
                None => new.extend(rows.into_iter().map(|(_, row)| row)),
                Some(previous) if previous == rows => {}
                Some(previous) => {
                    return Err(Refusal::invalid(format!(
                        "push {push:?} has rows {rows:?} and had {previous:?} of a group"
                    )));
                }
            }
        }
        Ok(new)
    }

    fn hand_over(&mut self, target: &mut Self, buckets: &[u32], bucket_move: u64) {
        for bucket in buckets {
            let group = self.groups.remove(bucket).unwrap_or_default();
            target.groups.insert(*bucket, [&group[..], &[bucket_move]].concat());
        }
        for (group, applied) in &mut self.applied {
            let moved = applied
                .iter_mut()
                .map(|(push, rows)| (*push, rows.extract_if(.., |(bucket, _)| buckets.contains(bucket)).collect()));
            target.applied.insert([&group[..], &[bucket_move]].concat(), moved.collect());
        }
    }
}
