//! The loop that all element-wise rules share, and limits on what enters and leaves it.

/// Weights that are updated together.
const LANES: usize = 8;

/// Largest value of a gradient that a row takes unclipped, and of a weight, whatever other limits there are: 2⁴⁰.
///
/// Nothing that a row learns from is near it, and with it nothing that an optimiser computes leaves the range of f32:
/// squares are at most 2⁸², so that it takes 2⁴⁶ of them to make a sum infinite. One infinite sum would silence an
/// Adagrad or Adam row for good, since whatever is divided by it is 0.
pub const LARGEST: f32 = (1_u64 << 40) as f32;

/// What a gradient and a weight may be. Infinite limits are none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Gradients of a row are cut to `[-clip_value, clip_value]`, one by one.
    pub clip_value: f32,
    /// Then scaled down together to this Euclidean norm, where theirs is larger.
    pub clip_norm: f32,
    /// Weights are cut to `[-weight_bound, weight_bound]` after the update.
    pub weight_bound: f32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { clip_value: f32::INFINITY, clip_norm: f32::INFINITY, weight_bound: f32::INFINITY }
    }
}

/// Limits as they apply to one row and its gradient.
#[derive(Clone, Copy)]
pub(super) struct Shaping {
    clip_value: f32,
    scale: f32,
    weight_bound: f32,
}

impl Limits {
    /// The first limit that limits to nothing, or is none at all.
    pub(crate) fn problem(&self) -> Option<String> {
        let limits =
            [("clip_value", self.clip_value), ("clip_norm", self.clip_norm), ("weight_bound", self.weight_bound)];
        let (name, value) = limits.into_iter().find(|(_, value)| !matches!(value, 0.0.. if *value > 0.0))?;
        Some(format!("{name} is {value}; expected a number above 0, infinite for no limit"))
    }

    /// Largest value of a gradient that is safe to apply: clipped ones may come as large as they are.
    pub(crate) fn largest_gradient(&self) -> f32 {
        if self.clip_value.min(self.clip_norm) <= LARGEST { f32::MAX } else { LARGEST }
    }

    #[inline(always)]
    pub(super) fn shaping(&self, gradient: &[f32]) -> Shaping {
        let scale = if self.clip_norm == f32::INFINITY { 1.0 } else { self.scale(gradient) };
        Shaping { clip_value: self.clip_value, scale, weight_bound: self.weight_bound }
    }

    fn scale(&self, gradient: &[f32]) -> f32 {
        let square = |value: &f32| f64::from(clip(*value, self.clip_value)).powi(2);
        // In f64 no square of an f32 overflows.
        let norm = gradient.iter().map(square).sum::<f64>().sqrt();
        (f64::from(self.clip_norm) / norm).min(1.0) as f32
    }
}

impl Shaping {
    /// One value of the gradient as the rule sees it.
    #[inline(always)]
    pub(super) fn gradient(&self, value: f32) -> f32 {
        clip(value, self.clip_value) * self.scale
    }
}

/// In comparisons that are one instruction each. What is no number becomes `-limit`.
#[inline(always)]
fn clip(value: f32, limit: f32) -> f32 {
    let value = if value > -limit { value } else { -limit };
    if value < limit { value } else { limit }
}

/// Applies a rule `(weight, state, gradient) → (weight, state)` to each weight of a row whose state is `PARTS` vectors
/// as long as its weights. Vectors of known length: compilers unroll rows of unknown length past their end.
#[inline(always)]
pub(super) fn each<const PARTS: usize>(
    weights: &mut [f32],
    state: [&mut [f32]; PARTS],
    gradient: &[f32],
    shaping: Shaping,
    rule: impl Fn(f32, [f32; PARTS], f32) -> (f32, [f32; PARTS]),
) {
    let dim = weights.len();
    let (gradient, gradient_rest) = gradient[..dim].as_chunks::<LANES>();
    let (weights, weights_rest) = weights.as_chunks_mut::<LANES>();
    let mut state = state.map(|part| part[..dim].as_chunks_mut::<LANES>());
    for index in 0..weights.len() {
        // Read whole and written whole: nothing in between could overlap with what is still to be read.
        let (old, steps) = (weights[index], gradient[index]);
        let before: [[f32; LANES]; PARTS] = std::array::from_fn(
            #[inline(always)]
            |part| state[part].0[index],
        );
        // Whole arrays out of closures: a loop over lanes that writes several arrays stays a loop over single values.
        let results: [(f32, [f32; PARTS]); LANES] = std::array::from_fn(
            #[inline(always)]
            |lane| {
                let state = std::array::from_fn(
                    #[inline(always)]
                    |part| before[part][lane],
                );
                rule(old[lane], state, shaping.gradient(steps[lane]))
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
        let before = state.each_ref().map(|(_, rest)| rest[index]);
        let (weight, after) = rule(weights_rest[index], before, shaping.gradient(gradient_rest[index]));
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
            let limits = Limits { clip_value, clip_norm, ..Limits::default() };
            let shaping = limits.shaping(&gradient);
            let shaped: Vec<f64> = gradient.iter().map(|value| f64::from(shaping.gradient(*value))).collect();
            let norm = shaped.iter().map(|value| value * value).sum::<f64>().sqrt();
            prop_assert!(norm <= f64::from(clip_norm) * 1.000_01, "{norm}");
            prop_assert!(shaped.iter().all(|value| value.abs() <= f64::from(clip_value)));
        }

        #[test]
        fn every_element_meets_the_rule_once(dim in 0_usize..40) {
            let mut weights: Vec<f32> = (0..dim).map(|index| index as f32).collect();
            let (mut state, gradient) = (vec![1.0; dim], vec![2.0; dim]);
            let shaping = Limits::default().shaping(&gradient);
            each(&mut weights, [&mut state], &gradient, shaping, |weight, [seen], step| (weight + step, [seen + 1.0]));
            prop_assert!(weights.iter().enumerate().all(|(index, weight)| *weight == index as f32 + 2.0));
            prop_assert!(state.iter().all(|seen| *seen == 2.0));
        }
    }

    #[test]
    fn value_is_cut_before_norm() {
        let limits = Limits { clip_value: 4.0, clip_norm: 2.5, ..Limits::default() };
        // (3, 100) is cut to (3, 4), of norm 5, and halved.
        let shaping = limits.shaping(&[3.0, 100.0]);
        assert_eq!([3.0, 100.0].map(|value| shaping.gradient(value)), [1.5, 2.0]);
        assert_eq!(Limits::default().shaping(&[3.0]).gradient(3.0), 3.0);
        assert_eq!(limits.shaping(&[0.0]).gradient(0.0), 0.0);
    }

    #[test]
    fn weights_stay_inside_their_bound() {
        let limits = Limits { weight_bound: 0.5, ..Limits::default() };
        let mut weights = [0.0; 9];
        each(&mut weights, [], &[1.0; 9], limits.shaping(&[1.0; 9]), |_, [], step| (step, []));
        assert_eq!(weights, [0.5; 9]);
    }

    #[test]
    fn a_limit_of_nothing_is_refused() {
        for value in [0.0, -1.0, f32::NAN] {
            let limits = Limits { clip_norm: value, ..Limits::default() };
            assert!(limits.problem().unwrap().contains("clip_norm is"), "{value}");
        }
        assert_eq!(Limits::default().problem(), None);
    }
}
