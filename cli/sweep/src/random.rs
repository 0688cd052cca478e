//! Points of a space by chance: a function of the seed and the trial's number (Bergstra & Bengio, JMLR 2012).

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use crate::space::{Space, Values};

/// Tells the trials of one seed apart: 2^64 divided by the golden ratio, which spreads neighbouring numbers.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The source of chance of a trial.
pub(crate) fn trial_rng(seed: u64, number: usize) -> Pcg64 {
    Pcg64::seed_from_u64(seed ^ (number as u64 + 1).wrapping_mul(SPREAD))
}

pub(crate) fn point(space: &Space, chance: &mut Pcg64) -> Values {
    space.parameters().iter().map(|parameter| parameter.value_at(chance.random())).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_trial_has_its_point_whatever_came_before() {
        let space = Space::parse(["lr=1e-4..1e-2:log", "dim=4,8"]).unwrap();
        let point = |seed, number| point(&space, &mut trial_rng(seed, number));
        assert_eq!(point(1, 7), point(1, 7));
        assert_ne!(point(1, 7), point(1, 8));
        assert_ne!(point(1, 7), point(2, 7));
    }

    /// A range of a thousandfold has a third of its values in each decade; each choice is as likely.
    #[test]
    fn values_are_spread_evenly() {
        let space = Space::parse(["lr=1e-3..1.0:log", "dim=4..6", "kind=a,b"]).unwrap();
        let mut seen: BTreeMap<String, u32> = BTreeMap::new();
        for number in 0..3000 {
            let values = point(&space, &mut trial_rng(3, number));
            let decade = values[0].parse::<f64>().unwrap().log10().floor();
            for value in [format!("1e{decade}"), values[1].clone(), values[2].clone()] {
                *seen.entry(value).or_default() += 1;
            }
        }
        for value in ["1e-3", "1e-2", "1e-1", "4", "5", "6"] {
            assert!((850..1150).contains(&seen[value]), "{value}: {seen:?}");
        }
        assert!((1350..1650).contains(&seen["a"]), "{seen:?}");
    }
}
