//! Count, mean and deviation of a stream of numbers, read once, mergeable.

/// Sums around a shift (the first value), so that a large mean does not cost the deviation's precision. Merged by Chan,
/// Golub & LeVeque 1979.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MomentSums {
    count: u64,
    shift: f64,
    sum: f64,
    squares: f64,
}

impl MomentSums {
    pub(crate) const NONE: Self = Self { count: 0, shift: 0.0, sum: 0.0, squares: 0.0 };

    #[inline]
    pub(crate) fn add(&mut self, value: f64) {
        if self.count == 0 {
            self.shift = value;
        }
        let distance = value - self.shift;
        self.count += 1;
        self.sum += distance;
        self.squares += distance * distance;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        if self.count == 0 {
            *self = *other;
            return;
        }
        let (ours, theirs) = (self.count as f64, other.count as f64);
        let shift = other.mean() - self.mean();
        let spread = self.spread() + other.spread() + shift * shift * ours * theirs / (ours + theirs);
        let mean = self.mean() + shift * theirs / (ours + theirs);
        *self = Self { count: self.count + other.count, shift: mean, sum: 0.0, squares: spread };
    }

    /// The mean; 0 without values.
    pub(crate) fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.shift + self.sum / self.count as f64 }
    }

    /// The population deviation; 0 without values.
    pub(crate) fn deviation(&self) -> f64 {
        if self.count == 0 { 0.0 } else { (self.spread() / self.count as f64).sqrt() }
    }

    fn spread(&self) -> f64 {
        (self.squares - self.sum * self.sum / self.count as f64).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn moments(values: &[f64]) -> MomentSums {
        let mut moments = MomentSums::default();
        values.iter().for_each(|value| moments.add(*value));
        moments
    }

    fn by_two_passes(values: &[f64]) -> (f64, f64) {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
        (mean, variance.sqrt())
    }

    #[test]
    fn a_large_mean_does_not_hide_the_deviation() {
        let values: Vec<f64> = (0..1_000).map(|n| 1.6e12 + f64::from(n % 2)).collect();
        assert!((moments(&values).deviation() - 0.5).abs() < 1e-6);
    }

    #[test]
    fn none_is_zero() {
        assert_eq!((moments(&[]).mean(), moments(&[]).deviation(), moments(&[]).count), (0.0, 0.0, 0));
    }

    proptest! {
        #[test]
        fn merged_parts_equal_the_moments_of_the_whole(parts in prop::collection::vec(prop::collection::vec(-1e3..1e3, 0..20), 1..6)) {
            let whole = parts.concat();
            prop_assume!(!whole.is_empty());
            let mut merged = MomentSums::default();
            parts.iter().for_each(|part| merged.merge(&moments(part)));
            let (mean, deviation) = by_two_passes(&whole);
            prop_assert_eq!(merged.count, whole.len() as u64);
            prop_assert!((merged.mean() - mean).abs() < 1e-9 && (merged.deviation() - deviation).abs() < 1e-6);
        }
    }
}
