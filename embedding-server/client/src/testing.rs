//! Embedding servers for tests: the rows are known, pushes are recorded, faults are scripted.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use proptest::prelude::*;
use zagros_fakes::FakeControlPlane;
use zagros_plumbing::Deadline;
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, LoadRequest, LoadResponse, PlacementResponse, SaveRequest, SaveResponse,
    ServerEntry,
};
use zagros_protocol::datapath::{LookupRequest, LookupResponse, PushRequest, PushResponse};
use zagros_protocol::packed::{RequestBags, decode_ids, decode_values, encode_values};
use zagros_protocol::{BucketMap, Generation, Refusal, RefusalKind, RowKey, Segments, TableId};
use zagros_zip::ZipEq;

use crate::datapath::{TableBags, TableIds, UniqueIds};
use crate::placement::Connect;
use crate::shard::Shard;

/// What a server does with its next request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ScriptedFault {
    /// It refuses the request and changes nothing.
    Refuse(RefusalKind),
    /// It serves the request, and the answer is lost.
    LoseAnswer,
    /// It never answers.
    Hang,
}

/// An embedding server that records every gradient it applies.
pub(crate) struct FakeShard {
    name: String,
    index: u32,
    map: Mutex<BucketMap>,
    pub(crate) faults: Mutex<VecDeque<ScriptedFault>>,
    seen: Mutex<HashSet<(u64, u32, u64)>>,
    /// Every applied gradient, by row.
    pub(crate) ledger: Mutex<BTreeMap<RowKey, Vec<Vec<f32>>>>,
}

/// The value in column `column` of a row.
pub(crate) fn value(key: RowKey, column: usize) -> f32 {
    // Small integers, which every encoding holds exactly.
    ((key.id % 31) + u64::from(key.table.0 % 7) * 4 + column as u64 % 5) as f32
}

impl FakeShard {
    pub(crate) fn new(index: u32, map: BucketMap) -> Arc<Self> {
        Arc::new(Self {
            name: format!("embedding server {index} (fake)"),
            index,
            map: Mutex::new(map),
            faults: Mutex::default(),
            seen: Mutex::default(),
            ledger: Mutex::default(),
        })
    }

    /// Sets the generation, as if the server had fetched another placement.
    pub(crate) fn set_generation(&self, generation: u64) {
        let mut map = self.map.lock().unwrap();
        *map = map.at(Generation(generation));
    }

    /// The rows of a request, after the checks of a real server.
    fn keys(&self, generation: u64, segments: &[u8], ids: &[u8]) -> Result<Vec<(RowKey, usize)>, Refusal> {
        let map = self.map.lock().unwrap();
        if map.generation().0 != generation {
            return Err(Refusal::new(RefusalKind::Moved, format!("generation {generation} is not mine")));
        }
        let segments = Segments::unpack(segments, ids)?;
        let rows = segments.iter().flat_map(|s| std::iter::repeat_n((s.table, s.dim as usize), s.rows as usize));
        let keys: Vec<_> = rows
            .collect::<Vec<_>>()
            .into_iter()
            .zip_eq(decode_ids(ids))
            .map(|((table, dim), id)| (RowKey { table, id }, dim))
            .collect();
        match keys.iter().find(|(key, _)| map.route(*key).0 != self.index) {
            Some((key, _)) => Err(Refusal::new(RefusalKind::Moved, format!("{key:?} is not mine"))),
            None => Ok(keys),
        }
    }

    fn answer_lookup(&self, request: &LookupRequest) -> Result<LookupResponse, Refusal> {
        let keys = self.keys(request.generation, &request.segments, &request.ids)?;
        let row = |(key, dim): (RowKey, usize)| (0..dim).map(|column| value(key, column)).collect::<Vec<_>>();
        let sums = wanted(&request.segments, &request.ids, &request.bags)?.into_iter().map(|(dim, members)| {
            members.into_iter().fold(vec![0.0; dim], |sum, member| added(sum, &row(keys[member])))
        });
        let values = sums.collect::<Vec<_>>().concat();
        let rows = encode_values(&values, request.encoding)?.into();
        Ok(LookupResponse { rows, encoding: request.encoding, created: 0 })
    }

    fn answer_push(&self, request: &PushRequest) -> Result<PushResponse, Refusal> {
        let keys = self.keys(request.generation, &request.segments, &request.ids)?;
        let wanted = wanted(&request.segments, &request.ids, &request.bags)?;
        let mut values = vec![0.0; wanted.iter().map(|(dim, _)| dim).sum()];
        decode_values(&request.gradients, request.encoding, &mut values)?;
        if !self.seen.lock().unwrap().insert((request.writer, request.incarnation, request.seq)) {
            return Ok(PushResponse { duplicate: true });
        }
        let mut gradients: Vec<Vec<f32>> = keys.iter().map(|(_, dim)| vec![0.0; *dim]).collect();
        let mut values = &values[..];
        for (dim, members) in wanted {
            let (gradient, rest) = values.split_at(dim);
            values = rest;
            for member in members {
                gradients[member] = added(std::mem::take(&mut gradients[member]), gradient);
            }
        }
        let mut ledger = self.ledger.lock().unwrap();
        for ((key, _), gradient) in keys.into_iter().zip_eq(gradients) {
            ledger.entry(key).or_default().push(gradient);
        }
        Ok(PushResponse { duplicate: false })
    }

    async fn serve<T>(&self, answer: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
        let fault = self.faults.lock().unwrap().pop_front();
        match fault {
            Some(ScriptedFault::Hang) => std::future::pending().await,
            None => answer(),
            Some(ScriptedFault::Refuse(kind)) => Err(Refusal::new(kind, "scripted fault")),
            Some(ScriptedFault::LoseAnswer) => {
                answer()?;
                Err(Refusal::new(RefusalKind::Unavailable, "connection reset"))
            }
        }
    }
}

/// For each row of an answer: its dim, and which rows of the request it sums.
fn wanted(segments: &[u8], ids: &[u8], bags: &[u8]) -> Result<Vec<(usize, Vec<usize>)>, Refusal> {
    let segments = Segments::unpack(segments, ids)?;
    let bags = RequestBags::unpack(bags, &segments)?;
    let (mut wanted, mut start) = (Vec::new(), 0);
    for (index, segment) in segments.iter().enumerate() {
        let (dim, of) = (segment.dim as usize, bags.of(index));
        let direct = of.map_or(segment.rows, |of| of.direct) as usize;
        wanted.extend((start..start + direct).map(|row| (dim, vec![row])));
        let sums = of.into_iter().flat_map(|of| of.iter());
        wanted.extend(sums.map(|bag| (dim, bag.iter().map(|member| start + *member as usize).collect())));
        start += segment.rows as usize;
    }
    Ok(wanted)
}

/// Adds `values` to `sum`, value by value.
pub(crate) fn added(mut sum: Vec<f32>, values: &[f32]) -> Vec<f32> {
    sum.iter_mut().zip_eq(values).for_each(|(sum, value)| *sum += value);
    sum
}

fn unscripted<T: Send + 'static>() -> BoxFuture<'static, Result<T, Refusal>> {
    std::future::ready(Err(Refusal::invalid("not part of this fake"))).boxed()
}

impl Shard for FakeShard {
    fn name(&self) -> &str {
        &self.name
    }

    fn lookup(&self, request: LookupRequest, _: Deadline) -> BoxFuture<'_, Result<LookupResponse, Refusal>> {
        async move { self.serve(|| self.answer_lookup(&request)).await }.boxed()
    }

    fn push(&self, request: PushRequest, _: Deadline) -> BoxFuture<'_, Result<PushResponse, Refusal>> {
        async move { self.serve(|| self.answer_push(&request)).await }.boxed()
    }

    fn describe(&self, _: DescribeRequest) -> BoxFuture<'_, Result<DescribeResponse, Refusal>> {
        unscripted()
    }

    fn save(&self, _: SaveRequest) -> BoxFuture<'_, Result<SaveResponse, Refusal>> {
        unscripted()
    }

    fn load(&self, _: LoadRequest) -> BoxFuture<'_, Result<LoadResponse, Refusal>> {
        unscripted()
    }
}

/// The servers and the coordinator of one run.
pub(crate) struct Cluster {
    pub(crate) shards: Vec<Arc<FakeShard>>,
    pub(crate) control: Arc<FakeControlPlane>,
}

impl Cluster {
    pub(crate) fn new(servers: u32) -> Self {
        let map = BucketMap::even(Generation(1), 64, servers);
        let shards = (0..servers).map(|index| FakeShard::new(index, map.clone())).collect();
        let control = Arc::new(FakeControlPlane::default());
        let cluster = Self { shards, control };
        cluster.announce(1, |entry| entry);
        cluster
    }

    /// Makes the coordinator report this generation, with entries changed by `change`.
    pub(crate) fn announce(&self, generation: u64, change: impl Fn(ServerEntry) -> ServerEntry) {
        let servers = self.shards.len() as u32;
        let entry =
            |index| ServerEntry { index, address: "fake".to_owned(), instance: 100, alive: true, run: 1, lineage: 0 };
        let placement = PlacementResponse {
            generation,
            owners: BucketMap::even(Generation(generation), 64, servers).pack_owners().into(),
            servers: (0..servers).map(|index| change(entry(index))).collect(),
            ..PlacementResponse::default()
        };
        self.control.placement.respond(placement);
    }

    pub(crate) fn connect(&self) -> Connect {
        let shards = self.shards.clone();
        Arc::new(move |entry| Ok(Arc::clone(&shards[entry.index as usize]) as Arc<dyn Shard>))
    }

    /// Every applied gradient, over all servers.
    pub(crate) fn ledger(&self) -> BTreeMap<RowKey, Vec<Vec<f32>>> {
        let ledgers = self.shards.iter().map(|shard| shard.ledger.lock().unwrap().clone());
        let mut all = BTreeMap::new();
        for (key, gradients) in ledgers.flatten() {
            assert!(all.insert(key, gradients).is_none(), "{key:?} lives on two servers");
        }
        all
    }
}

/// Distinct ids of up to four tables.
pub(crate) fn unique_ids() -> impl Strategy<Value = UniqueIds> {
    let ids = prop::collection::btree_set(any::<u64>().prop_map(|id| id % 1000), 0..80);
    let table = (1_u32..9, ids.prop_map(|ids| ids.into_iter().rev().collect::<Vec<u64>>()));
    prop::collection::vec(table, 0..5).prop_map(|tables| {
        let table_ids = |(table, (dim, ids))| TableIds::rows(TableId(table as u32), dim, ids);
        UniqueIds { tables: tables.into_iter().enumerate().map(table_ids).collect() }
    })
}

/// Adds bags to some tables. Some bags are empty, some contain a row twice.
pub(crate) fn with_bags(unique: UniqueIds) -> impl Strategy<Value = UniqueIds> {
    let bags = prop::collection::vec(prop::collection::vec(0_usize..1000, 0..6), 0..8);
    let choices = prop::collection::vec(prop::option::of((0_usize..1000, bags)), unique.tables.len());
    choices.prop_map(move |choices| {
        let mut unique = unique.clone();
        for (table, choice) in unique.tables.iter_mut().zip_eq(choices).filter(|(table, _)| !table.ids.is_empty()) {
            let rows = table.ids.len();
            table.bags = choice.map(|(direct, list)| {
                let mut bags = TableBags::new((direct % (rows + 1)) as u32);
                for bag in list {
                    let members: Vec<u32> = bag.into_iter().map(|member| (member % rows) as u32).collect();
                    bags.extend(&members, &[0, members.len() as u32]);
                }
                bags
            });
        }
        unique
    })
}
