//! Embedding servers for tests: the rows are known, pushes are recorded, faults are scripted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use proptest::prelude::*;
use zagros_fakes::{FakeControlPlane, FakeShard, ScriptedFault};
use zagros_plumbing::Deadline;
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, ForgetRequest, ForgetResponse, LoadRequest, LoadResponse, PlacementResponse,
    SaveRequest, SaveResponse, ServerEntry,
};
use zagros_protocol::datapath::{HintRequest, HintResponse, LookupRequest, LookupResponse, PushRequest, PushResponse};
use zagros_protocol::{BucketMap, Generation, Refusal, RowKey, ServerIndex, TableId};
use zagros_zip::{ZipEq, number_from};

use crate::Shard;
use crate::datapath::{TableBags, TableIds, UniqueIds};
use crate::placement::Connect;

impl Shard for FakeShard {
    fn name(&self) -> &str {
        self.name()
    }

    fn lookup(&self, request: LookupRequest, _: Deadline) -> BoxFuture<'_, Result<LookupResponse, Refusal>> {
        self.lookup(request).boxed()
    }

    fn push(&self, request: PushRequest, _: Deadline) -> BoxFuture<'_, Result<PushResponse, Refusal>> {
        self.push(request).boxed()
    }

    fn hint(&self, request: HintRequest, _: Deadline) -> BoxFuture<'_, Result<HintResponse, Refusal>> {
        self.hint(request).boxed()
    }

    fn describe(&self, _: DescribeRequest) -> BoxFuture<'_, Result<DescribeResponse, Refusal>> {
        self.describe().boxed()
    }

    fn save(&self, request: SaveRequest) -> BoxFuture<'_, Result<SaveResponse, Refusal>> {
        self.save(request).boxed()
    }

    fn load(&self, request: LoadRequest) -> BoxFuture<'_, Result<LoadResponse, Refusal>> {
        self.load(request).boxed()
    }

    fn forget(&self, request: ForgetRequest) -> BoxFuture<'_, Result<ForgetResponse, Refusal>> {
        self.forget(request).boxed()
    }
}

pub(crate) struct Cluster {
    pub(crate) shards: Vec<Arc<FakeShard>>,
    pub(crate) control: Arc<FakeControlPlane>,
}

impl Cluster {
    pub(crate) fn new(servers: u32) -> Self {
        let map = BucketMap::split_evenly(Generation(1), 64, servers);
        let shards = (0..servers).map(|index| Arc::new(FakeShard::new(index, map.clone()))).collect();
        let control = Arc::new(FakeControlPlane::default());
        let cluster = Self { shards, control };
        cluster.announce(1, |entry| entry);
        cluster
    }

    /// Makes the coordinator report this generation, with entries changed by `change`.
    pub(crate) fn announce(&self, generation: u64, change: impl Fn(ServerEntry) -> ServerEntry) {
        let map = BucketMap::split_evenly(Generation(generation), 64, self.shards.len() as u32);
        self.control.placement.respond(placement(&map, change));
    }

    pub(crate) fn announce_owners(&self, map: &BucketMap) {
        self.control.placement.respond(placement(map, |entry| entry));
    }

    /// Moves buckets to another server. The servers that have nothing to do with it hear of the new map `late`.
    pub(crate) async fn move_buckets(&self, map: &BucketMap, buckets: &[u32], target: u32, late: Duration) {
        let mut involved = BTreeSet::from([target]);
        let next = map.with_moved(buckets, ServerIndex(target));
        for (source, shard) in number_from(0, &self.shards).filter(|(source, _)| *source != target) {
            let is_own = |bucket: &u32| map.bucket_owner(*bucket) == Some(ServerIndex(source));
            let own: Vec<u32> = buckets.iter().copied().filter(is_own).collect();
            if !own.is_empty() {
                // Several sources are several moves that are committed at once.
                let bucket_move = next.generation().0 * 100 + u64::from(source);
                shard.hand_over(&self.shards[target as usize], &own, bucket_move);
                involved.insert(source);
            }
        }
        involved.iter().for_each(|index| self.shards[*index as usize].adopt(next.clone()));
        self.announce_owners(&next);
        tokio::time::sleep(late).await;
        self.shards.iter().for_each(|shard| shard.adopt(next.clone()));
    }

    pub(crate) fn fail(&self, server: u32, faults: impl IntoIterator<Item = ScriptedFault>) {
        self.shards[server as usize].faults.lock().unwrap().extend(faults);
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

fn placement(map: &BucketMap, change: impl Fn(ServerEntry) -> ServerEntry) -> PlacementResponse {
    let entry =
        |index| ServerEntry { index, address: "fake".to_owned(), instance: 100, alive: true, run: 1, lineage: 0 };
    let (generation, owners) = (map.generation().0, map.pack_owners().into());
    let servers = (0..map.server_count()).map(|index| change(entry(index))).collect();
    PlacementResponse { generation, owners, servers, ..PlacementResponse::default() }
}

/// Distinct ids of up to four tables.
pub(crate) fn unique_ids() -> impl Strategy<Value = UniqueIds> {
    let ids = prop::collection::btree_set(any::<u64>().prop_map(|id| id % 1000), 0..80);
    let table = (1_u32..9, ids.prop_map(|ids| ids.into_iter().rev().collect::<Vec<u64>>()));
    prop::collection::vec(table, 0..5).prop_map(|tables| {
        let table_ids = |(table, (dim, ids))| TableIds::new(TableId(table as u32), dim, ids);
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
                    bags.add_bags(&members, &[0, members.len() as u32]);
                }
                bags
            });
        }
        unique
    })
}
