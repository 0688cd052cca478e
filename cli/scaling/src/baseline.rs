//! Forecasts without a law, which a law should beat.

use crate::forecast::ForecastTarget;
use crate::measurement::{LawCell, Measurements, compute};

/// The mean loss of the largest trained size after the most samples, nats: "no gain".
#[must_use]
pub fn last_value(measured: &Measurements) -> Option<f64> {
    measured.last_of(measured.largest_size()).map(|cell| cell.mean_loss())
}

/// A straight line of the loss in the logarithm of the compute, through the sizes after the most samples, by least squares, nats.
#[must_use]
pub fn line_in_log_compute(measured: &Measurements, target: ForecastTarget) -> Option<f64> {
    let cells: Vec<LawCell> = measured.sizes().into_iter().filter_map(|size| measured.last_of(size)).collect();
    let points: Vec<(f64, f64)> = cells.iter().map(|cell| (cell.training_flop().ln(), cell.mean_loss())).collect();
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let slope = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum::<f64>() / spread;
    (spread > 0.0).then(|| y + slope * (training_flop(target.parameters, target.samples).ln() - x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::Measurement;

    #[test]
    fn baselines_are_a_value_and_a_line() {
        let one = |(parameters, loss): (f64, f64)| Measurement { parameters, samples: 1e6, seed: 1, loss };
        let measured = Measurements::new([(1e3, 0.7), (1e4, 0.6), (1e5, 0.5)].map(one).to_vec()).unwrap();
        let target = ForecastTarget { parameters: 1e6, samples: 1e6 };
        assert_eq!(last_value(&measured), Some(0.5));
        assert!((line_in_log_compute(&measured, target).unwrap() - 0.4).abs() < 1e-9);
        let alone = measured.only(|one| one.parameters == 1e3);
        assert_eq!(line_in_log_compute(&alone, target), None);
    }
}
