//! The temperature of a calibrator: logits are divided by it.

/// Bounds of the inverse of a temperature.
const SCALES: (f64, f64) = (1e-3, 1e3);

/// Halvings of the interval that is left for the scale: 2⁻⁶⁰ of it is less than its rounding.
const MOST_STEPS: usize = 60;

/// The factor of all logits with the least loss, between [`SCALES`]. `slope` is the loss's first and second derivative by the factor.
/// The loss is convex, so Newton's steps between the bounds find it.
pub(crate) fn best_scale(slope: impl Fn(f64) -> (f64, f64)) -> f64 {
    let ((mut low, mut high), mut scale) = (SCALES, 1.0);
    for _ in 0..MOST_STEPS {
        let (first, second) = slope(scale);
        if first > 0.0 {
            high = scale;
        } else {
            low = scale;
        }
        let newton = scale - first / second;
        // Newton's step can leave the interval in which the slope changes its sign. Its geometric middle cannot.
        let next = if newton > low && newton < high { newton } else { (low * high).sqrt() };
        if (next - scale).abs() <= 1e-12 * scale {
            return next;
        }
        scale = next;
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_a_convex_loss_is_found_and_the_bounds_are_kept() {
        // (s − 5)² / 2.
        assert!((best_scale(|scale| (scale - 5.0, 1.0)) - 5.0).abs() < 1e-9);
        // Falling or rising everywhere, without a curvature.
        assert!(best_scale(|_| (-1.0, 0.0)) > 0.99 * SCALES.1);
        assert!(best_scale(|_| (1.0, 0.0)) < 1.01 * SCALES.0);
    }
}
