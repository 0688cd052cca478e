//! An estimate of a density from samples: for positions from 0 to 1 a mixture of normal distributions, one at each sample and a wide
//! one for what no trial has tried; for choices the shares, with one more of each.
//!
//! The width of a sample's distribution is the distance to its farther neighbour (Bergstra et al., NeurIPS 2011, section 4.2), but
//! at least a hundredth.

use rand::Rng;

/// Width of the distribution for what no trial has tried. It is nearly flat from 0 to 1.
const WIDE: f64 = 1.0;
/// The least width is one over this, or over the number of samples if they are fewer.
const MOST_NARROW: usize = 100;
/// A normal distribution whose mean is in the interval hits it at least every third time.
const TRIES: u32 = 200;

#[derive(Clone, Debug)]
pub(crate) struct PositionDensity {
    /// Mean and width.
    kernels: Vec<(f64, f64)>,
}

impl PositionDensity {
    pub(crate) fn new(mut positions: Vec<f64>) -> Self {
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

    pub(crate) fn sample(&self, chance: &mut impl Rng) -> f64 {
        let (mean, width) = self.kernels[chance.random_range(0..self.kernels.len())];
        let try_once = |_| mean + width * normal(chance);
        (0..TRIES).map(try_once).find(|position| (0.0..=1.0).contains(position)).unwrap_or(mean)
    }

    pub(crate) fn log_density(&self, position: f64) -> f64 {
        let density = |(mean, width): &(f64, f64)| {
            let inside = below((1.0 - mean) / width) - below(-mean / width);
            let distance = (position - mean) / width;
            (-0.5 * distance * distance).exp() / (width * std::f64::consts::TAU.sqrt() * inside)
        };
        (self.kernels.iter().map(density).sum::<f64>() / self.kernels.len() as f64).ln()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ChoiceDensity {
    shares: Vec<f64>,
}

impl ChoiceDensity {
    /// `chosen` are numbers of choices, of `choices`.
    pub(crate) fn new(chosen: &[usize], choices: usize) -> Self {
        let mut counts = vec![1.0; choices];
        chosen.iter().for_each(|choice| counts[*choice] += 1.0);
        let all: f64 = counts.iter().sum();
        Self { shares: counts.iter().map(|count| count / all).collect() }
    }

    pub(crate) fn sample(&self, chance: &mut impl Rng) -> usize {
        let mut left: f64 = chance.random();
        let is_it = |share: &f64| {
            left -= share;
            left < 0.0
        };
        self.shares.iter().position(is_it).unwrap_or(self.shares.len() - 1)
    }

    pub(crate) fn log_density(&self, choice: usize) -> f64 {
        self.shares[choice].ln()
    }
}

/// A number of the normal distribution (Box & Muller 1958).
fn normal(chance: &mut impl Rng) -> f64 {
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
    use rand_pcg::Pcg64;

    use super::*;

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

        #[test]
        fn shares_are_one_in_all(chosen in prop::collection::vec(0_usize..4, 0..20)) {
            let density = ChoiceDensity::new(&chosen, 4);
            let all: f64 = (0..4).map(|choice| density.log_density(choice).exp()).sum();
            prop_assert!((all - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn samples_are_where_the_density_is() {
        let (near, mut chance) = (PositionDensity::new(vec![0.2; 30]), Pcg64::seed_from_u64(1));
        let close = (0..1000).filter(|_| (near.sample(&mut chance) - 0.2).abs() < 0.2).count();
        assert!(close > 700, "{close}");
        assert!(near.log_density(0.2) > near.log_density(0.7) + 1.0);
        let choices = ChoiceDensity::new(&[2; 17], 3);
        let second = (0..1000).filter(|_| choices.sample(&mut chance) == 2).count();
        assert!((850..950).contains(&second), "{second}");
    }
}
