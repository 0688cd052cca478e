//! Numeric transforms: clip, then logarithm, then standardisation or scaling to 0…1; and where in a row the results are.

use std::sync::Arc;

use zagros_job::{Features, Numeric, Scaling};

use crate::DataPart;
use crate::category::CategoryEncoder;

/// Results for integers below this are looked up, because most counts are small and a logarithm costs as much as parsing
/// the number.
const REMEMBERED: usize = 512;

/// What comes before statistics are measured: clip and logarithm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumericShape {
    clip: [f64; 2],
    log: bool,
}

impl NumericShape {
    pub(crate) fn new(column: &Numeric) -> Self {
        Self { clip: column.clip.unwrap_or([f64::MIN, f64::MAX]), log: column.log }
    }

    #[inline]
    pub(crate) fn apply(self, value: f64) -> f64 {
        let value = value.max(self.clip[0]).min(self.clip[1]);
        if self.log { symmetric_log(value) } else { value }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct NumberTransform {
    shape: NumericShape,
    shift: f64,
    scale: f64,
    /// Least and greatest result.
    bounds: [f64; 2],
    missing: f32,
    small: Box<[f32]>,
}

impl NumberTransform {
    /// The transform of number `index` of the column. Statistics that are not measured yet are ignored here, because the measurement
    /// itself reads this way.
    pub(crate) fn new(column: &Numeric, index: usize) -> Self {
        let any = [f64::from(f32::MIN), f64::from(f32::MAX)];
        let (shift, scale, bounds) = match (&column.standardise, &column.min_max) {
            (Scaling::Given(moments), _) => {
                let [mean, deviation] = moments.number_pair(index);
                (mean, deviation, any)
            }
            (_, Scaling::Given(range)) => {
                let [min, max] = range.number_pair(index);
                (min, max - min, [0.0, 1.0])
            }
            _ => (0.0, 1.0, any),
        };
        let (shape, missing) = (NumericShape::new(column), column.missing);
        let mut transform = Self { shape, shift, scale, bounds, missing, small: Box::default() };
        transform.small = (0..REMEMBERED).map(|value| transform.compute(value as f64)).collect();
        transform
    }

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

/// A number of a row, and the inputs of the network that it becomes.
#[derive(Clone, Debug)]
pub(crate) struct NumericInput {
    transform: NumberTransform,
    /// Index of the transformed number in the row's inputs.
    position: usize,
    /// Index of the input that is 1 where a number of the feature is missing.
    indicator: Option<usize>,
}

impl NumericInput {
    /// Those of all features that read numbers: one for each number, in order.
    pub(crate) fn from_features(features: &Features) -> Vec<Self> {
        let mut inputs = Vec::new();
        for (column, start) in input_starts(features).filter(|(column, _)| column.encode.is_none()) {
            let values = column.value_count();
            let indicator = column.missing_indicator.then_some(start + values);
            inputs.extend((0..values).map(|index| {
                let transform = NumberTransform::new(column, index);
                Self { transform, position: start + index, indicator }
            }));
        }
        inputs
    }

    /// Writes the number to its inputs, which are 0 before the first number of the row.
    #[inline]
    pub(crate) fn write_input(&self, value: Option<f64>, row: &mut [f32]) {
        row[self.position] = self.transform.apply(value);
        if let Some(indicator) = self.indicator.filter(|_| value.is_none()) {
            row[indicator] = 1.0;
        }
    }
}

/// Where in a row the number of an encoded category is.
#[derive(Clone, Debug)]
pub(crate) struct EncodedInput {
    encoder: CategoryEncoder,
    position: usize,
}

impl EncodedInput {
    /// Those of all features that encode a category, in order, for the rows of a part.
    pub(crate) fn from_features(features: &Features, part: DataPart) -> Vec<Self> {
        let input = |(column, position): (&Numeric, usize)| {
            let encoding = column.encode.as_ref()?;
            Some(Self { encoder: CategoryEncoder::new(encoding, part), position })
        };
        input_starts(features).filter_map(input).collect()
    }

    #[inline]
    pub(crate) fn write_input(&self, id: u64, place: u64, row: &mut [f32]) {
        row[self.position] = self.encoder.encode(id, place);
    }
}

/// The numeric features, each with the position of its first input.
fn input_starts(features: &Features) -> impl Iterator<Item = (&Numeric, usize)> {
    features.numeric.iter().scan(0, |end, column| {
        let start = *end;
        *end += column.input_count();
        Some((column, start))
    })
}

/// The numeric feature of each number of a row, in order, where none is encoded.
pub(crate) fn features_of_numbers(features: &Features) -> Arc<[usize]> {
    let each = features.numeric.iter().enumerate();
    each.flat_map(|(feature, column)| std::iter::repeat_n(feature, column.value_count())).collect()
}

/// ln(1 + x) for x ≥ 0, and −ln(1 − x) below: defined everywhere, odd, nearly linear around zero.
#[inline]
pub(crate) fn symmetric_log(value: f64) -> f64 {
    value.abs().ln_1p().copysign(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zagros_job::{ColumnMoments, ColumnRange};
    use zagros_zip::ZipEq;

    use super::*;

    fn column(log: bool, mean: f64, deviation: f64) -> Numeric {
        let standardise = Scaling::Given(ColumnMoments { mean: vec![mean], deviation: vec![deviation] });
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
        let standard = column(true, 1.0, 2.0);
        let transform = NumberTransform::new(&standard, 0);
        let expected = (1001.0_f64.ln() - 1.0) / 2.0;
        assert!((f64::from(transform.apply(Some(1000.0))) - expected).abs() < 1e-6);
        let clipped = NumberTransform::new(&Numeric { clip: Some([-3.0, 1000.0]), ..standard }, 0);
        assert_eq!(clipped.apply(Some(1e9)), transform.apply(Some(1000.0)));
        assert_eq!(clipped.apply(Some(-1e9)), transform.apply(Some(-3.0)));
        assert_eq!(transform.apply(None), -1.5, "a missing value is not transformed");
    }

    #[test]
    fn a_range_becomes_zero_to_one_and_values_beyond_it_stay_there() {
        let min_max = Scaling::Given(ColumnRange { min: vec![-2.0], max: vec![6.0] });
        let scaled = Numeric { min_max, ..Numeric::from("n".to_owned()) };
        let transform = NumberTransform::new(&scaled, 0);
        let found = [-9.0, -2.0, 0.0, 2.0, 6.0, 7.0].map(|value| transform.apply(Some(value)));
        assert_eq!(found, [0.0, 0.0, 0.25, 0.5, 1.0, 1.0]);
    }

    #[test]
    fn the_numbers_of_a_vector_are_transformed_each_and_share_an_indicator() {
        let vector = Numeric {
            width: Some(2),
            standardise: Scaling::Given(ColumnMoments { mean: vec![1.0, 10.0], deviation: vec![1.0, 5.0] }),
            missing: 7.0,
            missing_indicator: true,
            ..Numeric::from("v".to_owned())
        };
        let one = Numeric { missing_indicator: true, ..Numeric::from("n".to_owned()) };
        let mut features = crate::fixture::delimited(|_| ()).features;
        features.numeric = vec![one, vector];
        let (inputs, mut rows) = (NumericInput::from_features(&features), [[0.0; 5]; 3]);
        let values = [[Some(3.0), Some(3.0), Some(20.0)], [None, Some(3.0), None], [Some(0.0), None, None]];
        for (row, values) in rows.iter_mut().zip_eq(values) {
            inputs.iter().zip_eq(values).for_each(|(input, value)| input.write_input(value, row));
        }
        assert_eq!(rows, [[3.0, 0.0, 2.0, 2.0, 0.0], [0.0, 1.0, 2.0, 7.0, 1.0], [0.0, 0.0, 7.0, 7.0, 1.0]]);
        assert_eq!(features_of_numbers(&features)[..], [0, 1, 1]);
    }

    proptest! {
        #[test]
        fn looked_up_results_equal_computed_ones(
            value in prop_oneof![-600.0..600.0, (-600_i32..600).prop_map(f64::from)],
            log: bool,
            clip in prop::option::of(Just([-5.0, 77.5])),
        ) {
            let given = column(log, 0.3, 1.7);
            let transform = NumberTransform::new(&Numeric { clip, ..given }, 0);
            prop_assert_eq!(transform.apply(Some(value)), transform.compute(value));
        }

        #[test]
        fn results_are_finite(value in -3.0e38..3.0e38, log: bool) {
            let transform = NumberTransform::new(&column(log, 0.0, 1e-9), 0);
            prop_assert!(transform.apply(Some(value)).is_finite());
        }
    }
}
