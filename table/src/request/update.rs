//! What all rows of a push have in common, and how a push changes one row.

use crate::PushStep;
use crate::config::RowLayout;
use crate::optimizer::{Optimizer, RateFactor};
use crate::row::weight_type::{StepNoise, WeightType};

/// The settings of one push, as its rows need them.
pub(crate) struct RowUpdate<'a> {
    layout: RowLayout,
    pub(crate) step: PushStep,
    /// With the learning rate of the step.
    optimizer: Optimizer,
    rate: RateFactor,
    noise: StepNoise,
    /// The weights of a narrow row during the update, `[dim]`.
    weights: &'a mut [f32],
}

impl<'a> RowUpdate<'a> {
    /// The update of a push at `step`. It reuses `buffer`.
    #[inline(always)]
    pub(crate) fn new(layout: RowLayout, step: PushStep, buffer: &'a mut Vec<f32>) -> Self {
        if layout.element != WeightType::F32 {
            buffer.resize(layout.dim, 0.0);
        }
        Self::with_buffer(layout, step, buffer)
    }

    #[inline(always)]
    fn with_buffer(layout: RowLayout, step: PushStep, weights: &'a mut [f32]) -> Self {
        let rate = layout.schedule.rate(step.number);
        let noise = StepNoise::new(layout.seed, layout.table, step.number);
        Self { layout, step, optimizer: layout.optimizer.at_rate(rate).for_tiles(step), rate, noise, weights }
    }

    pub(crate) fn at_step(&mut self, number: u64) -> RowUpdate<'_> {
        RowUpdate::with_buffer(self.layout, PushStep { number, ..self.step }, self.weights)
    }

    /// Whether other pushes may have gradients of the same step for the same rows.
    #[inline(always)]
    pub(crate) fn is_part(&self) -> bool {
        self.step.share < 1.0
    }

    /// Adds a gradient to the sum of a row's earlier gradients. A sum beyond what a row accepts is clipped.
    #[inline(always)]
    pub(crate) fn add_gradient(&self, sum: &mut [f32], gradient: &[f32]) {
        let largest = self.layout.limits.largest_gradient();
        for index in 0..gradient.len() {
            sum[index] = (sum[index] + gradient[index]).clamp(-largest, largest);
        }
    }

    /// Applies one gradient to the slot of one row. Its penalties count as much as this push has of the step's samples.
    #[inline(never)]
    pub(crate) fn apply_late(&mut self, slot: &mut [u32], key: u64, gradient: &[f32]) {
        let whole = self.optimizer;
        self.optimizer = whole.with_share(self.step.share);
        self.apply(slot, key, gradient);
        self.optimizer = whole;
    }

    #[inline(always)]
    pub(crate) fn apply(&mut self, slot: &mut [u32], key: u64, gradient: &[f32]) {
        if self.layout.element == WeightType::F32 {
            let (weights, state) = bytemuck::cast_slice_mut(slot).split_at_mut(gradient.len());
            self.optimizer.apply(weights, state, gradient, &self.layout.limits, self.rate);
        } else {
            self.apply_narrow(slot, key, gradient);
        }
    }

    #[inline(always)]
    fn apply_narrow(&mut self, slot: &mut [u32], key: u64, gradient: &[f32]) {
        let (element, weights) = (self.layout.element, &mut self.weights[..gradient.len()]);
        let (words, state) = slot.split_at_mut(self.layout.weights);
        element.decode(words, weights);
        self.optimizer.apply(weights, bytemuck::cast_slice_mut(state), gradient, &self.layout.limits, self.rate);
        element.encode_stochastic(weights, words, self.noise.row(key));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zagros_zip::ZipEq;

    use super::*;
    use crate::{Initializer, LearningRateSchedule, TableConfig};

    const SEED: u64 = 5;
    /// With the distance between numbers of the size of these tests' weights.
    const NARROW: [(WeightType, f64); 3] =
        [(WeightType::F16, 1.0 / 1024.0), (WeightType::Bf16, 1.0 / 128.0), (WeightType::Int8, 1.0 / 64.0)];

    fn optimizers() -> [Optimizer; 6] {
        let (lr, l2, epsilon, initial_accumulator) = (0.05, 0.001, 1e-8, 0.1);
        [
            Optimizer::Sgd { lr, momentum: 0.0, l2 },
            Optimizer::Sgd { lr, momentum: 0.5, l2 },
            Optimizer::Adagrad { lr, epsilon, initial_accumulator, l2 },
            Optimizer::RowAdagrad { lr, epsilon, initial_accumulator, l2 },
            Optimizer::AdamW { lr, beta1: 0.9, beta2: 0.99, epsilon: 1e-3, weight_decay: 0.01 },
            Optimizer::Ftrl { lr, beta: 1.0, l1: 0.0, l2 },
        ]
    }

    fn layout(element: WeightType, optimizer: Optimizer, schedule: LearningRateSchedule, dim: usize) -> RowLayout {
        let init = Initializer::Uniform { bound: 1.0 };
        TableConfig { dim, init, optimizer, schedule, element, ..TableConfig::default() }.layout(SEED, 2)
    }

    /// The weights of row 3 after each push.
    fn trained(layout: RowLayout, gradients: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let (mut slot, mut buffer) = (vec![0; layout.stride], Vec::new());
        layout.fill_slot(3, &mut slot);
        let train_step = |(step, gradient): (usize, &Vec<f32>)| {
            RowUpdate::new(layout, (step as u64).into(), &mut buffer).apply(&mut slot, 3, gradient);
            let mut weights = vec![f32::NAN; layout.dim];
            layout.read_weights(&slot, &mut weights);
            weights
        };
        gradients.iter().enumerate().map(train_step).collect()
    }

    proptest! {
        /// Each push may round by one step of the number format, and no more. Other tests check the optimisers against
        /// their equations in f64.
        #[test]
        fn a_narrow_row_follows_the_exact_one(
            gradients in prop::collection::vec(prop::collection::vec(-1.0_f32..1.0, 19), 1..12),
        ) {
            for optimizer in optimizers() {
                let exact = trained(layout(WeightType::F32, optimizer, LearningRateSchedule::Constant, 19), &gradients);
                for (element, unit) in NARROW {
                    let narrow = trained(layout(element, optimizer, LearningRateSchedule::Constant, 19), &gradients);
                    for (push, (narrow, exact)) in narrow.iter().zip_eq(&exact).enumerate() {
                        for (narrow, exact) in narrow.iter().zip_eq(exact) {
                            // An update keeps or shrinks earlier errors. The l2 penalties change them little.
                            let allowed = unit * (push + 2) as f64 * 2.0;
                            let error = f64::from((narrow - exact).abs());
                            prop_assert!(error <= allowed, "{optimizer:?} push {push}: {narrow} {exact}");
                        }
                    }
                }
            }
        }

        /// Without l1 and l2, FTRL is gradient descent with the learning rate lr·factor / (β+√n), for any factors.
        #[test]
        fn ftrl_under_a_schedule_is_descent_with_its_rates(
            gradients in prop::collection::vec(prop_oneof![4 => -1.0_f32..1.0, 1 => Just(0.0)], 1..30),
            decay in 1_u64..20,
            warmup in 0_u64..5,
        ) {
            let schedule = LearningRateSchedule::Cosine { warmup, decay, floor: 0.0 };
            let optimizer = Optimizer::Ftrl { lr: 0.5, beta: 1.0, l1: 0.0, l2: 0.0 };
            let layout = layout(WeightType::F32, optimizer, schedule, 1);
            let rows: Vec<Vec<f32>> = gradients.iter().map(|gradient| vec![*gradient]).collect();
            let found = trained(layout, &rows);
            let (mut weight, mut squares) = ([0.0_f32], 0.0_f64);
            layout.fill_weights(3, &mut weight);
            let mut weight = f64::from(weight[0]);
            for (step, gradient) in gradients.into_iter().enumerate() {
                let rate = 0.5 * f64::from(schedule.rate_factor(step as u64));
                squares += if rate > 0.0 { f64::from(gradient).powi(2) } else { 0.0 };
                weight -= rate / (1.0 + squares.sqrt()) * f64::from(gradient);
                prop_assert!((f64::from(found[step][0]) - weight).abs() < 1e-4, "{step}: {found:?} {weight}");
            }
        }
    }

    #[test]
    fn a_schedule_scales_the_step_of_every_optimiser() {
        let half = LearningRateSchedule::Step { warmup: 0, every: 1, factor: 0.5 };
        for optimizer in optimizers() {
            let (mut start, gradients) = ([0.0], [vec![0.25], vec![-0.5], vec![0.125]]);
            let scheduled = trained(layout(WeightType::F32, optimizer, half, 1), &gradients);
            layout(WeightType::F32, optimizer, half, 1).fill_weights(3, &mut start);
            let whole = trained(layout(WeightType::F32, optimizer, LearningRateSchedule::Constant, 1), &gradients);
            // The factor of step 0 is 1. FTRL uses another formula under a schedule.
            assert!((scheduled[0][0] - whole[0][0]).abs() < 1e-6, "{optimizer:?}");
            assert!(scheduled[0] != [start[0]], "{optimizer:?}");
            let [full, halved] = [&whole, &scheduled].map(|rows| rows[1][0] - rows[0][0]);
            assert!((halved / full - 0.5).abs() < 1e-3, "{optimizer:?}: {full} {halved}");
        }
    }

    /// Compares one push with weighted pushes that are applied one by one. A row in all these pushes decays as much as with
    /// one push, except that the second push of a step sees the decay of the first.
    #[test]
    fn penalties_of_late_pushes_count_by_their_shares() {
        let (lr, l2, epsilon, initial_accumulator) = (0.05, 0.1, 1e-8, 1.0);
        let decaying = [
            Optimizer::Sgd { lr, momentum: 0.0, l2 },
            Optimizer::Sgd { lr, momentum: 0.5, l2 },
            Optimizer::Adagrad { lr, epsilon, initial_accumulator, l2 },
            Optimizer::RowAdagrad { lr, epsilon, initial_accumulator, l2 },
            Optimizer::Adam { lr, beta1: 0.0, beta2: 0.0, epsilon: 1.0, l2 },
            Optimizer::AdamW { lr, beta1: 0.9, beta2: 0.99, epsilon: 1e-3, weight_decay: 2.0 * l2 },
        ];
        for optimizer in decaying {
            let norm = |shares: &[f32]| {
                let layout = layout(WeightType::F32, optimizer, LearningRateSchedule::Constant, 8);
                let (mut slot, mut buffer, mut weights) = (vec![0; layout.stride], Vec::new(), vec![0.0; 8]);
                layout.fill_slot(3, &mut slot);
                for number in 0..100 {
                    for share in shares {
                        // The gradient of the loss is 0, so only decay moves the row.
                        let step = PushStep { share: *share, ..number.into() };
                        RowUpdate::new(layout, step, &mut buffer).apply_late(&mut slot, 3, &[0.0; 8]);
                    }
                }
                layout.read_weights(&slot, &mut weights);
                weights.iter().map(|weight| weight * weight).sum::<f32>().sqrt()
            };
            let (first, alone) = (norm(&[]), norm(&[1.0]));
            assert!(alone < 0.9 * first, "{optimizer:?}: it must decay to tell, {first} to {alone}");
            for shares in [&[0.5, 0.5][..], &[0.75, 0.25], &[0.25, 0.25, 0.5]] {
                let decays = (first - norm(shares)) / (first - alone);
                // Adagrad's sums of squares grow more slowly in parts. Without the share, the ratio would be near 2.
                assert!((0.95..1.2).contains(&decays), "{optimizer:?} {shares:?}: {decays} times the decay of one");
            }
        }
    }

    #[test]
    fn at_a_learning_rate_of_zero_no_weight_moves() {
        let nothing = LearningRateSchedule::Linear { warmup: 0, decay: 1, floor: 0.0 };
        for optimizer in optimizers() {
            let rows = trained(layout(WeightType::F32, optimizer, nothing, 2), &vec![vec![0.5, -0.5]; 9]);
            assert_eq!(rows[8], rows[0], "{optimizer:?}");
        }
    }

    /// Minimises (w − 1/3)² from w = 1. Each step is smaller than half the distance between numbers of the format, so no weight
    /// would move if it were rounded to the nearest number. An int8 row has that distance at the scale that it starts with.
    #[test]
    fn stochastic_rounding_learns_where_rounding_to_the_nearest_stalls() {
        const TARGET: f32 = 1.0 / 3.0;
        let (dim, lr) = (256, 1e-3);
        for element in [WeightType::Bf16, WeightType::Int8] {
            let (init, optimizer) =
                (Initializer::Constant { value: 1.0 }, Optimizer::Sgd { lr, momentum: 0.0, l2: 0.0 });
            let config = TableConfig { dim, init, optimizer, element, ..TableConfig::default() };
            let layout = config.layout(SEED, 0);
            let (mut slot, mut buffer, mut weights) = (vec![0; layout.stride], Vec::new(), vec![0.0; dim]);
            layout.fill_slot(0, &mut slot);
            for step in 0..5000 {
                layout.read_weights(&slot, &mut weights);
                let gradient: Vec<f32> = weights.iter().map(|weight| weight - TARGET).collect();
                RowUpdate::new(layout, step.into(), &mut buffer).apply(&mut slot, 0, &gradient);
            }
            let mean = weights.iter().sum::<f32>() / dim as f32;
            assert!((mean - TARGET).abs() < 0.01, "{}: {mean}", element.name());
            // The first weight stands for the scale.
            let mut stalled = [1.0; 2];
            for _ in 0..5000 {
                stalled[1] -= lr * (stalled[1] - TARGET);
                element.round_nearest(&mut stalled);
            }
            assert!((stalled[1] - 1.0).abs() < 1e-4, "{}: {}", element.name(), stalled[1]);
        }
    }
}
