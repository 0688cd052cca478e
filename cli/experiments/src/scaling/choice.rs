//! The choice of a law: that which forecasts the largest trained size best from the smaller ones.

use serde::{Deserialize, Serialize};

use crate::scaling::ScalingError;
use crate::scaling::fit::fit;
use crate::scaling::law::{Law, LawForm};
use crate::scaling::measurement::{LawCell, Measurement, Measurements};

/// A form that could be fitted.
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
    pub fn fit(measured: &Measurements) -> Result<Self, ScalingError> {
        let largest = measured.largest_size();
        let smaller = measured.only(|one| one.parameters < largest);
        let truth = measured.last_of(largest);
        let candidate = |form: LawForm| -> Result<LawCandidate, ScalingError> {
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

    #[must_use]
    pub fn chosen_law(&self) -> &Law {
        &self.candidates[self.chosen].law
    }
}

pub(crate) fn part(form: LawForm, measured: &Measurements) -> Measurements {
    let (largest, most) = (measured.largest_size(), measured.sample_counts().last().copied().unwrap_or(0.0));
    match form {
        LawForm::SizeAndSamples => measured.clone(),
        LawForm::Samples => measured.only(|one| one.parameters == largest),
        LawForm::Size => measured.only(|one| one.samples == most),
        LawForm::Compute => {
            let frontier = measured.efficient_frontier();
            let is_of =
                |cell: &LawCell, one: &Measurement| cell.parameters == one.parameters && cell.samples == one.samples;
            measured.only(|one| frontier.iter().any(|cell| is_of(cell, one)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scaling::testing::{SAMPLES, SIZES, law, planted};

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
    fn a_law_of_compute_is_chosen_where_nothing_else_fits() {
        // Along C alone, each size trained once on as many samples as suit it.
        let law = Law::new(LawForm::Compute, 0.45, &[300.0], &[0.3]);
        let one = |(parameters, samples): (f64, f64)| {
            let loss = law.loss(parameters, samples);
            Measurement { parameters, samples, seed: 1, loss }
        };
        let places = [(1e5, 2e5), (2e5, 5e5), (4e5, 1e6), (8e5, 1.7e6), (1.6e6, 4e6)];
        let choice = LawChoice::fit(&Measurements::new(places.map(one).to_vec()).unwrap()).unwrap();
        let fits = |one: &LawCandidate| one.law.form == LawForm::Compute && one.error.unwrap().abs() < 1e-4;
        assert!(choice.candidates.iter().any(fits), "{choice:?}");
    }

    #[test]
    fn three_sizes_are_enough_for_a_law_and_too_few_for_a_choice() {
        let law = law(5.0, 9.0, 0.4, 0.3);
        let choice = LawChoice::fit(&planted(&law, &SIZES[..3], &SAMPLES, 2, (1e-5, 1e-5), 1)).unwrap();
        assert_eq!((choice.chosen_law().form, choice.candidates[0].error), (LawForm::SizeAndSamples, None));
        let error = LawChoice::fit(&planted(&law, &SIZES[..2], &SAMPLES[..1], 2, (0.0, 0.0), 1)).unwrap_err();
        assert!(matches!(error, ScalingError::TooFewPoints { found: 2, .. }), "{error}");
    }
}
