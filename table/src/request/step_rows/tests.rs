//! Pushes of several workers for the same rows of a step, against one push of their sum.

use proptest::prelude::*;
use zagros_zip::ZipEq;

use crate::{
    Initializer, LearningRateSchedule, LookupMode, Optimizer, PushStep, RequestBuffers, RowBatch, Table, TableConfig,
    UpdateLimits, WeightType,
};

const DIM: usize = 5;

fn optimizers() -> [Optimizer; 7] {
    let (lr, l2, epsilon, initial_accumulator) = (0.05, 0.1, 1e-8, 0.1);
    let adam = Optimizer::Adam { lr, beta1: 0.9, beta2: 0.99, epsilon, l2 };
    [
        Optimizer::Sgd { lr, momentum: 0.0, l2 },
        Optimizer::Sgd { lr, momentum: 0.5, l2 },
        Optimizer::Adagrad { lr, epsilon, initial_accumulator, l2 },
        Optimizer::RowAdagrad { lr, epsilon, initial_accumulator, l2 },
        adam,
        Optimizer::AdamW { lr, beta1: 0.9, beta2: 0.99, epsilon, weight_decay: 0.5 },
        Optimizer::Ftrl { lr, beta: 1.0, l1: 0.01, l2 },
    ]
}

fn table(optimizer: Optimizer, element: WeightType) -> Table {
    let limits = UpdateLimits { clip_norm: 0.5, ..UpdateLimits::default() };
    let schedule = LearningRateSchedule::Linear { warmup: 2, decay: 50, floor: 0.1 };
    let init = Initializer::Uniform { bound: 1.0 };
    let config =
        TableConfig { dim: DIM, init, optimizer, element, limits, schedule, stripes: 2, ..TableConfig::default() };
    Table::new(5, 2, &config).unwrap()
}

fn push(table: &Table, rows: &[(u64, f32)], number: u64, share: f32) {
    let ids: Vec<u64> = rows.iter().map(|(id, _)| *id).collect();
    // Eighths of integers, whose sums are exact in any order.
    let gradients: Vec<f32> =
        rows.iter().flat_map(|(_, value)| (0..DIM).map(move |index| value * (index as f32 - 1.0))).collect();
    table.push(&ids, &gradients, PushStep { share, ..number.into() }, &mut RequestBuffers::new()).unwrap();
}

/// Rows with their optimiser state.
fn rows(table: &Table) -> RowBatch {
    let mut rows = RowBatch::default();
    for stripe in 0..table.stripes() {
        let mut ids = table.ids_in_memory(stripe);
        ids.sort_unstable();
        table.read_rows(stripe, &ids, &mut rows);
    }
    rows
}

fn values() -> impl Strategy<Value = Vec<(u64, f32)>> {
    let gradient = (-8_i8..8).prop_map(|eighths| f32::from(eighths) / 8.0);
    prop::collection::vec((0_u64..12, gradient), 0..10)
}

proptest! {
    /// Each sample of a step is with one of three workers, or all are with one: rows and states have the same bits.
    #[test]
    fn three_workers_leave_the_rows_that_one_leaves(steps in prop::collection::vec([values(), values(), values()], 1..6)) {
        for element in [WeightType::F32, WeightType::Bf16, WeightType::Int8] {
            for optimizer in optimizers() {
                let (alone, together) = (table(optimizer, element), table(optimizer, element));
                for (number, parts) in steps.iter().enumerate() {
                    push(&alone, &parts.concat(), number as u64, 1.0);
                    for (part, share) in parts.iter().zip_eq([0.5, 0.25, 0.25]) {
                        push(&together, part, number as u64, share);
                    }
                }
                prop_assert_eq!(rows(&alone), rows(&together), "{:?} {:?}", optimizer, element);
            }
        }
    }

    /// Workers are up to one step apart, as with a staleness of 1: pushes of two steps come in any order.
    #[test]
    fn pushes_of_two_steps_may_come_in_any_order(
        steps in prop::collection::vec([values(), values(), values()], 1..6), order in prop::collection::vec(0_usize..3, 20),
    ) {
        for element in [WeightType::F32, WeightType::Int8] {
            for optimizer in optimizers() {
                let (alone, together) = (table(optimizer, element), table(optimizer, element));
                for (number, parts) in steps.iter().enumerate() {
                    push(&alone, &parts.concat(), number as u64, 1.0);
                }
                let mut next = [0; 3];
                let again = order.iter().copied().cycle().take(300).chain((0..3).cycle().take(30));
                for worker in again {
                    let number = next[worker];
                    let slowest = next.into_iter().min().unwrap_or_default();
                    if number < steps.len() && number <= slowest + 1 {
                        push(&together, &steps[number][worker], number as u64, [0.5, 0.25, 0.25][worker]);
                        next[worker] += 1;
                    }
                }
                prop_assert_eq!(next, [steps.len(); 3]);
                prop_assert_eq!(rows(&alone), rows(&together), "{:?} {:?}", optimizer, element);
                prop_assert_eq!(together.event_counts().late_gradients, 0);
            }
        }
    }

    /// A push that comes two steps late is counted, and the later steps stay open: what comes is what the same push before both makes.
    #[test]
    fn a_late_push_leaves_the_later_steps_open(value in -8_i8..8) {
        let other = (8..).find(|id| crate::stripe_of_id(*id, 2) == crate::stripe_of_id(7, 2)).unwrap();
        for optimizer in optimizers() {
            let (found, expected) = (table(optimizer, WeightType::F32), table(optimizer, WeightType::F32));
            let late = |table: &Table| push(table, &[(7, f32::from(value) / 8.0)], 1, 0.5);
            let open = |table: &Table| [2, 3].into_iter().for_each(|number| push(table, &[(7, 0.5)], number, 0.25));
            [2, 3].into_iter().for_each(|number| push(&expected, &[(other, 0.5)], number, 0.25));
            late(&expected);
            open(&expected);
            open(&found);
            push(&found, &[(other, 0.5)], 2, 0.25);
            push(&found, &[(other, 0.5)], 3, 0.25);
            late(&found);
            [&found, &expected].into_iter().for_each(open);
            prop_assert_eq!(rows(&found), rows(&expected), "{:?}", optimizer);
            prop_assert_eq!((found.event_counts().late_gradients, expected.event_counts().late_gradients), (1, 1));
        }
    }
}

#[test]
fn a_late_push_is_an_update_of_its_own_and_loses_no_other() {
    let optimizer = Optimizer::Sgd { lr: 1.0, momentum: 0.0, l2: 0.0 };
    let plain = TableConfig { dim: DIM, optimizer, stripes: 1, ..TableConfig::default() };
    let (found, expected) = (Table::new(5, 2, &plain).unwrap(), Table::new(5, 2, &plain).unwrap());
    // The pushes of two workers at steps 3 to 5, in an order that a group does not promise.
    for (number, value) in [(3, 0.5), (4, 0.25), (5, 1.0), (3, 2.0), (4, 4.0), (5, 0.125), (3, 8.0)] {
        push(&found, &[(7, value)], number, 0.5);
    }
    assert_eq!(found.event_counts().late_gradients, 2);
    push(&expected, &[(7, 15.875)], 0, 1.0);
    assert_eq!(rows(&found), rows(&expected));
}

#[test]
fn what_changes_a_row_between_two_pushes_of_a_step_stays() {
    let sgd = Optimizer::Sgd { lr: 1.0, momentum: 0.0, l2: 0.0 };
    let config = TableConfig { dim: DIM, optimizer: sgd, stripes: 1, ..TableConfig::default() };
    let table = Table::new(5, 2, &config).unwrap();
    let read = || {
        let mut row = [f32::NAN; DIM];
        table.lookup(&[7], LookupMode::Read, &mut row, &mut RequestBuffers::new()).unwrap();
        row[0]
    };
    push(&table, &[(7, 1.0)], 1, 0.5);
    assert_eq!(read(), 1.0);
    let put = RowBatch { ids: vec![7], slots: vec![10.0_f32.to_bits(); DIM], access: Vec::new() };
    table.insert(&put, &mut RequestBuffers::new()).unwrap();
    push(&table, &[(7, 1.0)], 1, 0.5);
    assert_eq!(read(), 11.0);
    // A push of all samples, as that of a step in which the other worker has none left.
    push(&table, &[(7, 2.0)], 2, 1.0);
    push(&table, &[(7, 1.0)], 1, 0.5);
    assert_eq!(read(), 14.0);
    // One of the step before, and then another push of all samples.
    push(&table, &[(7, 1.0)], 3, 0.5);
    push(&table, &[(7, 1.0)], 4, 1.0);
    push(&table, &[(7, 1.0)], 2, 0.5);
    push(&table, &[(7, 1.0)], 5, 1.0);
    push(&table, &[(7, 1.0)], 2, 0.5);
    assert_eq!(read(), 19.0);
}
