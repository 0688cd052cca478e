//! What was measured of a family.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ExperimentError;

/// FLOP of training, for each dense parameter and sample: two forward, four backward.
const FLOP: f64 = 6.0;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    pub parameters: f64,
    /// Samples D that were trained on, each once.
    pub samples: f64,
    pub seed: u64,
    /// Held-out log loss, nats.
    pub loss: f64,
}

impl Measurement {
    pub fn training_flop(&self) -> f64 {
        training_flop(self.parameters, self.samples)
    }
}

/// Compute of training with N dense parameters on D samples, FLOP.
pub(crate) fn training_flop(parameters: f64, samples: f64) -> f64 {
    FLOP * parameters * samples
}

/// All seeds of one size and number of samples.
#[derive(Clone, Debug, PartialEq)]
pub struct LawCell {
    pub parameters: f64,
    pub samples: f64,
    /// Loss of each seed, nats.
    pub losses: Vec<f64>,
}

impl LawCell {
    /// Nats.
    pub fn mean_loss(&self) -> f64 {
        self.losses.iter().sum::<f64>() / self.losses.len() as f64
    }

    /// Between the seeds, nats; `None` with one seed.
    pub fn seed_deviation(&self) -> Option<f64> {
        pooled_deviation(std::slice::from_ref(self))
    }

    pub fn training_flop(&self) -> f64 {
        training_flop(self.parameters, self.samples)
    }
}

fn pooled_deviation(cells: &[LawCell]) -> Option<f64> {
    let (mut squares, mut freedom) = (0.0, 0);
    for cell in cells {
        let mean = cell.mean_loss();
        squares += cell.losses.iter().map(|loss| (loss - mean).powi(2)).sum::<f64>();
        freedom += cell.losses.len() - 1;
    }
    (freedom > 0).then(|| (squares / freedom as f64).sqrt())
}

/// Measurements that a law can be fitted to: every number is finite and positive.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurements(Vec<Measurement>);

impl Measurements {
    /// Refuses a number that is not finite or not positive.
    pub fn new(measured: Vec<Measurement>) -> Result<Self, ExperimentError> {
        let is_good = |value: f64| value.is_finite() && value > 0.0;
        let bad = measured.iter().find(|one| ![one.parameters, one.samples, one.loss].into_iter().all(is_good));
        if let Some(Measurement { parameters, samples, seed, loss }) = bad.copied() {
            let run = format!("the run of {parameters} parameters and {samples} samples with seed {seed}");
            let what = format!("{run} has the log loss {loss}, which no law can be fitted to; see its log");
            return Err(ExperimentError(what));
        }
        Ok(Self(measured))
    }

    /// In the order in which they were given.
    pub fn as_slice(&self) -> &[Measurement] {
        &self.0
    }

    /// Those that are kept; checked numbers stay checked.
    pub(crate) fn only(&self, keep: impl Fn(&Measurement) -> bool) -> Self {
        Self(self.0.iter().filter(|one| keep(one)).copied().collect())
    }

    /// The same places with other losses.
    pub(crate) fn with_losses(&self, losses: impl Iterator<Item = f64>) -> Self {
        let pairs = zagros_zip::ZipEq::zip_eq(self.0.iter(), losses.collect::<Vec<_>>());
        Self(pairs.map(|(one, loss)| Measurement { loss, ..*one }).collect())
    }

    /// From small to large.
    pub fn sizes(&self) -> Vec<f64> {
        distinct(self.0.iter().map(|one| one.parameters))
    }

    /// From small to large.
    pub fn sample_counts(&self) -> Vec<f64> {
        distinct(self.0.iter().map(|one| one.samples))
    }

    /// 0 without measurements.
    pub fn largest_size(&self) -> f64 {
        self.sizes().last().copied().unwrap_or(0.0)
    }

    /// By size, then samples.
    pub fn cells(&self) -> Vec<LawCell> {
        let mut cells: BTreeMap<(u64, u64), LawCell> = BTreeMap::new();
        for one in &self.0 {
            // The order of positive floats is that of their bits.
            let place = (one.parameters.to_bits(), one.samples.to_bits());
            let new = || LawCell { parameters: one.parameters, samples: one.samples, losses: Vec::new() };
            cells.entry(place).or_insert_with(new).losses.push(one.loss);
        }
        cells.into_values().collect()
    }

    /// Pooled deviation between the seeds of a size after the most samples, nats; `None` with one seed.
    pub fn seed_deviation(&self) -> Option<f64> {
        let cells: Vec<LawCell> = self.sizes().into_iter().filter_map(|size| self.last_of(size)).collect();
        pooled_deviation(&cells)
    }

    /// The cell of the most samples of a size.
    pub(crate) fn last_of(&self, parameters: f64) -> Option<LawCell> {
        self.cells().into_iter().rfind(|cell| cell.parameters == parameters)
    }
}

fn distinct(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}

/// Measurements of a planted law, for tests.
#[cfg(test)]
pub(crate) mod planted {
    use rand::SeedableRng;
    use rand_pcg::Pcg64;

    use super::{Measurement, Measurements};
    use crate::scaling::law::{Law, LawForm};

    pub(crate) use crate::sweep::tpe::normal;

    /// Sizes and numbers of samples of most families.
    pub(crate) const SIZES: [f64; 4] = [1e5, 4e5, 1.6e6, 6.4e6];
    pub(crate) const SAMPLES: [f64; 4] = [2.5e5, 5e5, 1e6, 2e6];

    /// A law of both axes: 0.45 + a/N^α + b/D^β.
    pub(crate) fn law(a: f64, b: f64, alpha: f64, beta: f64) -> Law {
        Law::new(LawForm::SizeAndSamples, 0.45, &[a, b], &[alpha, beta])
    }

    /// Each size with each seed, measured after each number of samples. `noise` has the deviation of a run, which all its measurements share,
    /// and that of each measurement, nats.
    pub(crate) fn planted(
        law: &Law,
        sizes: &[f64],
        samples: &[f64],
        seeds: u64,
        noise: (f64, f64),
        seed: u64,
    ) -> Measurements {
        let mut chance = Pcg64::seed_from_u64(seed);
        let mut measured = Vec::new();
        for parameters in sizes {
            for seed in 1..=seeds {
                let run = noise.0 * normal(&mut chance);
                for samples in samples {
                    let loss = law.loss(*parameters, *samples) + run + noise.1 * normal(&mut chance);
                    measured.push(Measurement { parameters: *parameters, samples: *samples, seed, loss });
                }
            }
        }
        Measurements::new(measured).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(parameters: f64, samples: f64, seed: u64, loss: f64) -> Measurement {
        Measurement { parameters, samples, seed, loss }
    }

    #[test]
    fn cells_hold_the_seeds_of_a_place() {
        let measured = vec![one(2.0, 8.0, 1, 0.4), one(1.0, 8.0, 1, 0.6), one(2.0, 8.0, 2, 0.5), one(2.0, 4.0, 1, 0.7)];
        let measured = Measurements::new(measured).unwrap();
        let cells = measured.cells();
        let places: Vec<_> = cells.iter().map(|cell| (cell.parameters, cell.samples)).collect();
        assert_eq!(places, [(1.0, 8.0), (2.0, 4.0), (2.0, 8.0)]);
        assert_eq!((cells[2].losses.len(), cells[2].mean_loss(), cells[2].training_flop()), (2, 0.45, 96.0));
        assert_eq!((measured.sizes(), measured.sample_counts()), (vec![1.0, 2.0], vec![4.0, 8.0]));
        assert_eq!(measured.largest_size(), 2.0);
        assert_eq!(measured.last_of(2.0).map(|cell| cell.samples), Some(8.0));
        // One size has two seeds, 0.4 and 0.5, the other one.
        assert!((measured.seed_deviation().unwrap() - 0.005_f64.sqrt()).abs() < 1e-12);
        assert_eq!(measured.only(|one| one.seed == 1).seed_deviation(), None);
    }

    #[test]
    fn a_loss_that_is_none_is_named() {
        for loss in [f64::NAN, 0.0, f64::INFINITY] {
            let error = Measurements::new(vec![one(7.0, 8.0, 3, loss)]).unwrap_err().to_string();
            assert!(error.contains("7 parameters") && error.contains("seed 3"), "{error}");
        }
    }
}
