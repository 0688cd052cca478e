//! Numeric transforms: clip, then logarithm, then standardisation or scaling to 0…1.

use zagros_job::{MinMax, Numeric, Standardise};

/// Results for integers below this are looked up, because most counts are small and a logarithm costs as much as parsing
/// the number.
const REMEMBERED: usize = 512;

/// What comes before statistics are measured: clip and logarithm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    clip: [f64; 2],
    log: bool,
}

impl Shape {
    /// The column's.
    pub(crate) fn new(column: &Numeric) -> Self {
        Self { clip: column.clip.unwrap_or([f64::MIN, f64::MAX]), log: column.log }
    }

    /// The clipped value, or its logarithm.
    #[inline]
    pub(crate) fn apply(self, value: f64) -> f64 {
        let value = value.max(self.clip[0]).min(self.clip[1]);
        if self.log { symmetric_log(value) } else { value }
    }
}

/// The transform of one numeric column.
#[derive(Clone, Debug)]
pub(crate) struct Transform {
    shape: Shape,
    shift: f64,
    scale: f64,
    /// Least and greatest result.
    bounds: [f64; 2],
    missing: f32,
    small: Box<[f32]>,
}

impl Transform {
    /// The column's transform. Statistics that are not measured yet are ignored here, because the measurement itself reads this way.
    pub(crate) fn new(column: &Numeric) -> Self {
        let any = [f64::from(f32::MIN), f64::from(f32::MAX)];
        let (shift, scale, bounds) = match (column.standardise, column.min_max) {
            (Standardise::Given { mean, deviation }, _) => (mean, deviation, any),
            (_, MinMax::Given { min, max }) => (min, max - min, [0.0, 1.0]),
            _ => (0.0, 1.0, any),
        };
        let (shape, missing) = (Shape::new(column), column.missing);
        let mut transform = Self { shape, shift, scale, bounds, missing, small: Box::default() };
        transform.small = (0..REMEMBERED).map(|value| transform.compute(value as f64)).collect();
        transform
    }

    /// The network's input.
    #[inline]
    pub(crate) fn apply(&self, value: Option<f64>) -> f32 {
        let Some(value) = value else { return self.missing };
        // A float-to-integer cast saturates, so that negative values and fractions fail the comparison.
        let index = value as usize;
        match self.small.get(index) {
            Some(result) if index as f64 == value => *result,
            _ => self.compute(value),
        }
    }

    fn compute(&self, value: f64) -> f32 {
        let scaled = (self.shape.apply(value) - self.shift) / self.scale;
        scaled.clamp(self.bounds[0], self.bounds[1]) as f32
    }
}

/// ln(1 + x) for x ≥ 0, and −ln(1 − x) below: defined everywhere, odd, nearly linear around zero.
#[inline]
pub(crate) fn symmetric_log(value: f64) -> f64 {
    value.abs().ln_1p().copysign(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn column(log: bool, standardise: Standardise) -> Numeric {
        Numeric { log, standardise, missing: -1.5, ..Numeric::from("I1".to_owned()) }
    }

    #[test]
    fn the_logarithm_is_odd() {
        assert_eq!(symmetric_log(0.0), 0.0);
        assert!((symmetric_log(std::f64::consts::E - 1.0) - 1.0).abs() < 1e-15);
        assert_eq!(symmetric_log(-7.0), -symmetric_log(7.0));
    }

    #[test]
    fn clip_comes_before_the_logarithm_and_that_before_standardisation() {
        let standard = column(true, Standardise::Given { mean: 1.0, deviation: 2.0 });
        let transform = Transform::new(&standard);
        let expected = (1001.0_f64.ln() - 1.0) / 2.0;
        assert!((f64::from(transform.apply(Some(1000.0))) - expected).abs() < 1e-6);
        let clipped = Transform::new(&Numeric { clip: Some([-3.0, 1000.0]), ..standard });
        assert_eq!(clipped.apply(Some(1e9)), transform.apply(Some(1000.0)));
        assert_eq!(clipped.apply(Some(-1e9)), transform.apply(Some(-3.0)));
    }

    #[test]
    fn a_range_becomes_zero_to_one_and_values_beyond_it_stay_there() {
        let scaled = Numeric { min_max: MinMax::Given { min: -2.0, max: 6.0 }, ..Numeric::from("n".to_owned()) };
        let transform = Transform::new(&scaled);
        let found = [-9.0, -2.0, 0.0, 2.0, 6.0, 7.0].map(|value| transform.apply(Some(value)));
        assert_eq!(found, [0.0, 0.0, 0.25, 0.5, 1.0, 1.0]);
    }

    #[test]
    fn a_missing_value_is_not_transformed() {
        let transform = Transform::new(&column(true, Standardise::Given { mean: 9.0, deviation: 2.0 }));
        assert_eq!(transform.apply(None), -1.5);
    }

    proptest! {
        #[test]
        fn looked_up_results_equal_computed_ones(
            value in prop_oneof![-600.0..600.0, (-600_i32..600).prop_map(f64::from)],
            log: bool,
            clip in prop::option::of(Just([-5.0, 77.5])),
        ) {
            let given = column(log, Standardise::Given { mean: 0.3, deviation: 1.7 });
            let transform = Transform::new(&Numeric { clip, ..given });
            prop_assert_eq!(transform.apply(Some(value)), transform.compute(value));
        }

        #[test]
        fn results_are_finite(value in -3.0e38..3.0e38, log: bool) {
            let transform = Transform::new(&column(log, Standardise::Given { mean: 0.0, deviation: 1e-9 }));
            prop_assert!(transform.apply(Some(value)).is_finite());
        }
    }
}
