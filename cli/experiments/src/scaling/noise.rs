//! The noise of a family: what its runs have besides the law.
//!
//! ```text
//!   run          after 1/4   1/2    all of the rows          residuals of a fit, nats
//!   size 1, seed 1  +.004  +.002  +.001  ┐
//!   size 1, seed 2  −.001  −.001   .000  │ a replay gives each run the line of one of them, with a random sign
//!   size 2, seed 1  −.003  −.001  −.001  ┘ (of its own size, or of the two before or after)
//! ```
//!
//! Small networks differ more between seeds than large ones, so a line comes from a run of about the same size.
//! A line is drawn as a whole: the measurements of a run depend on each other, and early ones are off by more. Residuals are smaller than the
//! noise, because the law follows it. The factor √(runs / (runs − parameters that follow the runs)) makes up for it. As the deviation is that of
//! few runs, its quantiles are Student's instead of the normal ones.

use std::collections::BTreeMap;

use rand::Rng;
use rand_pcg::Pcg64;

use crate::scaling::law::{Law, LawAxis};
use crate::scaling::measurement::Measurements;

/// Sizes up or down from which noise is drawn.
const NEAR: usize = 2;

/// Residual after each number of samples, nats.
type RunResiduals = BTreeMap<u64, f64>;

pub(crate) struct FamilyNoise {
    runs: Vec<NoisyRun>,
    /// Number of the run, and samples, of each measurement.
    places: Vec<(usize, u64)>,
}

struct NoisyRun {
    /// Number of its size, from 0.
    size: usize,
    residuals: RunResiduals,
}

/// Student's quantile over the normal one, at the ends of a 90 % interval: the first term of Cornish and Fisher's expansion.
fn student(freedom: usize) -> f64 {
    let normal = 1.645_f64;
    1.0 + (normal * normal + 1.0) / (4.0 * freedom as f64)
}

impl FamilyNoise {
    pub(crate) fn new(law: &Law, measured: &Measurements) -> Self {
        let sizes = measured.sizes();
        let size = |parameters: f64| sizes.iter().position(|size| *size == parameters).unwrap_or(0);
        let mut numbers: BTreeMap<(u64, u64), usize> = BTreeMap::new();
        let mut runs: Vec<NoisyRun> = Vec::new();
        let mut places = Vec::new();
        for one in measured.as_slice() {
            let number = *numbers.entry((one.parameters.to_bits(), one.seed)).or_insert(runs.len());
            if number == runs.len() {
                runs.push(NoisyRun { size: size(one.parameters), residuals: RunResiduals::new() });
            }
            let samples = one.samples.to_bits();
            runs[number].residuals.insert(samples, one.loss - law.loss(one.parameters, one.samples));
            places.push((number, samples));
        }
        // The floor, and two of each axis but that of the samples, which each run has whole.
        let of_samples = usize::from(law.term(LawAxis::Samples).is_some());
        let following = 1 + 2 * (law.terms.len() - of_samples);
        let freedom = runs.len().saturating_sub(following).max(1);
        let factor = (runs.len() as f64 / freedom as f64).sqrt() * student(freedom);
        runs.iter_mut().flat_map(|run| run.residuals.values_mut()).for_each(|residual| *residual *= factor);
        Self { runs, places }
    }

    /// Noise of the same measurements, of other seeds.
    pub(crate) fn draw_replay(&self, chance: &mut Pcg64) -> Vec<f64> {
        let drawn: Vec<(&RunResiduals, f64)> = self.runs.iter().filter_map(|run| self.draw(run.size, chance)).collect();
        let residual = |(run, samples): &(usize, u64)| {
            let (residuals, sign) = drawn[*run];
            // Where that run was not measured so early or so late, the nearest measurement.
            let near = residuals.range(samples..).next().or_else(|| residuals.iter().next_back());
            sign * near.map_or(0.0, |(_, residual)| *residual)
        };
        self.places.iter().map(residual).collect()
    }

    /// Noise of one more run, of a size beyond the largest, after the most samples.
    pub(crate) fn draw_run(&self, chance: &mut Pcg64) -> f64 {
        let largest = self.runs.iter().map(|run| run.size).max().unwrap_or(0);
        let last = |(residuals, sign): (&RunResiduals, f64)| Some(sign * residuals.values().next_back()?);
        self.draw(largest, chance).and_then(last).unwrap_or(0.0)
    }

    /// The residuals of a run of about a size, and a sign: noise is as likely above the law as below it.
    fn draw(&self, size: usize, chance: &mut Pcg64) -> Option<(&RunResiduals, f64)> {
        let near: Vec<&NoisyRun> = self.runs.iter().filter(|run| run.size.abs_diff(size) <= NEAR).collect();
        if near.is_empty() {
            return None;
        }
        let run = near[chance.random_range(0..near.len())];
        Some((&run.residuals, if chance.random() { 1.0 } else { -1.0 }))
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;
    use crate::scaling::fit::fit;
    use crate::scaling::law::LawForm;
    use crate::scaling::measurement::planted::{SAMPLES, SIZES, law, planted};

    #[test]
    fn the_noise_is_as_large_as_it_was_planted() {
        let law = law(5.0, 9.0, 0.4, 0.3);
        let mut squares = 0.0;
        for seed in 0..40 {
            let measured = planted(&law, &SIZES, &SAMPLES, 3, (1e-3, 5e-4), seed);
            let noise = FamilyNoise::new(&fit(LawForm::SizeAndSamples, &measured).unwrap(), &measured);
            let mut chance = Pcg64::seed_from_u64(seed);
            // Twelve runs, three parameters that follow them.
            squares += (0..50).map(|_| (noise.draw_run(&mut chance) / student(9)).powi(2)).sum::<f64>() / 2000.0;
        }
        let planted = (1e-3_f64.powi(2) + 5e-4_f64.powi(2)).sqrt();
        assert!((squares.sqrt() / planted - 1.0).abs() < 0.15, "{} instead of {planted}", squares.sqrt());
    }

    #[test]
    fn few_runs_have_wide_quantiles() {
        // Student's tables: 1.833 with 9 degrees of freedom, 2.015 with 5.
        assert!((1.645 * student(9) - 1.833).abs() < 0.03 && (1.645 * student(5) - 2.015).abs() < 0.07);
    }

    #[test]
    fn the_measurements_of_a_run_have_the_noise_of_one_run() {
        let law = Law::new(LawForm::Size, 0.45, &[5.0], &[0.4]);
        let measured = planted(&law, &[1e5, 4e5, 1.6e6], &[1e6, 2e6], 2, (1e-3, 0.0), 1);
        let noise = FamilyNoise::new(&law, &measured).draw_replay(&mut Pcg64::seed_from_u64(1));
        for run in noise.chunks(2) {
            assert!((run[0] - run[1]).abs() < 1e-12 && run[0] != 0.0, "{noise:?}");
        }
    }

    #[test]
    fn the_noise_of_small_sizes_stays_with_them() {
        let law = Law::new(LawForm::Size, 0.45, &[5.0], &[0.4]);
        let mut measured = planted(&law, &[1e5, 4e5, 1.6e6, 6.4e6], &[1e6], 3, (1e-4, 0.0), 1).as_slice().to_vec();
        measured[0].loss += 0.05;
        let noise = FamilyNoise::new(&law, &Measurements::new(measured).unwrap());
        let mut chance = Pcg64::seed_from_u64(1);
        assert!((0..100).all(|_| noise.draw_run(&mut chance).abs() < 1e-3));
        assert!((0..100).any(|_| noise.draw_replay(&mut chance)[0].abs() > 0.05));
    }

    /// Early measurements that are far off do not make late ones uncertain.
    #[test]
    fn noise_after_few_samples_stays_there() {
        let law = law(5.0, 9.0, 0.4, 0.3);
        let mut measured = planted(&law, &[1e5, 4e5, 1.6e6], &[1e6, 2e6], 2, (0.0, 1e-5), 1).as_slice().to_vec();
        measured.iter_mut().filter(|one| one.samples == 1e6).for_each(|one| one.loss += 0.01);
        let noise = FamilyNoise::new(&law, &Measurements::new(measured).unwrap());
        let mut chance = Pcg64::seed_from_u64(1);
        assert!((0..50).all(|_| noise.draw_run(&mut chance).abs() < 1e-3));
        assert!(noise.draw_replay(&mut chance)[0].abs() > 0.01);
    }
}
