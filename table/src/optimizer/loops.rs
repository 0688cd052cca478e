//! The loop of all element-wise rules, and the limits on its gradients and weights.

const LANES: usize = 8;

/// The largest unclipped gradient that a row accepts, and the largest weight, whatever the other limits: 2⁴⁰.
///
/// No useful gradient or weight comes near this limit. Within it, no computation of an optimiser overflows f32: squares
/// are at most 2⁸², so a sum of 2⁴⁶ of them is still finite. An infinite sum would stop an Adagrad or Adam row from
/// learning for good, because a number divided by infinity is 0.
pub const LARGEST: f32 = (1_u64 << 40) as f32;

/// Limits of gradients and weights. An infinite limit limits nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateLimits {
    /// Each value of a gradient is clipped to `[-clip_value, clip_value]`.
    pub clip_value: f32,
    /// Then a row's gradient is scaled down to this Euclidean norm, if its norm is larger.
    pub clip_norm: f32,
    /// A weight is clipped to `[-weight_bound, weight_bound]` after the update.
    pub weight_bound: f32,
}

impl Default for UpdateLimits {
    fn default() -> Self {
        Self { clip_value: f32::INFINITY, clip_norm: f32::INFINITY, weight_bound: f32::INFINITY }
    }
}

#[derive(Clone, Copy)]
pub(super) struct RowLimits {
    clip_value: f32,
    scale: f32,
    weight_bound: f32,
}

impl UpdateLimits {
    pub(crate) fn problem(&self) -> Option<String> {
        let limits =
            [("clip_value", self.clip_value), ("clip_norm", self.clip_norm), ("weight_bound", self.weight_bound)];
        let (name, value) = limits.into_iter().find(|(_, value)| !matches!(value, 0.0.. if *value > 0.0))?;
        Some(format!("{name} is {value}; expected a number above 0, infinite for no limit"))
    }

    /// The largest gradient value that is safe to apply. A clipped gradient may have any size.
    pub(crate) fn largest_gradient(&self) -> f32 {
        if self.clip_value.min(self.clip_norm) <= LARGEST { f32::MAX } else { LARGEST }
    }

    #[inline(always)]
    pub(super) fn row_limits(&self, gradient: &[f32]) -> RowLimits {
        let scale = if self.clip_norm == f32::INFINITY { 1.0 } else { self.scale(gradient) };
        RowLimits { clip_value: self.clip_value, scale, weight_bound: self.weight_bound }
    }

    fn scale(&self, gradient: &[f32]) -> f32 {
        let square = |value: &f32| f64::from(clip(*value, self.clip_value)).powi(2);
        // The square of an f32 does not overflow in f64.
        let norm = gradient.iter().map(square).sum::<f64>().sqrt();
        (f64::from(self.clip_norm) / norm).min(1.0) as f32
    }
}

impl RowLimits {
    #[inline(always)]
    pub(super) fn clip_gradient(&self, value: f32) -> f32 {
        clip(value, self.clip_value) * self.scale
    }
}

/// Uses comparisons that are one instruction each. NaN becomes `-limit`.
#[inline(always)]
fn clip(value: f32, limit: f32) -> f32 {
    let value = if value > -limit { value } else { -limit };
    if value < limit { value } else { limit }
}

/// Applies a rule `(weight, state, gradient) → (weight, state)` to each weight of a row. The state is `PARTS` vectors,
/// each as long as the weights. The loop works on vectors of known length, because compilers unroll a loop of unknown
/// length too far.
#[inline(always)]
pub(super) fn update_each<const PARTS: usize>(
    weights: &mut [f32],
    state: [&mut [f32]; PARTS],
    gradient: &[f32],
    shaping: RowLimits,
    rule: impl Fn(f32, [f32; PARTS], f32) -> (f32, [f32; PARTS]),
) {
    let dim = weights.len();
    let (gradient, gradient_rest) = gradient[..dim].as_chunks::<LANES>();
    let (weights, weights_rest) = weights.as_chunks_mut::<LANES>();
    let mut state = state.map(|part| part[..dim].as_chunks_mut::<LANES>());
    for index in 0..weights.len() {
        // Reads all values before it writes any, so the compiler need not assume that they overlap.
        let (old, steps) = (weights[index], gradient[index]);
        let old_state: [[f32; LANES]; PARTS] = std::array::from_fn(
            #[inline(always)]
            |part| state[part].0[index],
        );
        // Builds whole arrays with closures. The compiler does not vectorise a loop over lanes that writes several
        // arrays.
        let results: [(f32, [f32; PARTS]); LANES] = std::array::from_fn(
            #[inline(always)]
            |lane| {
                let state = std::array::from_fn(
                    #[inline(always)]
                    |part| old_state[part][lane],
                );
                rule(old[lane], state, shaping.clip_gradient(steps[lane]))
            },
        );
        weights[index] = std::array::from_fn(
            #[inline(always)]
            |lane| clip(results[lane].0, shaping.weight_bound),
        );
        for (part, (chunks, _)) in state.iter_mut().enumerate() {
            chunks[index] = std::array::from_fn(
                #[inline(always)]
                |lane| results[lane].1[part],
            );
        }
    }
    for index in 0..weights_rest.len() {
        let old_state = state.each_ref().map(|(_, rest)| rest[index]);
        let (weight, after) = rule(weights_rest[index], old_state, shaping.clip_gradient(gradient_rest[index]));
        weights_rest[index] = clip(weight, shaping.weight_bound);
        for part in 0..PARTS {
            state[part].1[index] = after[part];
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_gradient_is_never_longer_than_its_limit(
            gradient in prop::collection::vec(-1e38_f32..1e38, 1..20),
            clip_value in 1e-3_f32..1e38,
            clip_norm in 1e-3_f32..1e30,
        ) {
            let limits = UpdateLimits { clip_value, clip_norm, ..UpdateLimits::default() };
            let shaping = limits.row_limits(&gradient);
            let shaped: Vec<f64> = gradient.iter().map(|value| f64::from(shaping.clip_gradient(*value))).collect();
            let norm = shaped.iter().map(|value| value * value).sum::<f64>().sqrt();
            prop_assert!(norm <= f64::from(clip_norm) * 1.000_01, "{norm}");
            prop_assert!(shaped.iter().all(|value| value.abs() <= f64::from(clip_value)));
        }

        #[test]
        fn the_rule_is_applied_to_every_element_once(dim in 0_usize..40) {
            let mut weights: Vec<f32> = (0..dim).map(|index| index as f32).collect();
            let (mut state, gradient) = (vec![1.0; dim], vec![2.0; dim]);
            let shaping = UpdateLimits::default().row_limits(&gradient);
            update_each(&mut weights, [&mut state], &gradient, shaping, |weight, [seen], step| (weight + step, [seen + 1.0]));
            prop_assert!(weights.iter().enumerate().all(|(index, weight)| *weight == index as f32 + 2.0));
            prop_assert!(state.iter().all(|seen| *seen == 2.0));
        }
    }

    #[test]
    fn value_is_cut_before_norm() {
        let limits = UpdateLimits { clip_value: 4.0, clip_norm: 2.5, ..UpdateLimits::default() };
        // The value limit makes (3, 4) of (3, 100). The norm limit halves (3, 4), whose norm is 5.
        let shaping = limits.row_limits(&[3.0, 100.0]);
        assert_eq!([3.0, 100.0].map(|value| shaping.clip_gradient(value)), [1.5, 2.0]);
        assert_eq!(UpdateLimits::default().row_limits(&[3.0]).clip_gradient(3.0), 3.0);
        assert_eq!(limits.row_limits(&[0.0]).clip_gradient(0.0), 0.0);
    }

    #[test]
    fn weights_stay_inside_their_bound() {
        let limits = UpdateLimits { weight_bound: 0.5, ..UpdateLimits::default() };
        let mut weights = [0.0; 9];
        update_each(&mut weights, [], &[1.0; 9], limits.row_limits(&[1.0; 9]), |_, [], step| (step, []));
        assert_eq!(weights, [0.5; 9]);
    }

    #[test]
    fn a_limit_that_is_not_above_zero_is_refused() {
        for value in [0.0, -1.0, f32::NAN] {
            let limits = UpdateLimits { clip_norm: value, ..UpdateLimits::default() };
            assert!(limits.problem().unwrap().contains("clip_norm is"), "{value}");
        }
        assert_eq!(UpdateLimits::default().problem(), None);
    }
}
