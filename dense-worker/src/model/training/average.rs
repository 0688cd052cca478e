//! The exponential moving average of a network's weights over its steps (Polyak and Juditsky 1992). It scores better than the last
//! weights, which swing around an optimum.

use zagros_zip::ZipEq;

#[derive(Clone, Debug)]
pub(crate) struct WeightAverage {
    /// Share that a step keeps, 0 .. 1.
    keep: f32,
    values: Vec<f32>,
}

impl WeightAverage {
    pub(crate) fn new(keep: f64, weights: &[f32]) -> Self {
        Self { keep: keep as f32, values: weights.to_vec() }
    }

    pub(crate) fn values(&self) -> &[f32] {
        &self.values
    }

    pub(crate) fn restart(&mut self, weights: &[f32]) {
        self.values.copy_from_slice(weights);
    }

    /// average ← keep·average + (1 − keep)·weights, the weights after a step.
    pub(crate) fn add(&mut self, weights: &[f32]) {
        let step = 1.0 - self.keep;
        self.values.iter_mut().zip_eq(weights).for_each(|(average, weight)| *average += step * (weight - *average));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_weighted_mean_of_all_weights() {
        let mut average = WeightAverage::new(0.75, &[1.0, 8.0]);
        for weights in [[2.0, 8.0], [-1.0, 0.0], [4.0, 16.0]] {
            average.add(&weights);
        }
        let expected = |[first, a, b, c]: [f32; 4]| 0.421_875 * first + 0.140_625 * a + 0.1875 * b + 0.25 * c;
        assert_eq!(average.values(), [expected([1.0, 2.0, -1.0, 4.0]), expected([8.0, 8.0, 0.0, 16.0])]);
        average.restart(&[3.0, 5.0]);
        assert_eq!(average.values(), [3.0, 5.0]);
    }
}
