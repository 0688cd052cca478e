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

use rand::Rng;
use rand_pcg::Pcg64;

use crate::sweep::space::{Domain, Parameter, Space, Values, random_point};

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
        return random_point(space, chance);
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
        Domain::Range { .. } => {
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

/// Width of the distribution for what no trial has tried. It is nearly flat from 0 to 1.
const WIDE: f64 = 1.0;
/// The least width is one over this, or over the number of samples if they are fewer.
const MOST_NARROW: usize = 100;
/// A normal distribution whose mean is in the interval hits it at least every third time.
const TRIES: u32 = 200;

/// An estimate of a density from samples, on positions from 0 to 1: a mixture of normal distributions, one at each sample
/// and a wide one for what no trial has tried.
///
/// The width of a sample's distribution is the distance to its farther neighbour (Bergstra et al., NeurIPS 2011,
/// section 4.2), but at least a hundredth.
#[derive(Clone, Debug)]
struct PositionDensity {
    /// Mean and width.
    kernels: Vec<(f64, f64)>,
}

impl PositionDensity {
    fn new(mut positions: Vec<f64>) -> Self {
        positions.sort_by(f64::total_cmp);
        let least = 1.0 / MOST_NARROW.min(positions.len() + 1) as f64;
        let width = |number: usize| {
            let lower = number.checked_sub(1).map_or(0.0, |previous| positions[previous]);
            let upper = positions.get(number + 1).copied().unwrap_or(1.0);
            (positions[number] - lower).max(upper - positions[number]).clamp(least, WIDE)
        };
        let mut kernels: Vec<_> = (0..positions.len()).map(|number| (positions[number], width(number))).collect();
        kernels.push((0.5, WIDE));
        Self { kernels }
    }

    fn sample(&self, chance: &mut impl Rng) -> f64 {
        let (mean, width) = self.kernels[chance.random_range(0..self.kernels.len())];
        let try_once = |_| mean + width * normal(chance);
        (0..TRIES).map(try_once).find(|position| (0.0..=1.0).contains(position)).unwrap_or(mean)
    }

    fn log_density(&self, position: f64) -> f64 {
        let density = |(mean, width): &(f64, f64)| {
            let inside = below((1.0 - mean) / width) - below(-mean / width);
            let distance = (position - mean) / width;
            (-0.5 * distance * distance).exp() / (width * std::f64::consts::TAU.sqrt() * inside)
        };
        (self.kernels.iter().map(density).sum::<f64>() / self.kernels.len() as f64).ln()
    }
}

/// The shares of the choices, with one more of each.
#[derive(Clone, Debug)]
struct ChoiceDensity {
    shares: Vec<f64>,
}

impl ChoiceDensity {
    /// `chosen` are numbers of choices, of `choices`.
    fn new(chosen: &[usize], choices: usize) -> Self {
        let mut counts = vec![1.0; choices];
        chosen.iter().for_each(|choice| counts[*choice] += 1.0);
        let all: f64 = counts.iter().sum();
        Self { shares: counts.iter().map(|count| count / all).collect() }
    }

    fn sample(&self, chance: &mut impl Rng) -> usize {
        let mut left: f64 = chance.random();
        let is_it = |share: &f64| {
            left -= share;
            left < 0.0
        };
        self.shares.iter().position(is_it).unwrap_or(self.shares.len() - 1)
    }

    fn log_density(&self, choice: usize) -> f64 {
        self.shares[choice].ln()
    }
}

/// A number of the normal distribution (Box & Muller 1958).
pub(crate) fn normal(chance: &mut impl Rng) -> f64 {
    let (radius, angle): (f64, f64) = (1.0 - chance.random::<f64>(), chance.random());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

/// The share of the normal distribution that is below a value.
fn below(value: f64) -> f64 {
    0.5 * (1.0 + libm::erf(value / std::f64::consts::SQRT_2))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;

    use super::*;
    use crate::sweep::space::trial_rng;

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
        let by_chance: f64 = seeds.map(|seed| search(seed, 50, |_, rng| random_point(&space(), rng))).sum();
        assert!(by_tpe / 20.0 > 0.5 * by_chance / 20.0, "{by_tpe} of TPE, {by_chance} by chance: nearer 0 is better");
    }

    #[test]
    fn the_same_history_makes_the_same_point() {
        let space = space();
        let tried: Vec<Values> = (0..12).map(|number| random_point(&space, &mut trial_rng(5, number))).collect();
        let history: Vec<Tried<'_>> = tried.iter().map(|values| (values, Some(merit(values)))).collect();
        let next = || point(&space, &mut trial_rng(5, 12), &history);
        assert_eq!(next(), next());
        let failed: Vec<Tried<'_>> = tried.iter().map(|values| (values, None)).collect();
        assert_eq!(point(&space, &mut trial_rng(5, 12), &failed), random_point(&space, &mut trial_rng(5, 12)));
    }

    /// Where every merit is the same or extreme, points stay in their space.
    #[test]
    fn equal_and_infinite_merits_are_taken() {
        let space = space();
        for merit in [0.0, f64::NEG_INFINITY, f64::INFINITY] {
            let tried: Vec<Values> = (0..15).map(|number| random_point(&space, &mut trial_rng(1, number))).collect();
            let history: Vec<Tried<'_>> = tried.iter().map(|values| (values, Some(merit))).collect();
            let values = point(&space, &mut trial_rng(1, 99), &history);
            let dim: i64 = values[1].parse().unwrap();
            assert!((1..=64).contains(&dim), "{values:?}");
        }
    }

    fn integral(density: &PositionDensity) -> f64 {
        (0..2000).map(|number| density.log_density((f64::from(number) + 0.5) / 2000.0).exp() / 2000.0).sum()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn a_density_is_one_in_all_and_samples_are_inside(
            positions in prop::collection::vec(0.0..=1.0_f64, 0..20), seed in any::<u64>(),
        ) {
            let density = PositionDensity::new(positions);
            prop_assert!((integral(&density) - 1.0).abs() < 0.01, "{}", integral(&density));
            let mut chance = Pcg64::seed_from_u64(seed);
            for _ in 0..20 {
                prop_assert!((0.0..=1.0).contains(&density.sample(&mut chance)));
            }
        }
    }
}
