//! Measurements of a planted law, for tests.

use rand::SeedableRng;
use rand_pcg::Pcg64;

use crate::scaling::law::{Law, LawForm};
use crate::scaling::measurement::{Measurement, Measurements};

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
