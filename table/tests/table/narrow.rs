//! Rows with weights of 16 and of 8 bits, through the calls of a table.

use std::collections::BTreeMap;

use proptest::prelude::*;
use zagros_table::{
    Initializer, LearningRateSchedule, LookupMode, Optimizer, RequestBuffers, Table, TableConfig, WeightType,
};

use crate::support::in_memory;

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
