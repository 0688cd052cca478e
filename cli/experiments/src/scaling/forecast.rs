//! The choice of a law: that which forecasts the largest trained size best from the smaller ones. And its forecast of a size that is not
//! trained, with its interval, beside the forecast without a law, which a law should beat.
//!
//! The interval is a bootstrap of residuals: the noise of runs and of measurements is drawn again, the law is fitted again, and the noise of
//! one more run is added. So it holds what a fit of so few runs does not know, and the chance of the seed of the run that is forecast.

use rand::SeedableRng;
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};
use zagros_zip::ZipEq;

use crate::ExperimentError;
use crate::scaling::fit::{fit, fit_from};
use crate::scaling::law::{Law, LawForm};
use crate::scaling::measurement::{LawCell, Measurements, training_flop};
use crate::scaling::noise::FamilyNoise;

/// New runs that are drawn for each law of the bootstrap.
const RUNS: usize = 8;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LawCandidate {
    /// Fitted to all sizes.
    pub law: Law,
    /// Forecast of the largest size by the smaller ones, less what was measured after the most samples, nats. `None` if the smaller sizes are
    /// too few for the form.
    pub error: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LawChoice {
    pub candidates: Vec<LawCandidate>,
    /// Number of the chosen one.
    pub chosen: usize,
}

impl LawChoice {
    /// Fits every form, and chooses. A law whose error is not larger than the smallest by more than the chance of the truth, which is a mean over
    /// seeds, is as good; of these, the first form is taken.
    /// Where no form can be fitted, the error is that of the first one.
    pub fn fit(measured: &Measurements) -> Result<Self, ExperimentError> {
        let largest = measured.largest_size();
        let smaller = measured.only(|one| one.parameters < largest);
        let truth = measured.last_of(largest);
        let candidate = |form: LawForm| -> Result<LawCandidate, ExperimentError> {
            let law = fit(form, &part(form, measured))?;
            let forecast = |law: &Law, truth: &LawCell| law.loss(truth.parameters, truth.samples) - truth.mean_loss();
            let from_smaller = fit(form, &part(form, &smaller)).ok();
            let error = from_smaller.and_then(|law| truth.as_ref().map(|truth| forecast(&law, truth)));
            Ok(LawCandidate { law, error })
        };
        let (fitted, refused): (Vec<_>, Vec<_>) = LawForm::ALL.into_iter().map(candidate).partition(Result::is_ok);
        let candidates: Vec<LawCandidate> = fitted.into_iter().flatten().collect();
        let least = candidates.iter().filter_map(|one| one.error).map(f64::abs).fold(f64::INFINITY, f64::min);
        let seeds = truth.as_ref().map_or(1, |truth| truth.losses.len());
        let chance = measured.seed_deviation().unwrap_or(0.0) / (seeds as f64).sqrt();
        let is_good = |one: &LawCandidate| one.error.is_some_and(|error| error.abs() <= least + chance);
        // Where the sizes are too few to compare, the first form is as good as any.
        let compared = measured.sizes().len() > 3 || candidates.first().is_none_or(|first| first.error.is_some());
        let chosen = if compared { candidates.iter().position(is_good).unwrap_or(0) } else { 0 };
        match refused.into_iter().find_map(Result::err) {
            Some(error) if candidates.is_empty() => Err(error),
            _ => Ok(Self { candidates, chosen }),
        }
    }

    pub fn chosen_law(&self) -> &Law {
        &self.candidates[self.chosen].law
    }
}

fn part(form: LawForm, measured: &Measurements) -> Measurements {
    let (largest, most) = (measured.largest_size(), measured.sample_counts().last().copied().unwrap_or(0.0));
    match form {
        LawForm::SizeAndSamples => measured.clone(),
        LawForm::Samples => measured.only(|one| one.parameters == largest),
        LawForm::Size => measured.only(|one| one.samples == most),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForecastTarget {
    pub parameters: f64,
    pub samples: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForecastPlan {
    pub target: ForecastTarget,
    /// Probability of the interval, such as 0.9.
    pub level: f64,
    pub replays: usize,
    pub seed: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum ForecastDecision {
    /// The target is better than the largest trained size, whatever the interval holds.
    Made,
    /// The interval includes that the target brings nothing.
    Refused { reason: String },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossForecast {
    pub target: ForecastTarget,
    pub level: f64,
    pub choice: LawChoice,
    /// The log loss that the law says, nats.
    pub loss: f64,
    /// Low end of the interval, nats.
    pub low: f64,
    /// Nats.
    pub high: f64,
    /// Mean log loss of the largest trained size after the most samples, nats: "no gain".
    pub last: f64,
    /// By a line in the logarithm of the compute, nats.
    pub line_in_log_compute: Option<f64>,
    /// Deviation between seeds, nats; `None` with one seed.
    pub seed_deviation: Option<f64>,
    pub decision: ForecastDecision,
}

impl LossForecast {
    pub fn from_measurements(measured: &Measurements, plan: &ForecastPlan) -> Result<Self, ExperimentError> {
        let choice = LawChoice::fit(measured)?;
        let law = choice.chosen_law();
        let ForecastTarget { parameters, samples } = plan.target;
        let loss = law.loss(parameters, samples);
        let (low, high) = interval(law, measured, plan);
        let last = measured.last_of(measured.largest_size()).map_or(loss, |cell| cell.mean_loss());
        let decision = decide(last, (low, high), plan.level);
        let seed_deviation = measured.seed_deviation();
        let (target, level) = (plan.target, plan.level);
        let line_in_log_compute = line_in_log_compute(measured, target);
        Ok(Self { target, level, loss, low, high, last, line_in_log_compute, seed_deviation, decision, choice })
    }

    /// Whether a measured loss is inside the interval.
    pub fn interval_contains(&self, loss: f64) -> bool {
        (self.low..=self.high).contains(&loss)
    }
}

fn decide(last: f64, (low, high): (f64, f64), level: f64) -> ForecastDecision {
    if high < last {
        return ForecastDecision::Made;
    }
    let percent = level * 100.0;
    let reason = format!(
        "the {percent:.0} % interval of its log loss, {low:.5} to {high:.5}, includes {last:.5}, that of the largest trained size: what was \
         trained does not show that a larger network gains anything"
    );
    ForecastDecision::Refused { reason }
}

/// Quantiles of the losses of one more run.
fn interval(law: &Law, measured: &Measurements, plan: &ForecastPlan) -> (f64, f64) {
    let part = part(law.form, measured);
    let noise = FamilyNoise::new(law, &part);
    let mut chance = Pcg64::seed_from_u64(plan.seed);
    let fitted: Vec<f64> = part.as_slice().iter().map(|one| law.loss(one.parameters, one.samples)).collect();
    let mut drawn = Vec::with_capacity(plan.replays * RUNS);
    for _ in 0..plan.replays {
        let replay = noise.draw_replay(&mut chance);
        let losses = fitted.iter().zip_eq(&replay).map(|(loss, noise)| loss + noise);
        let Ok(again) = fit_from(law, &part.with_losses(losses)) else { continue };
        let loss = again.loss(plan.target.parameters, plan.target.samples);
        drawn.extend((0..RUNS).map(|_| loss + noise.draw_run(&mut chance)));
    }
    drawn.sort_by(f64::total_cmp);
    let quantile = |share: f64| {
        let place = (share * drawn.len() as f64) as usize;
        drawn.get(place.min(drawn.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
    };
    let tail = (1.0 - plan.level) / 2.0;
    (quantile(tail), quantile(1.0 - tail))
}

/// A straight line of the loss in the logarithm of the compute, through the sizes after the most samples, by least squares, nats.
fn line_in_log_compute(measured: &Measurements, target: ForecastTarget) -> Option<f64> {
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
    use crate::scaling::measurement::Measurement;
    use crate::scaling::measurement::planted::{SAMPLES, SIZES, law, normal, planted};

    const FIVE_SIZES: [f64; 5] = [2.5e4, 1e5, 4e5, 1.6e6, 6.4e6];
    const NEXT: ForecastTarget = ForecastTarget { parameters: 2.56e7, samples: 2e6 };

    fn plan(seed: u64) -> ForecastPlan {
        ForecastPlan { target: NEXT, level: 0.9, replays: 60, seed }
    }

    #[test]
    fn a_forecast_is_near_a_planted_law_and_the_same_again() {
        let law = law(2.0, 9.0, 0.35, 0.4);
        let measured = planted(&law, &FIVE_SIZES, &SAMPLES, 3, (2e-4, 1e-4), 4);
        let forecast = LossForecast::from_measurements(&measured, &plan(1)).unwrap();
        let truth = law.loss(NEXT.parameters, NEXT.samples);
        let is_near = (forecast.loss - truth).abs() < 5e-4;
        assert!(is_near && forecast.interval_contains(truth), "{forecast:?}, truth {truth}");
        assert_eq!(forecast.decision, ForecastDecision::Made);
        assert_eq!(forecast, LossForecast::from_measurements(&measured, &plan(1)).unwrap());
        let deviation = forecast.seed_deviation.unwrap();
        assert!((1e-4..4e-4).contains(&deviation), "{deviation}");
    }

    #[test]
    fn a_size_that_brings_nothing_is_not_forecast() {
        let law = law(0.0, 9.0, 0.35, 0.4);
        for seed in 0..10 {
            let measured = planted(&law, &FIVE_SIZES, &SAMPLES, 3, (3e-4, 1e-4), seed);
            let forecast = LossForecast::from_measurements(&measured, &plan(1)).unwrap();
            let ForecastDecision::Refused { reason } = &forecast.decision else { panic!("seed {seed}: {forecast:?}") };
            assert!(reason.contains("90 % interval") && reason.contains("includes"), "{reason}");
        }
    }

    /// Of 100 replays of families with a planted law, the 90 % interval holds the loss of one more run 85 to 95 times.
    #[test]
    fn the_interval_holds_as_often_as_it_says() {
        let law = law(2.0, 9.0, 0.35, 0.4);
        let held = |seed: &u64| {
            let measured = planted(&law, &FIVE_SIZES, &SAMPLES, 3, (3e-4, 1e-4), 1_000 + seed);
            let mut chance = Pcg64::seed_from_u64(5_000 + seed);
            let truth =
                law.loss(NEXT.parameters, NEXT.samples) + 3e-4 * normal(&mut chance) + 1e-4 * normal(&mut chance);
            LossForecast::from_measurements(&measured, &plan(*seed)).unwrap().interval_contains(truth)
        };
        let held = (0..100).filter(held).count();
        assert!((85..=95).contains(&held), "{held} of 100");
    }

    #[test]
    fn the_baseline_is_a_line() {
        let one = |(parameters, loss): (f64, f64)| Measurement { parameters, samples: 1e6, seed: 1, loss };
        let measured = Measurements::new([(1e3, 0.7), (1e4, 0.6), (1e5, 0.5)].map(one).to_vec()).unwrap();
        let target = ForecastTarget { parameters: 1e6, samples: 1e6 };
        assert!((line_in_log_compute(&measured, target).unwrap() - 0.4).abs() < 1e-9);
        let alone = measured.only(|one| one.parameters == 1e3);
        assert_eq!(line_in_log_compute(&alone, target), None);
    }

    #[test]
    fn the_law_that_forecasts_the_largest_size_is_chosen() {
        let law = law(5.0, 9.0, 0.4, 0.3);
        let choice = LawChoice::fit(&planted(&law, &SIZES, &SAMPLES, 3, (1e-5, 1e-5), 1)).unwrap();
        // For equally many samples, the law of the size alone is as true.
        assert!([LawForm::SizeAndSamples, LawForm::Size].contains(&choice.chosen_law().form), "{choice:?}");
        assert!(choice.candidates[choice.chosen].error.unwrap().abs() < 1e-4, "{choice:?}");
        // A law of the samples alone says that the largest size is as good as the one before.
        let samples = choice.candidates.iter().find(|one| one.law.form == LawForm::Samples).unwrap();
        let gap = law.loss(1.6e6, 2e6) - law.loss(6.4e6, 2e6);
        assert!((samples.error.unwrap() - gap).abs() < 1e-3, "{samples:?}, gap {gap}");
    }

    #[test]
    fn three_sizes_are_enough_for_a_law_and_too_few_for_a_choice() {
        let law = law(5.0, 9.0, 0.4, 0.3);
        let choice = LawChoice::fit(&planted(&law, &SIZES[..3], &SAMPLES, 2, (1e-5, 1e-5), 1)).unwrap();
        assert_eq!((choice.chosen_law().form, choice.candidates[0].error), (LawForm::SizeAndSamples, None));
        let error = LawChoice::fit(&planted(&law, &SIZES[..2], &SAMPLES[..1], 2, (0.0, 0.0), 1)).unwrap_err();
        assert!(error.to_string().contains("there are 2"), "{error}");
    }
}
