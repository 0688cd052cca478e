//! Random sequences of all calls, compared with a plain map and a plain loop.
//! Rows with weights of 16 and of 8 bits.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use zagros_table::init::RowSeed;
use zagros_table::{
    Initializer, LearningRateSchedule, LookupMode, LookupReport, Optimizer, RequestBuffers, RowBatch, Table,
    TableConfig, UpdateLimits, WeightType,
};
use zagros_zip::ZipEq;

use crate::support::{by_id, in_memory, optimizers};

const SEED: u64 = 11;
const TABLE: u32 = 4;
const INIT: Initializer = Initializer::Normal { deviation: 0.5 };

#[derive(Clone, Debug)]
enum TableCall {
    Lookup(LookupMode, Vec<u64>),
    Push(Vec<(u64, i8)>),
    Insert(Vec<(u64, i8)>),
    Scan,
}

/// For each id, the weights and the optimiser state of its row.
struct TableModel {
    optimizer: Optimizer,
    dim: usize,
    rows: HashMap<u64, Vec<f32>>,
}

impl TableModel {
    fn first(&self, id: u64) -> Vec<f32> {
        let mut slot = vec![0.0; self.dim];
        INIT.fill(RowSeed { seed: SEED, table: TABLE, id }, &mut slot);
        slot.resize(self.dim + self.optimizer.state_len(self.dim), f32::NAN);
        let (weights, state) = slot.split_at_mut(self.dim);
        self.optimizer.init_state(weights, state);
        slot
    }

    fn lookup(&mut self, access: LookupMode, ids: &[u64]) -> Vec<f32> {
        let row = |model: &mut Self, id: &u64| {
            let first = model.first(*id);
            match access {
                LookupMode::Train => model.rows.entry(*id).or_insert(first).clone(),
                LookupMode::Read => model.rows.get(id).cloned().unwrap_or(first),
            }
        };
        ids.iter().flat_map(|id| row(self, id)[..self.dim].to_vec()).collect()
    }

    fn push(&mut self, ids: &[u64], gradients: &[f32]) {
        let mut sums: HashMap<u64, Vec<f32>> = HashMap::new();
        for (position, id) in ids.iter().enumerate() {
            let sum = sums.entry(*id).or_insert_with(|| vec![0.0; self.dim]);
            (0..self.dim).for_each(|index| sum[index] += gradients[position * self.dim + index]);
        }
        for (id, sum) in sums {
            let first = self.first(id);
            let optimizer = self.optimizer;
            let slot = self.rows.entry(id).or_insert(first);
            // Other tests check the optimisers. This test checks which row a gradient changes.
            optimizer.update_slot(slot, &sum, &UpdateLimits::default());
        }
    }
}

/// Small integers have exact sums in any order.
fn values(rows: &[(u64, i8)], width: usize) -> Vec<f32> {
    rows.iter().flat_map(|row| (0..width).map(|index| f32::from(row.1) + index as f32)).collect()
}

fn ids_of(rows: &[(u64, i8)]) -> Vec<u64> {
    rows.iter().map(|row| row.0).collect()
}

fn calls() -> impl Strategy<Value = Vec<TableCall>> {
    let rows = || prop::collection::vec((0_u64..40, -8_i8..8), 0..25);
    let ids = prop::collection::vec(0_u64..40, 0..25);
    let access = prop_oneof![Just(LookupMode::Train), Just(LookupMode::Read)];
    let call = prop_oneof![
        4 => (access, ids).prop_map(|(access, ids)| TableCall::Lookup(access, ids)),
        4 => rows().prop_map(TableCall::Push),
        1 => rows().prop_map(TableCall::Insert),
        1 => Just(TableCall::Scan),
    ];
    prop::collection::vec(call, 1..40)
}

fn check(call: &TableCall, table: &Table, model: &mut TableModel, scratch: &mut RequestBuffers) {
    match call {
        TableCall::Lookup(access, ids) => {
            let mut out = vec![f32::NAN; ids.len() * table.dim()];
            let old_len = model.rows.len();
            let absent = ids.iter().filter(|id| !model.rows.contains_key(*id)).count() as u64;
            let report = table.lookup(ids, *access, &mut out, scratch).unwrap();
            assert_eq!(out, model.lookup(*access, ids));
            let created = (model.rows.len() - old_len) as u64;
            let missing = if *access == LookupMode::Read { absent } else { 0 };
            assert_eq!(report, LookupReport { created, missing, ..LookupReport::default() });
        }
        TableCall::Push(rows) => {
            let (ids, gradients) = (ids_of(rows), values(rows, table.dim()));
            let old_len = model.rows.len();
            let report = table.push(&ids, &gradients, 0, scratch).unwrap();
            model.push(&ids, &gradients);
            assert_eq!((report.updated + report.repeated) as usize, ids.len());
            assert_eq!(report.created as usize, model.rows.len() - old_len);
        }
        TableCall::Insert(rows) => {
            // Sums of squares are at least 0, and powers of a share are below 1. Any optimiser state may hold such
            // values.
            let state = |value: f32| value.abs() / (1.0 + value.abs());
            let slots: Vec<f32> = values(rows, table.stride()).into_iter().map(state).collect();
            let words = slots.iter().map(|value| value.to_bits()).collect();
            table.insert(&RowBatch { ids: ids_of(rows), slots: words, access: Vec::new() }, scratch).unwrap();
            for (row, slot) in rows.iter().zip_eq(slots.chunks(table.stride())) {
                model.rows.insert(row.0, slot.to_vec());
            }
        }
        TableCall::Scan => assert_eq!(scan(table), sorted(model)),
    }
    assert_eq!(table.row_count(), model.rows.len());
}

fn scan(table: &Table) -> Vec<(u64, Vec<f32>)> {
    by_id(&in_memory(table), table.stride()).into_iter().collect()
}

fn sorted(model: &TableModel) -> Vec<(u64, Vec<f32>)> {
    let mut rows: Vec<_> = model.rows.iter().map(|(id, slot)| (*id, slot.clone())).collect();
    rows.sort_by_key(|row| row.0);
    rows
}

proptest! {
    #[test]
    fn the_table_is_a_map(
        calls in calls(), optimizer in prop::sample::select(optimizers()), dim in 1_usize..9, bits in 0_u32..4,
    ) {
        let config = TableConfig { dim, init: INIT, optimizer, stripes: 1 << bits, ..TableConfig::default() };
        let table = Table::new(SEED, TABLE, &config).unwrap();
        let mut model = TableModel { optimizer, dim, rows: HashMap::new() };
        let mut scratch = RequestBuffers::new();
        for call in &calls {
            check(call, &table, &mut model, &mut scratch);
        }
        prop_assert_eq!(scan(&table), sorted(&model));
    }

    /// Invariant DP-1: the order of creation, the number of servers and the number of stripes never change a first
    /// value.
    #[test]
    fn first_values_do_not_depend_on_order_or_on_the_server_of_the_row(
        ids in prop::collection::vec(any::<u64>(), 1..200),
        servers in 1_usize..5,
        bits in 0_u32..7,
    ) {
        let optimizer = Optimizer::Sgd { lr: 1.0, momentum: 0.0, l2: 0.0 };
        let config = |stripes| TableConfig { dim: 5, init: INIT, optimizer, stripes, ..TableConfig::default() };
        let make = |stripes| Table::new(SEED, TABLE, &config(stripes)).unwrap();
        let mut scratch = RequestBuffers::new();
        let mut expected = vec![0.0; ids.len() * 5];
        make(64).lookup(&ids, LookupMode::Train, &mut expected, &mut scratch).unwrap();
        let tables: Vec<Table> = (0..servers).map(|_| make(1 << bits)).collect();
        for (position, id) in ids.iter().enumerate().rev() {
            let mut row = [0.0; 5];
            tables[*id as usize % servers].lookup(&[*id], LookupMode::Train, &mut row, &mut scratch).unwrap();
            prop_assert_eq!(&row, &expected[position * 5..position * 5 + 5]);
        }
    }
}

const NARROW: [WeightType; 3] = [WeightType::F16, WeightType::Bf16, WeightType::Int8];
const ADAM: Optimizer = Optimizer::AdamW { lr: 0.01, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.01 };

fn table(element: WeightType, dim: usize, stripes: usize) -> Table {
    let schedule = LearningRateSchedule::Linear { warmup: 2, decay: 7, floor: 0.1 };
    let init = Initializer::Normal { deviation: 0.5 };
    let config = TableConfig { dim, init, optimizer: ADAM, element, schedule, stripes, ..TableConfig::default() };
    Table::new(11, 4, &config).unwrap()
}

fn gradient(step: u64, id: u64, dim: usize) -> impl Iterator<Item = f32> {
    (0..dim as u64).map(move |index| ((step * 7 + id * 3 + index) % 11) as f32 * 0.01 - 0.05)
}

fn push(table: &Table, ids: &[u64], step: u64) {
    let gradients: Vec<f32> = ids.iter().flat_map(|id| gradient(step, *id, table.dim())).collect();
    table.push(ids, &gradients, step, &mut RequestBuffers::new()).unwrap();
}

fn slots<'a>(tables: impl IntoIterator<Item = &'a Table>) -> BTreeMap<u64, Vec<u32>> {
    let mut all = BTreeMap::new();
    for table in tables {
        let rows = in_memory(table);
        for (row, id) in rows.ids.iter().enumerate() {
            let slot = rows.slots[row * table.stride()..][..table.stride()].to_vec();
            assert!(all.insert(*id, slot).is_none(), "id {id} is held twice");
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Invariant DP-6: the order within a push, servers and stripes change neither learning rate nor rounding.
    #[test]
    fn the_server_of_a_row_does_not_change_what_the_row_learns(
        pushes in prop::collection::vec(prop::collection::btree_set(0_u64..60, 0..40), 1..12),
        dim in 1_usize..40,
        servers in 1_usize..5,
        bits in 0_u32..5,
        element in prop::sample::select(&NARROW[..]),
    ) {
        let one = table(element, dim, 8);
        let many: Vec<Table> = (0..servers).map(|_| table(element, dim, 1 << bits)).collect();
        for (step, ids) in pushes.iter().enumerate() {
            push(&one, &ids.iter().copied().collect::<Vec<_>>(), step as u64);
            for (server, table) in many.iter().enumerate() {
                let own: Vec<u64> = ids.iter().copied().filter(|id| *id as usize % servers == server).rev().collect();
                push(table, &own, step as u64);
            }
        }
        prop_assert_eq!(slots([&one]), slots(&many));
    }

    /// A lookup returns the content of the slot. Inserting the slot into another table keeps every bit.
    #[test]
    fn narrow_rows_are_looked_up_and_moved_bit_for_bit(ids in prop::collection::btree_set(any::<u64>(), 1..50), dim in 1_usize..40) {
        for element in NARROW {
            let (from, to) = (table(element, dim, 4), table(element, dim, 2));
            let ids: Vec<u64> = ids.iter().copied().collect();
            let read = |table: &Table, access| {
                let mut out = vec![f32::NAN; ids.len() * dim];
                table.lookup(&ids, access, &mut out, &mut RequestBuffers::new()).unwrap();
                out
            };
            prop_assert_eq!(read(&from, LookupMode::Read), read(&from, LookupMode::Train));
            push(&from, &ids, 3);
            let rows = in_memory(&from);
            let weights = if element == WeightType::Int8 { 1 + dim.div_ceil(4) } else { dim.div_ceil(2) };
            prop_assert_eq!(rows.slots.len(), ids.len() * (weights + 2 * dim + 2));
            to.insert(&rows, &mut RequestBuffers::new()).unwrap();
            prop_assert_eq!(read(&to, LookupMode::Read), read(&from, LookupMode::Read));
            prop_assert_eq!(slots([&to]), slots([&from]));
        }
    }
}
