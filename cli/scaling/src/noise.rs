//! The noise of a family: what a run has by its seed, and what each of its measurements has besides.
//!
//! ```text
//!   loss of a measurement = law + effect of its run + rest
//! ```
//!
//! Both are taken from the residuals of a fit, whose deviations are smaller than those of the noise because the law follows the noise. The
//! factors √(n / degrees of freedom) make up for it: floor and power law of the size follow the runs, the power law of the samples follows
//! the measurements within them.

use std::collections::BTreeMap;

use rand::Rng;
use rand_pcg::Pcg64;
use zagros_zip::ZipEq;

use crate::law::{Axis, Law};
use crate::measurement::{Measurement, Measurements};

/// The noise of a family around its law.
pub(crate) struct FamilyNoise {
    /// Effect of each run, nats.
    runs: Vec<f64>,
    /// The rest of each measurement, nats.
    rests: Vec<f64>,
    /// The run of each measurement.
    run_of: Vec<usize>,
}

impl FamilyNoise {
    pub(crate) fn of(law: &Law, measured: &Measurements) -> Self {
        let mut numbers: BTreeMap<(u64, u64), usize> = BTreeMap::new();
        let number = |one: &Measurement| {
            let next = numbers.len();
            *numbers.entry((one.parameters.to_bits(), one.seed)).or_insert(next)
        };
        let run_of: Vec<usize> = measured.all().iter().map(number).collect();
        let residual = |one: &Measurement| one.loss - law.loss(one.parameters, one.samples);
        let residuals: Vec<f64> = measured.all().iter().map(residual).collect();
        let mut sums = vec![(0.0, 0.0); numbers.len()];
        for (run, residual) in run_of.iter().zip_eq(&residuals) {
            sums[*run] = (sums[*run].0 + residual, sums[*run].1 + 1.0);
        }
        let runs: Vec<f64> = sums.iter().map(|(sum, count)| sum / count).collect();
        let rests: Vec<f64> = run_of.iter().zip_eq(&residuals).map(|(run, residual)| residual - runs[*run]).collect();
        // Parameters that follow the runs: the floor, and two of each other axis.
        let of_samples = if law.term(Axis::Samples).is_some() { 2 } else { 0 };
        let of_runs = 1 + 2 * law.terms.len() - of_samples;
        Self {
            runs: scaled(&runs, runs.len().saturating_sub(of_runs)),
            rests: scaled(&rests, rests.len().saturating_sub(runs.len() + of_samples)),
            run_of,
        }
    }

    /// FamilyNoise of measurements at the same places, of other seeds.
    pub(crate) fn replay(&self, chance: &mut Pcg64) -> Vec<f64> {
        let runs: Vec<f64> = self.runs.iter().map(|_| draw(&self.runs, chance)).collect();
        self.run_of.iter().map(|run| runs[*run] + draw(&self.rests, chance)).collect()
    }

    /// FamilyNoise of one measurement of one more run.
    pub(crate) fn one(&self, chance: &mut Pcg64) -> f64 {
        draw(&self.runs, chance) + draw(&self.rests, chance)
    }
}

/// With a mean of zero, and the deviation that so many degrees of freedom stand for.
fn scaled(values: &[f64], freedom: usize) -> Vec<f64> {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let factor = (count / freedom.max(1) as f64).sqrt();
    values.iter().map(|value| (value - mean) * factor).collect()
}

/// One of the values, with a random sign: noise is as likely above the law as below it.
fn draw(values: &[f64], chance: &mut Pcg64) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let value = values[chance.random_range(0..values.len())];
    if chance.random() { value } else { -value }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;
    use crate::fit::fit;
    use crate::law::LawForm;
    use crate::testing::planted;

    #[test]
    fn the_noise_of_runs_and_of_measurements_is_separated() {
        let law = Law::new(LawForm::SizeAndSamples, 0.45, &[5.0, 9.0], &[0.4, 0.3]);
        let mut means = [0.0; 2];
        for seed in 0..40 {
            let measured = planted(&law, &[1e5, 4e5, 1.6e6, 6.4e6], &[2.5e5, 5e5, 1e6, 2e6], 3, (1e-3, 5e-4), seed);
            let noise = FamilyNoise::of(&fit(LawForm::SizeAndSamples, &measured).unwrap(), &measured);
            for (mean, values) in means.iter_mut().zip_eq([&noise.runs, &noise.rests]) {
                *mean += values.iter().map(|value| value * value).sum::<f64>() / values.len() as f64 / 40.0;
            }
        }
        // The mean of four rests is part of the effect of a run.
        assert!((means[0].sqrt() / 1.03e-3 - 1.0).abs() < 0.15, "{means:?}");
        assert!((means[1].sqrt() / 5e-4 - 1.0).abs() < 0.15, "{means:?}");
    }

    #[test]
    fn a_replay_gives_the_measurements_of_a_run_one_effect() {
        let law = Law::new(LawForm::Size, 0.45, &[5.0], &[0.4]);
        let measured = planted(&law, &[1e5, 4e5, 1.6e6], &[1e6, 2e6], 2, (1e-3, 0.0), 1);
        let noise = FamilyNoise::of(&law, &measured).replay(&mut Pcg64::seed_from_u64(1));
        for run in noise.chunks(2) {
            assert!((run[0] - run[1]).abs() < 1e-12 && run[0] != 0.0, "{noise:?}");
        }
    }
}
