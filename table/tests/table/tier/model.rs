//! Random sequences of all calls on tables with almost no memory, compared with a plain map. The model also predicts
//! which rows are evicted, because eviction compares all rows of such small stripes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use proptest::prelude::*;
use zagros_table::init::RowSeed;
use zagros_table::{
    EvictionOrder, EvictionPolicy, EvictionTarget, Initializer, LookupMode, Optimizer, RequestBuffers, RowBatch,
    TableConfig, TableResources, TableSet, TableSnapshot, Ttl, UpdateLimits,
};

use crate::support::{by_id, part, tables_within};

const DIM: usize = 2;
const STRIDE: usize = 2 * DIM;
const INIT: Initializer = Initializer::Uniform { bound: 0.5 };
const OPTIMIZER: Optimizer = Optimizer::Adagrad { lr: 0.1, epsilon: 1e-8, initial_accumulator: 0.1, l2: 0.0 };
/// So long that no use loses weight.
const HALF_LIFE: u32 = 1 << 20;
/// Ids per request. A stripe has room for all of them, so a request makes room once.
const MOST_IDS: usize = 40;

#[derive(Clone, Debug)]
enum TierCall {
    Lookup(LookupMode, Vec<u64>),
    Push(BTreeMap<u64, i8>),
    Insert(BTreeMap<u64, i8>),
    Tick(u64),
    Tend,
    TableSnapshot,
    ReadSnapshot,
}

#[derive(Clone, Debug)]
struct ModelRow {
    slot: Vec<f32>,
    last: u64,
    uses: u64,
}

struct TierModel {
    eviction: EvictionPolicy,
    now: u64,
    rows: HashMap<u64, ModelRow>,
    hot: Vec<BTreeSet<u64>>,
}

impl TierModel {
    fn first(&self, id: u64) -> Vec<f32> {
        let mut slot = vec![0.0; STRIDE];
        let (weights, state) = slot.split_at_mut(DIM);
        INIT.fill(RowSeed { seed: 0, table: 0, id }, weights);
        OPTIMIZER.init_state(weights, state);
        slot
    }

    fn expired(&self, row: &ModelRow) -> bool {
        matches!(self.eviction.ttl, Some(Ttl::Steps(ttl)) if self.now - row.last >= u64::from(ttl))
    }

    fn alive(&self, id: u64) -> Option<&ModelRow> {
        self.rows.get(&id).filter(|row| !self.expired(row))
    }

    /// Records a use of a row, and creates the row if it does not exist.
    fn used(&mut self, id: u64) -> &mut ModelRow {
        let (first, now) = (self.first(id), self.now);
        if self.alive(id).is_none() {
            self.rows.insert(id, ModelRow { slot: first, last: now, uses: 0 });
        }
        let row = self.rows.get_mut(&id).unwrap();
        (row.last, row.uses) = (now, row.uses + 1);
        row
    }

    fn push(&mut self, id: u64, gradient: &[f32]) {
        OPTIMIZER.update_slot(&mut self.used(id).slot, gradient, &UpdateLimits::default());
    }

    fn rank(&self, id: u64) -> u64 {
        let row = &self.rows[&id];
        match self.eviction.order {
            _ if self.expired(row) => 0,
            EvictionOrder::Lru => row.last + 1,
            EvictionOrder::Lfu { .. } => row.uses,
        }
    }

    fn content(&self) -> BTreeMap<u64, Vec<f32>> {
        self.rows.iter().filter(|(_, row)| !self.expired(row)).map(|(id, row)| (*id, row.slot.clone())).collect()
    }

    /// Follows an eviction. The evicted rows had the lowest ranks, except rows in `requested`. Dropped rows are
    /// removed.
    fn follow(&mut self, tables: &TableSet, before: &HashMap<u64, u64>, requested: &BTreeSet<u64>) {
        for (stripe, was) in std::mem::take(&mut self.hot).into_iter().enumerate() {
            let is: BTreeSet<u64> = tables.table(0).unwrap().ids_in_memory(stripe).into_iter().collect();
            let rank = |id: &&u64| before[*id];
            let highest_gone = was.difference(&is).map(|id| rank(&id)).max();
            let stayed = was.intersection(&is).filter(|id| !requested.contains(id));
            let lowest_stayed = stayed.map(|id| rank(&id)).min();
            if let (Some(gone), Some(stayed)) = (highest_gone, lowest_stayed) {
                assert!(gone <= stayed, "a row of rank {gone} left and one of {stayed} stayed");
            }
            for id in was.difference(&is) {
                if self.eviction.target == EvictionTarget::Drop || before[id] == 0 {
                    self.rows.remove(id);
                }
            }
            self.hot.push(is);
        }
    }
}

struct ModelRun<'a> {
    tables: &'a TableSet,
    model: TierModel,
    scratch: RequestBuffers,
    cut: Option<(TableSnapshot<'a>, BTreeMap<u64, Vec<f32>>)>,
}

impl<'a> ModelRun<'a> {
    fn call(&mut self, call: &TierCall) {
        let old_ranks: HashMap<u64, u64> = self.model.rows.keys().map(|id| (*id, self.model.rank(*id))).collect();
        let hot: BTreeSet<u64> = self.model.hot.iter().flatten().copied().collect();
        let (mut requested, mut used) = (BTreeSet::new(), Vec::new());
        match call {
            TierCall::Lookup(access, ids) => {
                self.lookup(*access, ids);
                // Rows in memory are used before the request makes room, so their new ranks count.
                used = ids.iter().filter(|id| *access == LookupMode::Train && hot.contains(*id)).copied().collect();
            }
            TierCall::Push(rows) => {
                self.push(rows);
                requested = rows.keys().copied().collect();
            }
            TierCall::Insert(rows) => {
                self.insert(rows);
                requested = rows.keys().copied().collect();
            }
            TierCall::Tick(steps) => {
                self.model.now += steps;
                self.tables.advance_clock(self.model.now, 0);
                return;
            }
            TierCall::Tend => drop(self.tables.maintain().unwrap()),
            TierCall::TableSnapshot => {
                self.cut =
                    self.cut.take().or_else(|| Some((self.tables.take_snapshot().unwrap(), self.model.content())))
            }
            TierCall::ReadSnapshot => self.read_cut(),
        }
        let mut ranks = old_ranks;
        for id in &used {
            ranks.insert(*id, self.model.rank(*id));
        }
        requested.extend(used);
        self.model.follow(self.tables, &ranks, &requested);
    }

    fn lookup(&mut self, access: LookupMode, ids: &[u64]) {
        let mut out = vec![f32::NAN; ids.len() * DIM];
        self.tables.lookup(&[part(self.tables, ids)], access, &mut out, &mut self.scratch).unwrap();
        for (row, id) in ids.iter().enumerate() {
            let slot = match access {
                LookupMode::Train => self.model.used(*id).slot.clone(),
                LookupMode::Read => self.model.alive(*id).map_or_else(|| self.model.first(*id), |row| row.slot.clone()),
            };
            assert_eq!(out[row * DIM..][..DIM], slot[..DIM], "id {id}");
        }
    }

    fn push(&mut self, rows: &BTreeMap<u64, i8>) {
        let ids: Vec<u64> = rows.keys().copied().collect();
        let gradients: Vec<f32> = rows.values().flat_map(|value| [f32::from(*value), 1.0]).collect();
        let report = self.tables.push(&[part(self.tables, &ids)], &gradients, 0, &mut self.scratch).unwrap();
        assert_eq!(report.updated as usize, ids.len());
        for (row, id) in ids.iter().enumerate() {
            self.model.push(*id, &gradients[row * DIM..][..DIM]);
        }
    }

    fn insert(&mut self, rows: &BTreeMap<u64, i8>) {
        let slot = |value: &i8| vec![f32::from(*value), 1.5, 0.25, f32::from(value.unsigned_abs())];
        let slots = rows.values().flat_map(slot).map(f32::to_bits).collect();
        let whole = RowBatch { ids: rows.keys().copied().collect(), slots, access: Vec::new() };
        self.tables.table(0).unwrap().insert(&whole, &mut self.scratch).unwrap();
        for (id, value) in rows {
            self.model.rows.insert(*id, ModelRow { slot: slot(value), last: self.model.now, uses: 1 });
        }
    }

    /// Invariant TI-1: a snapshot contains each row once, with its value at the instant.
    fn read_cut(&mut self) {
        let Some((cut, expected)) = self.cut.take() else { return };
        let mut rows = RowBatch::default();
        for stripe in 0..self.model.hot.len() {
            cut.read_stripe(0, stripe, &mut rows).unwrap();
        }
        assert_eq!((by_id(&rows, STRIDE), rows.access.len()), (expected, rows.ids.len()));
    }

    /// All rows, in memory and in the cold tier, equal the model.
    fn finish(mut self) {
        self.cut = None;
        self.call(&TierCall::TableSnapshot);
        self.call(&TierCall::ReadSnapshot);
    }
}

fn tables(eviction: EvictionPolicy, stripes: usize, budget: usize) -> TableSet {
    let config =
        TableConfig { dim: DIM, init: INIT, optimizer: OPTIMIZER, eviction, stripes, ..TableConfig::default() };
    match eviction.target {
        EvictionTarget::Cold => tables_within(&[config], budget).0,
        EvictionTarget::Drop => {
            TableSet::new(0, &[config], TableResources { budget: Some(budget), ..TableResources::default() }).unwrap()
        }
    }
}

fn calls() -> impl Strategy<Value = Vec<TierCall>> {
    let id = || 0_u64..250;
    let ids = prop::collection::vec(id(), 0..MOST_IDS);
    let rows = || prop::collection::btree_map(id(), -8_i8..8, 0..MOST_IDS);
    let access = prop_oneof![3 => Just(LookupMode::Train), 1 => Just(LookupMode::Read)];
    let call = prop_oneof![
        8 => (access, ids).prop_map(|(access, ids)| TierCall::Lookup(access, ids)),
        8 => rows().prop_map(TierCall::Push),
        1 => rows().prop_map(TierCall::Insert),
        4 => (1_u64..4).prop_map(TierCall::Tick),
        2 => Just(TierCall::Tend),
        1 => Just(TierCall::TableSnapshot),
        1 => Just(TierCall::ReadSnapshot),
    ];
    prop::collection::vec(call, 1..60)
}

fn evictions() -> impl Strategy<Value = EvictionPolicy> {
    let target = prop_oneof![2 => Just(EvictionTarget::Cold), 1 => Just(EvictionTarget::Drop)];
    let order = prop_oneof![
        Just((EvictionOrder::Lru, None)),
        (3_u32..20).prop_map(|ttl| (EvictionOrder::Lru, Some(Ttl::Steps(ttl)))),
        Just((EvictionOrder::Lfu { half_life: HALF_LIFE }, None)),
    ];
    (target, order).prop_map(|(target, (order, ttl))| EvictionPolicy { target, order, ttl, small_norm: 0.0 })
}

proptest! {
    #[test]
    fn a_table_with_little_memory_is_still_a_map(
        calls in calls(), eviction in evictions(), bits in 0_u32..2, budget in 1_usize..20_000,
    ) {
        let tables = tables(eviction, 1 << bits, budget);
        let hot = vec![BTreeSet::new(); 1 << bits];
        let model = TierModel { eviction, now: 0, rows: HashMap::new(), hot };
        let mut run = ModelRun { tables: &tables, model, scratch: RequestBuffers::new(), cut: None };
        for call in &calls {
            run.call(call);
        }
        run.finish();
    }
}
