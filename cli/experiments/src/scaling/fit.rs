//! The fit of a law: a grid over the exponents, then Newton's method on them. For given exponents the rest of a law is linear and is solved
//! exactly (variable projection, Golub & Pereyra 1973).

use zagros_zip::ZipEq;

use crate::ExperimentError;
use crate::scaling::law::{Law, LawAxis, LawForm};
use crate::scaling::linear::{LinearSolution, MOST, Row, solve};
use crate::scaling::measurement::Measurements;

/// Exponents that are searched.
const RANGE: (f64, f64) = (0.02, 3.0);
/// Exponents of the grid on each axis, evenly in the logarithm.
const GRID: usize = 12;
/// Newton steps at most.
const STEPS: usize = 15;
/// Step of the differences, in the logarithm of an exponent.
const DIFFERENCE: f64 = 1e-3;
/// Huber's threshold, in standard deviations of the residuals: 95 % of the efficiency of least squares where they are normal.
const HUBER: f64 = 1.345;
/// Median of the absolute value of a standard normal number.
const MEDIAN: f64 = 0.6745;
/// Smallest threshold, nats: below it losses are equal.
const LEAST_DELTA: f64 = 1e-7;

pub fn fit(form: LawForm, measured: &Measurements) -> Result<Law, ExperimentError> {
    let problem = FitProblem::new(form, measured)?;
    let start = problem.best_of_grid(f64::INFINITY);
    let start = problem.newton(start, f64::INFINITY);
    let delta = problem.delta(&start);
    let best = problem.best_of_grid(delta);
    // The minimum without Huber's loss may be another one.
    let ends = [best, start].map(|exponents| problem.newton(exponents, delta));
    let best =
        if problem.objective(&ends[0], delta) <= problem.objective(&ends[1], delta) { &ends[0] } else { &ends[1] };
    Ok(problem.law(best, delta))
}

/// As [`fit`], from the exponents of a law that fits nearly the same measurements.
pub(crate) fn fit_from(law: &Law, measured: &Measurements) -> Result<Law, ExperimentError> {
    let problem = FitProblem::new(law.form, measured)?;
    let start: Vec<f64> = law.terms.iter().map(|term| term.exponent.ln()).collect();
    let delta = problem.delta(&start);
    Ok(problem.law(&problem.newton(start, delta), delta))
}

struct FitProblem {
    form: LawForm,
    /// Of each axis: the smallest place on it, and ln(x / smallest) of each measurement.
    axes: Vec<(f64, Vec<f64>)>,
    losses: Vec<f64>,
}

impl FitProblem {
    fn new(form: LawForm, measured: &Measurements) -> Result<Self, ExperimentError> {
        let all = measured.as_slice();
        let places = |axis: &LawAxis| {
            let places: Vec<f64> = all.iter().map(|one| axis.place(one.parameters, one.samples)).collect();
            let least = places.iter().copied().fold(f64::INFINITY, f64::min);
            (least, places.iter().map(|place| (place / least).ln()).collect::<Vec<_>>())
        };
        let axes: Vec<(f64, Vec<f64>)> = form.axes().iter().map(places).collect();
        for (_, logs) in &axes {
            let mut distinct = logs.clone();
            distinct.sort_by(f64::total_cmp);
            distinct.dedup_by(|one, other| (*one - *other).abs() < 1e-9);
            // Floor, coefficient and exponent of each axis; the floor is shared by two axes.
            if distinct.len() < 3 {
                let (law, found) = (form.formula(), distinct.len());
                let what = format!("a law {law} needs 3 measurements at different places, and there are {found}");
                return Err(ExperimentError(what));
            }
        }
        Ok(Self { form, axes, losses: all.iter().map(|one| one.loss).collect() })
    }

    /// Constant and power laws of each measurement, the powers of x / smallest x, at most 1 each.
    fn rows(&self, exponents: &[f64]) -> Vec<Row> {
        let mut rows = vec![[0.0; MOST]; self.losses.len()];
        for row in &mut rows {
            row[0] = 1.0;
        }
        for (column, ((_, logs), exponent)) in self.axes.iter().zip_eq(exponents).enumerate() {
            let exponent = exponent.exp();
            for (row, log) in rows.iter_mut().zip_eq(logs) {
                row[column + 1] = (-exponent * log).exp();
            }
        }
        rows
    }

    fn solved(&self, exponents: &[f64], delta: f64) -> LinearSolution {
        solve(&self.rows(exponents), &self.losses, 1 + self.axes.len(), delta)
    }

    fn objective(&self, exponents: &[f64], delta: f64) -> f64 {
        self.solved(exponents, delta).objective
    }

    /// Logarithms of the best exponents of a grid.
    fn best_of_grid(&self, delta: f64) -> Vec<f64> {
        let value_at = |place: usize| {
            let share = (place as f64 + 0.5) / GRID as f64;
            RANGE.0.ln() + share * (RANGE.1 / RANGE.0).ln()
        };
        let points = GRID.pow(self.axes.len() as u32);
        let exponents = |point: usize| -> Vec<f64> {
            (0..self.axes.len()).map(|axis| value_at(point / GRID.pow(axis as u32) % GRID)).collect()
        };
        let scored = (0..points).map(|point| (self.objective(&exponents(point), delta), point));
        let best = scored.min_by(|one, other| one.0.total_cmp(&other.0)).map_or(0, |best| best.1);
        exponents(best)
    }

    /// Newton's method on the logarithms of the exponents, by central differences. A step that does not help is halved.
    fn newton(&self, mut at: Vec<f64>, delta: f64) -> Vec<f64> {
        let mut here = self.objective(&at, delta);
        for _ in 0..STEPS {
            let step = self.newton_step(&at, here, delta);
            let mut length = 1.0;
            let moved = loop {
                let next: Vec<f64> = at.iter().zip_eq(&step).map(|(at, step)| clamp_log(at + length * step)).collect();
                let there = self.objective(&next, delta);
                if there < here {
                    break Some((next, there));
                }
                length *= 0.5;
                if length < 1e-3 {
                    break None;
                }
            };
            let Some((next, there)) = moved else { break };
            let gain = here - there;
            (at, here) = (next, there);
            if gain <= 1e-7 * here {
                break;
            }
        }
        at
    }

    fn newton_step(&self, at: &[f64], here: f64, delta: f64) -> Vec<f64> {
        let h = DIFFERENCE;
        let moved = |moves: &[(usize, f64)]| {
            let mut point = at.to_vec();
            moves.iter().for_each(|(axis, by)| point[*axis] += by);
            self.objective(&point, delta)
        };
        let ends: Vec<(f64, f64)> = (0..at.len()).map(|axis| (moved(&[(axis, -h)]), moved(&[(axis, h)]))).collect();
        let slope: Vec<f64> = ends.iter().map(|(low, high)| (high - low) / (2.0 * h)).collect();
        let bend: Vec<f64> = ends.iter().map(|(low, high)| (high + low - 2.0 * here) / (h * h)).collect();
        // Where the objective is not convex, a step of the size of the slope, bounded.
        let one = |axis: usize| if bend[axis] > 0.0 { -slope[axis] / bend[axis] } else { -slope[axis].signum() * 0.3 };
        let alone: Vec<f64> = (0..at.len()).map(one).collect();
        let [first, second] = bend[..] else { return bounded(alone) };
        let corners = [(h, h), (h, -h), (-h, h), (-h, -h)].map(|(one, other)| moved(&[(0, one), (1, other)]));
        let mixed = (corners[0] - corners[1] - corners[2] + corners[3]) / (4.0 * h * h);
        let determinant = first * second - mixed * mixed;
        if first <= 0.0 || second <= 0.0 || determinant <= 1e-6 * first * second {
            return bounded(alone);
        }
        bounded(vec![
            -(second * slope[0] - mixed * slope[1]) / determinant,
            -(first * slope[1] - mixed * slope[0]) / determinant,
        ])
    }

    /// Huber's threshold by the residuals of exponents: a robust estimate of their deviation.
    fn delta(&self, exponents: &[f64]) -> f64 {
        let LinearSolution { coefficients, .. } = self.solved(exponents, f64::INFINITY);
        let rows = self.rows(exponents);
        let residual = |(row, loss): (&Row, &f64)| {
            (loss - row.iter().zip_eq(&coefficients).map(|(value, coefficient)| value * coefficient).sum::<f64>()).abs()
        };
        let mut residuals: Vec<f64> = rows.iter().zip_eq(&self.losses).map(residual).collect();
        residuals.sort_by(f64::total_cmp);
        let median = residuals.get(residuals.len() / 2).copied().unwrap_or(0.0);
        (HUBER * median / MEDIAN).max(LEAST_DELTA)
    }

    fn law(&self, exponents: &[f64], delta: f64) -> Law {
        let LinearSolution { coefficients, .. } = self.solved(exponents, delta);
        let exponents: Vec<f64> = exponents.iter().map(|log| log.exp()).collect();
        let scale = |(((least, _), exponent), coefficient): ((&(f64, Vec<f64>), &f64), &f64)| {
            coefficient * least.powf(*exponent)
        };
        let used = &coefficients[1..=self.axes.len()];
        let scaled: Vec<f64> = self.axes.iter().zip_eq(&exponents).zip_eq(used).map(scale).collect();
        Law::new(self.form, coefficients[0], &scaled, &exponents)
    }
}

/// No step changes an exponent more than threefold.
fn bounded(step: Vec<f64>) -> Vec<f64> {
    step.into_iter().map(|by| by.clamp(-1.1, 1.1)).collect()
}

fn clamp_log(log: f64) -> f64 {
    log.clamp(RANGE.0.ln(), RANGE.1.ln())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::scaling::measurement::Measurement;
    use crate::scaling::measurement::planted::{SAMPLES, SIZES, law, planted};

    #[test]
    fn a_planted_law_is_recovered_within_a_tenth() {
        for (alpha, beta) in [(0.3, 0.3), (0.5, 0.33), (0.8, 0.5), (0.35, 0.7)] {
            let law = law(0.05 * 1e5_f64.powf(alpha), 0.04 * 2.5e5_f64.powf(beta), alpha, beta);
            let [sizes, samples] =
                [(2.5e4, SIZES), (1.25e5, SAMPLES)].map(|(least, more)| [&[least][..], &more].concat());
            for seed in 0..5 {
                let measured = planted(&law, &sizes, &samples, 3, (5e-5, 5e-5), seed);
                let found = fit(LawForm::SizeAndSamples, &measured).unwrap();
                for (found, planted) in found.terms.iter().zip_eq(&law.terms) {
                    let ratio = found.exponent / planted.exponent;
                    assert!((ratio - 1.0).abs() < 0.1, "seed {seed}: {found:?}, planted {planted:?}");
                }
                assert!((found.floor / law.floor - 1.0).abs() < 0.1, "seed {seed}: {found}, planted {law}");
            }
        }
    }

    #[test]
    fn an_outlier_does_not_move_the_law() {
        let law = law(5.0, 9.0, 0.4, 0.4);
        let mut measured = planted(&law, &SIZES, &SAMPLES, 3, (0.0, 2e-5), 1).as_slice().to_vec();
        measured[7].loss += 0.05;
        let found = fit(LawForm::SizeAndSamples, &Measurements::new(measured).unwrap()).unwrap();
        let (far, planted) = (found.loss(2.5e7, 2e6), law.loss(2.5e7, 2e6));
        assert!((far - planted).abs() < 5e-4, "{far}, planted {planted}");
    }

    #[test]
    fn a_law_needs_three_places_on_each_axis() {
        let law = law(5.0, 9.0, 0.4, 0.4);
        let two = planted(&law, &[1e5, 4e5], &[1e6, 2e6, 4e6], 2, (0.0, 0.0), 1);
        let error = fit(LawForm::SizeAndSamples, &two).unwrap_err();
        let expected = "a law L(N, D) = E + A/N^α + B/D^β needs 3 measurements at different places, and there are 2";
        assert_eq!(error.to_string(), expected);
        assert!(fit(LawForm::Samples, &two).is_ok());
    }

    #[test]
    fn a_fit_from_near_exponents_is_the_same() {
        let law = law(5.0, 9.0, 0.4, 0.3);
        let measured = planted(&law, &SIZES, &SAMPLES, 3, (1e-4, 1e-4), 9);
        let (full, near) = (fit(LawForm::SizeAndSamples, &measured).unwrap(), fit_from(&law, &measured).unwrap());
        let [full, near] = [full, near].map(|law| law.loss(2.5e7, 2e6));
        assert!((full - near).abs() < 1e-5, "{full} {near}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Without noise the law is found, whatever it is.
        #[test]
        fn a_law_without_noise_is_found(
            floor in 0.1_f64..0.6, gap in 0.01_f64..0.2, alpha in 0.15_f64..1.2, rest in 0.01_f64..0.2, beta in 0.15_f64..1.2,
        ) {
            let law = Law::new(LawForm::SizeAndSamples, floor, &[gap * 1e5_f64.powf(alpha), rest * 2.5e5_f64.powf(beta)], &[alpha, beta]);
            let found = fit(LawForm::SizeAndSamples, &planted(&law, &SIZES, &SAMPLES, 1, (0.0, 0.0), 1)).unwrap();
            for (parameters, samples) in [(1e5, 2.5e5), (6.4e6, 2e6), (2.5e7, 4e6)] {
                let (found, planted) = (found.loss(parameters, samples), law.loss(parameters, samples));
                prop_assert!((found - planted).abs() < 2e-4, "{found}, planted {planted}");
            }
        }

        /// The unit of an axis does not matter.
        #[test]
        fn a_fit_does_not_depend_on_units(factor in 1e-3_f64..1e3) {
            let law = Law::new(LawForm::SizeAndSamples, 0.45, &[5.0, 9.0], &[0.4, 0.3]);
            let measured = planted(&law, &[1e5, 4e5, 1.6e6], &[2.5e5, 5e5, 1e6], 2, (1e-4, 1e-4), 3);
            let scaled = measured.as_slice().iter().map(|one| Measurement { parameters: one.parameters * factor, ..*one }).collect();
            let (one, other) = (fit(LawForm::SizeAndSamples, &measured).unwrap(), fit(LawForm::SizeAndSamples, &Measurements::new(scaled).unwrap()).unwrap());
            prop_assert!((one.loss(5e6, 2e6) - other.loss(5e6 * factor, 2e6)).abs() < 1e-6, "{one} {other}");
        }
    }
}
