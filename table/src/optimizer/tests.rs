//! Checks every optimiser against its equations in f64, and against results by hand.

use proptest::prelude::*;
use zagros_zip::ZipEq;

use super::*;

/// One row in f64, with its number of updates.
struct ReferenceRow {
    weights: Vec<f64>,
    state: [Vec<f64>; 2],
    count: i32,
}

impl ReferenceRow {
    fn new(optimizer: Optimizer, weights: &[f32]) -> Self {
        let weights: Vec<f64> = weights.iter().map(|weight| f64::from(*weight)).collect();
        let zeros = || vec![0.0; weights.len()];
        let mut state = [zeros(), zeros()];
        match optimizer {
            Optimizer::Adagrad { initial_accumulator, .. } | Optimizer::RowAdagrad { initial_accumulator, .. } => {
                state[0].fill(initial_accumulator.into());
            }
            Optimizer::Ftrl { lr, beta, l1, l2 } => {
                let [lr, beta, l1, l2] = [lr, beta, l1, l2].map(f64::from);
                state[0] = weights.iter().map(|w| -w * (beta / lr + l2) - w.signum() * l1).collect();
            }
            _ => {}
        }
        Self { weights, state, count: 0 }
    }

    fn step(&mut self, optimizer: Optimizer, gradient: &[f32]) {
        self.count += 1;
        let gradient: Vec<f64> = gradient.iter().map(|value| f64::from(*value)).collect();
        if let Optimizer::RowAdagrad { l2, .. } = optimizer {
            let total = |index: usize| gradient[index] + f64::from(l2) * self.weights[index];
            let mean = (0..gradient.len()).map(|index| total(index).powi(2)).sum::<f64>() / gradient.len() as f64;
            self.state[0].iter_mut().for_each(|sum| *sum += mean);
        }
        for (index, gradient) in gradient.into_iter().enumerate() {
            self.element(optimizer, index, gradient);
        }
    }

    /// The equations in the documentation of [`Optimizer`].
    fn element(&mut self, optimizer: Optimizer, index: usize, gradient: f64) {
        let w = &mut self.weights[index];
        let [first, second] = self.state.each_mut().map(|part| &mut part[index]);
        match optimizer {
            Optimizer::Sgd { lr, momentum: 0.0, l2 } => *w -= f64::from(lr) * (gradient + f64::from(l2) * *w),
            Optimizer::Sgd { lr, momentum, l2 } => {
                *first = f64::from(momentum) * *first + gradient + f64::from(l2) * *w;
                *w -= f64::from(lr) * *first;
            }
            Optimizer::Adagrad { lr, epsilon, l2, .. } => {
                let total = gradient + f64::from(l2) * *w;
                *first += total * total;
                *w -= f64::from(lr) * total / (first.sqrt() + f64::from(epsilon));
            }
            Optimizer::RowAdagrad { lr, epsilon, l2, .. } => {
                *w -= f64::from(lr) * (gradient + f64::from(l2) * *w) / (first.sqrt() + f64::from(epsilon));
            }
            Optimizer::Adam { lr, beta1, beta2, epsilon, .. } | Optimizer::AdamW { lr, beta1, beta2, epsilon, .. } => {
                let [lr, b1, b2, epsilon] = [lr, beta1, beta2, epsilon].map(f64::from);
                let (l2, weight_decay) = match optimizer {
                    Optimizer::Adam { l2, .. } => (l2, 0.0),
                    Optimizer::AdamW { weight_decay, .. } => (0.0, weight_decay),
                    _ => unreachable!("it is one of both"),
                };
                let total = gradient + f64::from(l2) * *w;
                *first = b1 * *first + (1.0 - b1) * total;
                *second = b2 * *second + (1.0 - b2) * total * total;
                let corrected = [*first / (1.0 - b1.powi(self.count)), *second / (1.0 - b2.powi(self.count))];
                *w -= lr * (corrected[0] / (corrected[1].sqrt() + epsilon) + f64::from(weight_decay) * *w);
            }
            Optimizer::Ftrl { lr, beta, l1, l2 } => {
                let [lr, beta, l1, l2] = [lr, beta, l1, l2].map(f64::from);
                let sum = *second + gradient * gradient;
                *first += gradient - (sum.sqrt() - second.sqrt()) / lr * *w;
                *second = sum;
                let dense = -(*first - first.signum() * l1) / ((beta + sum.sqrt()) / lr + l2);
                *w = if first.abs() <= l1 { 0.0 } else { dense };
            }
            Optimizer::Dense { .. } => unreachable!("it has tests of its own"),
        }
    }
}

fn optimizers() -> impl Strategy<Value = Optimizer> {
    let rate = || 0.001_f32..0.1;
    let l2 = || 0.0_f32..0.1;
    let start = || 0.01_f32..1.0;
    prop_oneof![
        (rate(), l2()).prop_map(|(lr, l2)| Optimizer::Sgd { lr, momentum: 0.0, l2 }),
        (rate(), 0.0_f32..0.95, l2()).prop_map(|(lr, momentum, l2)| Optimizer::Sgd { lr, momentum, l2 }),
        (rate(), l2(), start()).prop_map(|(lr, l2, initial_accumulator)| {
            Optimizer::Adagrad { lr, epsilon: 1e-8, initial_accumulator, l2 }
        }),
        (rate(), l2(), start()).prop_map(|(lr, l2, initial_accumulator)| {
            Optimizer::RowAdagrad { lr, epsilon: 1e-8, initial_accumulator, l2 }
        }),
        (rate(), 0.5_f32..0.95, 0.9_f32..0.99, l2()).prop_map(|(lr, beta1, beta2, l2)| Optimizer::Adam {
            lr,
            beta1,
            beta2,
            epsilon: 1e-3,
            l2
        }),
        (rate(), 0.5_f32..0.95, 0.9_f32..0.99, l2()).prop_map(|(lr, beta1, beta2, weight_decay)| {
            Optimizer::AdamW { lr, beta1, beta2, epsilon: 1e-3, weight_decay }
        }),
        // l1 is 0: rounding may cross its threshold. A test by hand covers l1.
        (rate(), 0.5_f32..2.0, l2()).prop_map(|(lr, beta, l2)| Optimizer::Ftrl { lr, beta, l1: 0.0, l2 }),
    ]
}

fn slot(optimizer: Optimizer, weights: &[f32]) -> Vec<f32> {
    let mut slot = weights.to_vec();
    slot.resize(weights.len() + optimizer.state_len(weights.len()), f32::NAN);
    let (weights, state) = slot.split_at_mut(weights.len());
    optimizer.init_state(weights, state);
    slot
}

/// The slot of a row of one weight after some gradients.
fn slot_after(optimizer: Optimizer, weight: f32, gradients: &[f32]) -> Vec<f32> {
    let mut slot = slot(optimizer, &[weight]);
    gradients.iter().for_each(|gradient| optimizer.update_slot(&mut slot, &[*gradient], &UpdateLimits::default()));
    slot
}

fn near(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{found:?} {expected:?}");
    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 2e-6 * b.abs().max(1.0);
    assert!(found.iter().zip_eq(expected).all(close), "{found:?} {expected:?}");
}

proptest! {
    #[test]
    fn every_update_follows_the_written_out_reference(
        optimizer in optimizers(),
        first in prop::collection::vec(-1.0_f32..1.0, 1..40),
        steps in prop::collection::vec(prop::collection::vec(-1.0_f32..1.0, 40), 1..12),
    ) {
        let dim = first.len();
        let mut slot = slot(optimizer, &first);
        let mut reference = ReferenceRow::new(optimizer, &first);
        for step in &steps {
            optimizer.update_slot(&mut slot, &step[..dim], &UpdateLimits::default());
            reference.step(optimizer, &step[..dim]);
        }
        for (index, expected) in reference.weights.into_iter().enumerate() {
            let found = f64::from(slot[index]);
            prop_assert!((found - expected).abs() <= 1e-4 * expected.abs().max(1.0), "{index}: {found} {expected}");
        }
    }

    #[test]
    fn a_zero_gradient_moves_no_fresh_row_without_decay(optimizer in optimizers(), weight in -1.0_f32..1.0) {
        let (epsilon, l2) = (0.0, 0.0);
        let still = match optimizer {
            Optimizer::Sgd { lr, momentum, .. } => Optimizer::Sgd { lr, momentum, l2 },
            Optimizer::Adagrad { lr, .. } => Optimizer::Adagrad { lr, epsilon, initial_accumulator: 0.0, l2 },
            Optimizer::RowAdagrad { lr, .. } => Optimizer::RowAdagrad { lr, epsilon, initial_accumulator: 0.0, l2 },
            Optimizer::Adam { lr, beta1, beta2, .. } => Optimizer::Adam { lr, beta1, beta2, epsilon, l2 },
            Optimizer::AdamW { lr, beta1, beta2, .. } => {
                Optimizer::AdamW { lr, beta1, beta2, epsilon, weight_decay: 0.0 }
            }
            Optimizer::Ftrl { lr, l2, .. } => Optimizer::Ftrl { lr, beta: 0.0, l1: 0.1, l2 },
            dense @ Optimizer::Dense { .. } => dense,
        };
        prop_assert_eq!(slot_after(still, weight, &[0.0, 0.0])[0], weight);
    }
}

#[test]
fn descent_and_adagrad_by_hand() {
    // 1 − 0.5·(1 + 0.25·1) and −2 − 0.5·(1 − 0.25·2)
    let sgd = Optimizer::Sgd { lr: 0.5, momentum: 0.0, l2: 0.25 };
    assert_eq!([slot_after(sgd, 1.0, &[1.0]), slot_after(sgd, -2.0, &[1.0])], [[0.375], [-2.25]]);
    // v = 2, then 0.5·2 + 1 = 2.
    let momentum = Optimizer::Sgd { lr: 0.25, momentum: 0.5, l2: 0.0 };
    assert_eq!([slot_after(momentum, 1.0, &[2.0]), slot_after(momentum, 1.0, &[2.0, 1.0])], [[0.5, 2.0], [0.0, 2.0]]);
    // a = 16 + 9, step = 0.5·3 / 5; a = 25 + 144, step = 0.5·12 / 13.
    let adagrad = Optimizer::Adagrad { lr: 0.5, epsilon: 0.0, initial_accumulator: 16.0, l2: 0.0 };
    assert_eq!(slot_after(adagrad, 1.0, &[3.0]), [0.7, 25.0]);
    assert_eq!(slot_after(adagrad, 1.0, &[3.0, 12.0]), [0.7 - 6.0 / 13.0, 169.0]);
    // The mean of 1 and 49 is 25.
    let row_adagrad = Optimizer::RowAdagrad { lr: 1.0, epsilon: 0.0, initial_accumulator: 0.0, l2: 0.0 };
    let mut slot = slot(row_adagrad, &[1.0, 1.0]);
    row_adagrad.update_slot(&mut slot, &[1.0, 7.0], &UpdateLimits::default());
    near(&slot, &[0.8, -0.4, 25.0]);
}

#[test]
fn adam_by_hand() {
    let (lr, beta1, beta2, epsilon) = (0.1, 0.9, 0.99, 0.0);
    let adam = |l2| Optimizer::Adam { lr, beta1, beta2, epsilon, l2 };
    let decayed = Optimizer::AdamW { lr, beta1, beta2, epsilon, weight_decay: 0.5 };
    // With bias correction the first step is lr·sign(g), whatever the size of g.
    near(&slot_after(adam(0.0), 1.0, &[5.0]), &[0.9, 0.5, 0.25, 0.9, 0.99]);
    // The decoupled decay subtracts lr·0.5·w. An L2 penalty would change the gradient, but not the first step.
    near(&slot_after(decayed, 1.0, &[5.0])[..1], &[0.85]);
    near(&slot_after(adam(0.5), 1.0, &[5.0])[..1], &[0.9]);
    // m = 0.9·0.5 − 0.1·5 = −0.05, m̂ = −0.05 / 0.19; v = 0.99·0.25 + 0.25, v̂ = 0.4975 / 0.0199 = 25.
    near(&slot_after(adam(0.0), 1.0, &[5.0, -5.0])[..1], &[0.9 + 0.1 * 0.05 / 0.19 / 5.0]);
}

#[test]
fn the_correction_ends_at_none() {
    let optimizer = Optimizer::Adam { lr: 0.0, beta1: 0.9, beta2: 0.99, epsilon: 0.0, l2: 0.0 };
    let slot = slot_after(optimizer, 1.0, &vec![1.0; 10_000]);
    assert_eq!(slot[3..], [0.0, 0.0]);
    assert!(slot[1..3].iter().all(|moment| (moment - 1.0).abs() < 1e-4), "{slot:?}");
}

#[test]
fn ftrl_by_hand() {
    let optimizer = Optimizer::Ftrl { lr: 0.5, beta: 1.0, l1: 1.0, l2: 0.0 };
    // z = 3, n = 9: w = −(3 − 1) / ((1 + 3) / 0.5) = −0.25.
    near(&slot_after(optimizer, 0.0, &[3.0]), &[-0.25, 3.0, 9.0]);
    // σ = (5 − 3) / 0.5 = 4: z = 3 − 4 + 4·0.25 = 0, within l1.
    near(&slot_after(optimizer, 0.0, &[3.0, -4.0]), &[0.0, 0.0, 25.0]);
}

#[test]
fn settings_out_of_range_are_named() {
    for (optimizer, named) in [
        (Optimizer::Sgd { lr: 0.1, momentum: 1.0, l2: 0.0 }, "momentum: 1.0"),
        (Optimizer::Ftrl { lr: 0.0, beta: 1.0, l1: 0.0, l2: 0.0 }, "Ftrl { lr: 0.0"),
        (Optimizer::Adam { lr: 0.1, beta1: 0.9, beta2: 0.99, epsilon: f32::NAN, l2: 0.0 }, "epsilon: NaN"),
    ] {
        assert!(optimizer.problem().unwrap().contains(named), "{named}");
    }
}
