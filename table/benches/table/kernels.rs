//! The arithmetic of an update, on rows in the cache: one value at a time, compiled for every processor of the
//! architecture, and compiled for this processor's vectors.

use std::hint::black_box;
use std::time::Instant;

use zagros_table::optimizer::{Optimizer, UpdateLimits};
use zagros_table::run_wide;

use crate::{Plan, gradients};

/// Rows that fit into the L1 or L2 cache.
const ROWS: usize = 128;

pub(crate) fn run(plan: &Plan) {
    println!("\nnanoseconds a row, in cache            one by one   any processor   this processor");
    for dim in &plan.dims {
        for (name, optimizer) in optimizers() {
            let [single, plain, vectors] = [0, 1, 2].map(|way| measure(plan, *dim, optimizer, way));
            assert!(single.1 == plain.1 && plain.1 == vectors.1, "{name}: the three differ");
            println!("  dim {dim:2}  {name:<10} {:26.1} {:15.1} {:16.1}", single.0, plain.0, vectors.0);
        }
    }
}

fn optimizers() -> [(&'static str, Optimizer); 3] {
    let (lr, l2, epsilon) = (0.01, 0.0, 1e-8);
    [
        ("sgd", Optimizer::Sgd { lr, momentum: 0.0, l2 }),
        ("adagrad", Optimizer::Adagrad { lr, epsilon, initial_accumulator: 0.1, l2 }),
        ("adam", Optimizer::Adam { lr, beta1: 0.9, beta2: 0.999, epsilon, l2 }),
    ]
}

/// Time of an update per row, and the rows at the end.
fn measure(plan: &Plan, dim: usize, optimizer: Optimizer, way: usize) -> (f64, Vec<f32>) {
    let stride = dim + optimizer.state_len(dim);
    let mut rows = vec![0.1; ROWS * stride];
    let gradient = gradients(dim);
    let mut fastest = f64::INFINITY;
    for _ in 0..20 * plan.passes {
        let start = Instant::now();
        match way {
            0 => rows.chunks_exact_mut(stride).for_each(|row| one_by_one(optimizer, row, &gradient)),
            1 => rows
                .chunks_exact_mut(stride)
                .for_each(|row| optimizer.update_slot(row, &gradient, &UpdateLimits::default())),
            _ => run_wide(
                #[inline(always)]
                || {
                    for row in rows.chunks_exact_mut(stride) {
                        optimizer.update_slot(row, &gradient, &UpdateLimits::default());
                    }
                },
            ),
        }
        fastest = fastest.min(start.elapsed().as_secs_f64());
    }
    (fastest * 1e9 / ROWS as f64, rows)
}

/// Treats each weight as a row of its own, so compilers cannot vectorise it. Each such row has its own copy of a row's
/// shared state.
fn one_by_one(optimizer: Optimizer, row: &mut [f32], gradient: &[f32]) {
    let (dim, parts) = (gradient.len(), row.len() / gradient.len());
    let (values, shared) = row.split_at_mut(dim * parts);
    let mut slot = [0.0; 5];
    for index in 0..dim {
        for part in 0..parts {
            slot[part] = values[part * dim + index];
        }
        slot[parts..][..shared.len()].copy_from_slice(shared);
        let slot = &mut slot[..black_box(parts + shared.len())];
        optimizer.update_slot(slot, &gradient[index..=index], &UpdateLimits::default());
        for part in 0..parts {
            values[part * dim + index] = slot[part];
        }
    }
    shared.copy_from_slice(&slot[parts..][..shared.len()]);
}
