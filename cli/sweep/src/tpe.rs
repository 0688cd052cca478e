//! The tree-structured Parzen estimator (Bergstra, Bardenet, Bengio, Kégl: Algorithms for hyper-parameter optimization, NeurIPS 2011).
//!
//! ```text
//! trials so far, by merit      l(x): density of the good ones       the candidate, drawn from l,
//!   ● ● │ ○ ○ ○ ○ ○ ○ ○        g(x): density of all others     ──►  with the greatest l(x) / g(x)
//!   good  others
//! ```
//!
//! Each parameter has densities of its own. The first trials are by chance. Trials that failed or still run count as others, so
//! that trials side by side do not try the same.

use rand_pcg::Pcg64;

use crate::parzen::{ChoiceDensity, PositionDensity};
use crate::random;
use crate::space::{Domain, Parameter, Space, Values};

/// Trials by chance before the first estimate.
const BY_CHANCE: usize = 10;
const GOOD: usize = 10;
/// … and no more than this.
const MOST_GOOD: usize = 25;
const CANDIDATES: usize = 24;

/// A trial, and its merit if it has one: more is better.
pub(crate) type Tried<'a> = (&'a Values, Option<f64>);

pub(crate) fn point(space: &Space, chance: &mut Pcg64, tried: &[Tried<'_>]) -> Values {
    let mut scored: Vec<(&Values, f64)> =
        tried.iter().filter_map(|(values, merit)| Some((*values, (*merit)?))).collect();
    if scored.len() < BY_CHANCE {
        return random::point(space, chance);
    }
    // The order of equals is that of the trials.
    scored.sort_by(|one, other| other.1.total_cmp(&one.1));
    let good = scored.len().div_ceil(GOOD).min(MOST_GOOD);
    let unscored = tried.iter().filter(|(_, merit)| merit.is_none()).map(|(values, _)| *values);
    let others: Vec<&Values> = scored[good..].iter().map(|(values, _)| *values).chain(unscored).collect();
    let good: Vec<&Values> = scored[..good].iter().map(|(values, _)| *values).collect();
    let one = |(number, parameter): (usize, &Parameter)| {
        let own_values = |tried: &[&Values]| tried.iter().map(|values| values[number].clone()).collect::<Vec<_>>();
        value(parameter, chance, &own_values(&good), &own_values(&others))
    };
    space.parameters().iter().enumerate().map(one).collect()
}

fn value(parameter: &Parameter, chance: &mut Pcg64, good: &[String], others: &[String]) -> String {
    match &parameter.domain {
        Domain::Choice(choices) => {
            let numbers = |values: &[String]| {
                let number = |value: &String| choices.iter().position(|choice| choice == value);
                values.iter().filter_map(number).collect::<Vec<_>>()
            };
            let [good, others] = [good, others].map(|values| ChoiceDensity::new(&numbers(values), choices.len()));
            let candidates = (0..CANDIDATES).map(|_| good.sample(chance)).collect();
            let best = best(candidates, |choice| good.log_density(*choice) - others.log_density(*choice));
            choices[best.unwrap_or(0)].clone()
        }
        Domain::Real { .. } | Domain::Whole { .. } => {
            let positions =
                |values: &[String]| values.iter().filter_map(|value| parameter.position(value)).collect::<Vec<_>>();
            let [good, others] = [good, others].map(|values| PositionDensity::new(positions(values)));
            let candidates = (0..CANDIDATES).map(|_| good.sample(chance)).collect();
            let best = best(candidates, |position| good.log_density(*position) - others.log_density(*position));
            parameter.value_at(best.unwrap_or(0.5))
        }
    }
}

/// The candidate with the greatest ratio.
fn best<T>(candidates: Vec<T>, ratio: impl Fn(&T) -> f64) -> Option<T> {
    candidates.into_iter().max_by(|one, other| ratio(one).total_cmp(&ratio(other)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::trial_rng;

    fn space() -> Space {
        Space::parse(["lr=1e-4..1.0:log", "dim=1..64", "kind=good,bad,worse"]).unwrap()
    }

    /// The best is lr = 0.01, dim = 40, kind = good.
    fn merit(values: &Values) -> f64 {
        let (lr, dim): (f64, f64) = (values[0].parse().unwrap(), values[1].parse().unwrap());
        let kind = ["good", "bad", "worse"].iter().position(|kind| *kind == values[2]).unwrap();
        -(lr.log10() + 2.0).powi(2) - ((dim - 40.0) / 20.0).powi(2) - kind as f64
    }

    /// The best merit of so many trials, one after the other.
    fn search(seed: u64, trials: usize, point: impl Fn(&[Tried<'_>], &mut Pcg64) -> Values) -> f64 {
        let mut tried: Vec<(Values, Option<f64>)> = Vec::new();
        for number in 0..trials {
            let history: Vec<Tried<'_>> = tried.iter().map(|(values, merit)| (values, *merit)).collect();
            let values = point(&history, &mut trial_rng(seed, number));
            let merit = merit(&values);
            tried.push((values, Some(merit)));
        }
        tried.iter().filter_map(|(_, merit)| *merit).fold(f64::MIN, f64::max)
    }

    #[test]
    fn it_finds_better_points_than_chance_does() {
        let seeds = 0..20;
        let by_tpe: f64 = seeds.clone().map(|seed| search(seed, 50, |tried, rng| point(&space(), rng, tried))).sum();
        let by_chance: f64 = seeds.map(|seed| search(seed, 50, |_, rng| random::point(&space(), rng))).sum();
        assert!(by_tpe / 20.0 > 0.5 * by_chance / 20.0, "{by_tpe} of TPE, {by_chance} by chance: nearer 0 is better");
    }

    #[test]
    fn the_same_history_makes_the_same_point() {
        let (space, mut tried) = (space(), Vec::new());
        for number in 0..12 {
            let values = random::point(&space, &mut trial_rng(5, number));
            let merit = merit(&values);
            tried.push((values, Some(merit)));
        }
        let history: Vec<Tried<'_>> = tried.iter().map(|(values, merit)| (values, *merit)).collect();
        let next = || point(&space, &mut trial_rng(5, 12), &history);
        assert_eq!(next(), next());
        let failed: Vec<Tried<'_>> = tried.iter().map(|(values, _)| (values, None)).collect();
        assert_eq!(point(&space, &mut trial_rng(5, 12), &failed), random::point(&space, &mut trial_rng(5, 12)));
    }

    /// Where every merit is the same or extreme, points stay in their space.
    #[test]
    fn equal_and_infinite_merits_are_taken() {
        let space = space();
        for merit in [0.0, f64::NEG_INFINITY, f64::INFINITY] {
            let tried: Vec<Values> = (0..15).map(|number| random::point(&space, &mut trial_rng(1, number))).collect();
            let history: Vec<Tried<'_>> = tried.iter().map(|values| (values, Some(merit))).collect();
            let values = point(&space, &mut trial_rng(1, 99), &history);
            let dim: i64 = values[1].parse().unwrap();
            assert!((1..=64).contains(&dim), "{values:?}");
        }
    }
}
