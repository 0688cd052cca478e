//! All combinations of lists of values. The last parameter changes fastest, as the last digit of a number does.

use crate::sweep::space::{Domain, Space, Values};
use crate::sweep::{Parameter, SpaceError};

/// The most combinations of a grid. No user trains more, and a typing error makes more.
const MOST: usize = 100_000;

pub(crate) fn combination_count(space: &Space) -> Result<usize, SpaceError> {
    let mut count = 1_u128;
    for Parameter { key, domain } in space.parameters() {
        match domain {
            Domain::Choice(values) => count = count.saturating_mul(values.len() as u128),
            _ => return Err(SpaceError::RangeInGrid { key: key.clone() }),
        }
    }
    usize::try_from(count).ok().filter(|count| *count <= MOST).ok_or(SpaceError::TooMany { count, most: MOST })
}

/// Combination `number` of them.
pub(crate) fn point(space: &Space, number: usize) -> Values {
    let mut left = number;
    let mut values: Values = Vec::new();
    for parameter in space.parameters().iter().rev() {
        let Domain::Choice(choices) = &parameter.domain else { continue };
        values.push(choices[left % choices.len()].clone());
        left /= choices.len();
    }
    values.reverse();
    values
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_parameter_changes_fastest() {
        let space = Space::parse(["a=1,2", "b=x,y,z"]).unwrap();
        assert_eq!(combination_count(&space), Ok(6));
        let all: Vec<String> = (0..6).map(|number| point(&space, number).join("")).collect();
        assert_eq!(all, ["1x", "1y", "1z", "2x", "2y", "2z"]);
    }

    #[test]
    fn ranges_and_huge_grids_are_refused() {
        let wide: Vec<String> = (0..20).map(|key| format!("k{key}=1,2")).collect();
        for (parameters, reason) in [(vec!["a=1..3".to_owned()], "a is a range"), (wide, "1048576 combinations")] {
            let space = Space::parse(parameters.iter().map(String::as_str)).unwrap();
            assert!(combination_count(&space).unwrap_err().to_string().contains(reason), "{reason}");
        }
    }

    proptest! {
        #[test]
        fn each_combination_comes_once(lengths in prop::collection::vec(1_usize..5, 1..5)) {
            let text = |(key, length): (usize, &usize)| {
                let values: Vec<String> = (0..*length).map(|value| value.to_string()).collect();
                format!("k{key}={}", values.join(","))
            };
            let texts: Vec<String> = lengths.iter().enumerate().map(text).collect();
            let space = Space::parse(texts.iter().map(String::as_str)).unwrap();
            let count = combination_count(&space).unwrap();
            let all: BTreeSet<Values> = (0..count).map(|number| point(&space, number)).collect();
            prop_assert_eq!((all.len(), count), (count, lengths.iter().product()));
        }
    }
}
