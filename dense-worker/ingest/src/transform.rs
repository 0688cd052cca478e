//! Numeric transforms: logarithm, then standardisation.

use zagros_job::{Numeric, Standardise};

/// Results for integers below this are looked up, because most counts are small and a logarithm costs as much as parsing
/// the number.
const REMEMBERED: usize = 512;

/// The transform of one numeric column.
#[derive(Clone, Debug)]
pub(crate) struct Transform {
    log: bool,
    mean: f64,
    deviation: f64,
    missing: f32,
    small: Box<[f32]>,
}

impl Transform {
    /// The column's transform. [`Standardise::Fit`] is ignored here, because the measurement itself reads this way.
    pub(crate) fn new(column: &Numeric) -> Self {
        let (mean, deviation) = match column.standardise {
            Standardise::No | Standardise::Fit => (0.0, 1.0),
            Standardise::Given { mean, deviation } => (mean, deviation),
        };
        let mut transform = Self { log: column.log, mean, deviation, missing: column.missing, small: Box::default() };
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
        let value = if self.log { symmetric_log(value) } else { value };
        let standard = (value - self.mean) / self.deviation;
        standard.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
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
        Numeric { column: "I1".into(), log, standardise, missing: -1.5 }
    }

    #[test]
    fn the_logarithm_is_odd() {
        assert_eq!(symmetric_log(0.0), 0.0);
        assert!((symmetric_log(std::f64::consts::E - 1.0) - 1.0).abs() < 1e-15);
        assert_eq!(symmetric_log(-7.0), -symmetric_log(7.0));
    }

    #[test]
    fn logarithm_comes_before_standardisation() {
        let transform = Transform::new(&column(true, Standardise::Given { mean: 1.0, deviation: 2.0 }));
        let expected = (1001.0_f64.ln() - 1.0) / 2.0;
        assert!((f64::from(transform.apply(Some(1000.0))) - expected).abs() < 1e-6);
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
        ) {
            let transform = Transform::new(&column(log, Standardise::Given { mean: 0.3, deviation: 1.7 }));
            prop_assert_eq!(transform.apply(Some(value)), transform.compute(value));
        }

        #[test]
        fn results_are_finite(value in -3.0e38..3.0e38, log: bool) {
            let transform = Transform::new(&column(log, Standardise::Given { mean: 0.0, deviation: 1e-9 }));
            prop_assert!(transform.apply(Some(value)).is_finite());
        }
    }
}
