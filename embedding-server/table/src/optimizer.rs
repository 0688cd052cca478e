//! How a gradient changes a row. Each optimiser declares how many values of state it keeps beside the weights.
//!
//! The loops run over slices cut to one length, which lets the compiler drop the bounds checks and vectorise.

/// Weights that are updated together.
const LANES: usize = 8;

/// An optimiser and its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// g ← g + l2·w; w ← w − lr·g
    Sgd {
        /// Learning rate.
        lr: f32,
        /// L2 penalty.
        l2: f32,
    },
    /// g ← g + l2·w; a ← a + g²; w ← w − lr·g / (√a + ε), element-wise (Duchi, Hazan and Singer 2011).
    Adagrad {
        /// Learning rate.
        lr: f32,
        /// Added to the root, so that a fresh accumulator of zero divides by something.
        epsilon: f32,
        /// First value of the accumulator a.
        initial_accumulator: f32,
        /// L2 penalty.
        l2: f32,
    },
}

impl Optimizer {
    /// Values of state kept for a row of `dim` weights.
    #[must_use]
    pub fn state_len(&self, dim: usize) -> usize {
        match self {
            Self::Sgd { .. } => 0,
            Self::Adagrad { .. } => dim,
        }
    }

    /// Name of the state's layout, written into saved rows: rows saved under one layout are not read under another.
    #[must_use]
    pub fn layout(&self) -> &'static str {
        match self {
            Self::Sgd { .. } => "sgd",
            Self::Adagrad { .. } => "adagrad",
        }
    }

    /// State of a row that has seen no gradient.
    #[inline]
    pub fn init_state(&self, state: &mut [f32]) {
        match *self {
            Self::Sgd { .. } => {}
            Self::Adagrad { initial_accumulator, .. } => state.fill(initial_accumulator),
        }
    }

    /// Applies one gradient to one slot `[weights | state]`; the weights are as many as the gradient's values.
    ///
    /// # Panics
    /// When the slot is shorter than weights and state: [`crate::Table`] cuts slots to the optimiser's own size.
    #[inline(always)]
    pub fn update(&self, slot: &mut [f32], gradient: &[f32]) {
        let (weights, state) = slot.split_at_mut(gradient.len());
        match *self {
            Self::Sgd { lr, l2 } => sgd(weights, gradient, lr, l2),
            Self::Adagrad { lr, epsilon, l2, .. } => adagrad(weights, state, gradient, [lr, epsilon, l2]),
        }
    }

    /// The first setting that is out of range.
    pub(crate) fn problem(&self) -> Option<String> {
        let settings = match *self {
            Self::Sgd { lr, l2 } => vec![("lr", lr), ("l2", l2)],
            Self::Adagrad { lr, epsilon, initial_accumulator, l2 } => {
                vec![("lr", lr), ("epsilon", epsilon), ("initial_accumulator", initial_accumulator), ("l2", l2)]
            }
        };
        let bad = settings.into_iter().find(|(_, value)| !(value.is_finite() && *value >= 0.0))?;
        Some(format!("{} of {} is {}; expected a finite number of at least 0", bad.0, self.layout(), bad.1))
    }
}

#[inline(always)]
fn sgd(weights: &mut [f32], gradient: &[f32], lr: f32, l2: f32) {
    each(
        weights,
        [],
        gradient,
        #[inline(always)]
        |weight, [], gradient| (weight - lr * (gradient + l2 * weight), []),
    );
}

#[inline(always)]
fn adagrad(weights: &mut [f32], accumulator: &mut [f32], gradient: &[f32], [lr, epsilon, l2]: [f32; 3]) {
    each(
        weights,
        [accumulator],
        gradient,
        #[inline(always)]
        |weight, [sum], gradient| {
            let total = gradient + l2 * weight;
            let sum = sum + total * total;
            // ε of zero and no gradient yet would be 0 / 0; a zero gradient moves nothing.
            let step = lr * total / (sum.sqrt() + epsilon);
            (weight - if total == 0.0 { 0.0 } else { step }, [sum])
        },
    );
}

/// Applies an element-wise rule `(weight, state, gradient) → (weight, state)` to a row whose state is `PARTS` vectors as
/// long as its weights. Vectors of known length: compilers unroll rows of unknown length past their end.
#[inline(always)]
fn each<const PARTS: usize>(
    weights: &mut [f32],
    state: [&mut [f32]; PARTS],
    gradient: &[f32],
    rule: impl Fn(f32, [f32; PARTS], f32) -> (f32, [f32; PARTS]),
) {
    let dim = weights.len();
    let (gradient, gradient_rest) = gradient[..dim].as_chunks::<LANES>();
    let (weights, weights_rest) = weights.as_chunks_mut::<LANES>();
    let mut state = state.map(|part| part[..dim].as_chunks_mut::<LANES>());
    for index in 0..weights.len() {
        // Read whole and written whole: nothing in between could overlap with what is still to be read.
        let (old, steps) = (weights[index], gradient[index]);
        let before = state.each_ref().map(|(part, _)| part[index]);
        let (mut new, mut after) = (old, before);
        for lane in 0..LANES {
            let values;
            (new[lane], values) = rule(old[lane], before.map(|part| part[lane]), steps[lane]);
            for part in 0..PARTS {
                after[part][lane] = values[part];
            }
        }
        weights[index] = new;
        for part in 0..PARTS {
            state[part].0[index] = after[part];
        }
    }
    for index in 0..weights_rest.len() {
        let values = state.each_mut().map(|(_, rest)| rest[index]);
        let (weight, values) = rule(weights_rest[index], values, gradient_rest[index]);
        weights_rest[index] = weight;
        for part in 0..PARTS {
            state[part].1[index] = values[part];
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The equations of the type's documentation, in f64, one weight at a time.
    fn reference(optimizer: Optimizer, weight: &mut f64, accumulator: &mut f64, gradient: f64) {
        match optimizer {
            Optimizer::Sgd { lr, l2 } => {
                let total = gradient + f64::from(l2) * *weight;
                *weight -= f64::from(lr) * total;
            }
            Optimizer::Adagrad { lr, epsilon, l2, .. } => {
                let total = gradient + f64::from(l2) * *weight;
                *accumulator += total * total;
                *weight -= f64::from(lr) * total / (accumulator.sqrt() + f64::from(epsilon));
            }
        }
    }

    fn optimizers() -> impl Strategy<Value = Optimizer> {
        let setting = || 0.0_f32..0.1;
        prop_oneof![
            (setting(), setting()).prop_map(|(lr, l2)| Optimizer::Sgd { lr, l2 }),
            (setting(), setting(), 0.01_f32..1.0).prop_map(|(lr, l2, initial_accumulator)| Optimizer::Adagrad {
                lr,
                epsilon: 1e-8,
                initial_accumulator,
                l2
            }),
        ]
    }

    fn close(value: f32, reference: f64) -> bool {
        (f64::from(value) - reference).abs() <= 1e-5 * reference.abs().max(1.0)
    }

    proptest! {
        #[test]
        fn every_update_follows_the_written_out_reference(
            optimizer in optimizers(),
            first in prop::collection::vec(-1.0_f32..1.0, 1..40),
            steps in prop::collection::vec(prop::collection::vec(-1.0_f32..1.0, 40), 1..12),
        ) {
            let dim = first.len();
            let mut slot = first.clone();
            slot.resize(dim + optimizer.state_len(dim), 0.0);
            optimizer.init_state(&mut slot[dim..]);
            let mut weights: Vec<f64> = first.iter().map(|value| f64::from(*value)).collect();
            let mut sums = vec![f64::from(slot.get(dim).copied().unwrap_or(0.0)); dim];
            for step in &steps {
                optimizer.update(&mut slot, &step[..dim]);
                for index in 0..dim {
                    reference(optimizer, &mut weights[index], &mut sums[index], f64::from(step[index]));
                }
            }
            for index in 0..dim {
                prop_assert!(close(slot[index], weights[index]), "weight {index}: {} {}", slot[index], weights[index]);
            }
            for index in 0..slot.len() - dim {
                prop_assert!(close(slot[dim + index], sums[index]), "sum {index}");
            }
        }
    }

    #[test]
    fn sgd_by_hand() {
        let mut slot = [1.0, -2.0];
        Optimizer::Sgd { lr: 0.5, l2: 0.25 }.update(&mut slot, &[1.0, 1.0]);
        // 1 − 0.5·(1 + 0.25·1) and −2 − 0.5·(1 − 0.25·2)
        assert_eq!(slot, [0.375, -2.25]);
    }

    #[test]
    fn adagrad_by_hand() {
        let optimizer = Optimizer::Adagrad { lr: 0.5, epsilon: 0.0, initial_accumulator: 16.0, l2: 0.0 };
        let mut slot = [1.0, 0.0];
        optimizer.init_state(&mut slot[1..]);
        optimizer.update(&mut slot, &[3.0]);
        // a = 16 + 9, step = 0.5·3 / 5
        assert_eq!(slot, [0.7, 25.0]);
        optimizer.update(&mut slot, &[12.0]);
        // a = 25 + 144, step = 0.5·12 / 13
        assert_eq!(slot, [0.7 - 6.0 / 13.0, 169.0]);
    }

    #[test]
    fn a_zero_gradient_on_an_empty_accumulator_moves_nothing() {
        let optimizer = Optimizer::Adagrad { lr: 1.0, epsilon: 0.0, initial_accumulator: 0.0, l2: 0.0 };
        let mut slot = [0.25, 0.0];
        optimizer.update(&mut slot, &[0.0]);
        assert_eq!(slot, [0.25, 0.0]);
    }
}
