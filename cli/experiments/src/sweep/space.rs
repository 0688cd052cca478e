//! What is searched: keys of the job, each with the values that it may have.
//!
//! | text | values |
//! |---|---|
//! | `train.batch_size=512,1024` | each of the list; a value is TOML, and may be a list in brackets |
//! | `optimizer.lr=1e-4..1e-2:log` | a real number between both, evenly in its logarithm |
//! | `optimizer.lr=0.1..0.5` | a real number, evenly |
//! | `embedding.dim=4..16` | a whole number, both ends included |

use std::collections::BTreeSet;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use crate::ExperimentError;

/// Digits of a real number that is chosen: more would be noise that no user wants to type.
const DIGITS: usize = 4;
/// What a range of whole numbers has more at both ends, so that the first and the last number are as likely as the others.
const HALF: f64 = 0.5;

/// Values of all parameters, in the order of the space, as texts of the job file.
pub type Values = Vec<String>;

/// Whether values are chosen evenly in the number or in its logarithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueScale {
    /// In the number.
    Linear,
    /// In its logarithm.
    Log,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Domain {
    Choice(Vec<String>),
    Range { low: f64, high: f64, is_whole: bool, scale: ValueScale },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    pub key: String,
    pub domain: Domain,
}

/// All parameters. Each key is there once.
#[derive(Clone, Debug, PartialEq)]
pub struct Space(Vec<Parameter>);

impl Space {
    /// Reads one text for each parameter. The error is that of the first text that describes none.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, ExperimentError> {
        let parameters = texts.into_iter().map(Parameter::parse).collect::<Result<Vec<_>, _>>()?;
        let mut keys = BTreeSet::new();
        match parameters.iter().find(|parameter| !keys.insert(&parameter.key)) {
            Some(Parameter { key, .. }) => {
                Err(ExperimentError(format!("{key} is named twice; name each key once, with all its values")))
            }
            None => Ok(Self(parameters)),
        }
    }

    pub fn parameters(&self) -> &[Parameter] {
        &self.0
    }
}

impl Parameter {
    /// Reads `KEY=VALUE,…` or `KEY=LOW..HIGH[:log]`.
    pub fn parse(text: &str) -> Result<Self, ExperimentError> {
        let no_key = || {
            let what = "has no key; write KEY=VALUE,VALUE,… or KEY=LOW..HIGH, such as train.batch_size=512,1024";
            ExperimentError(format!("{text:?} {what}"))
        };
        let (key, values) = text.split_once('=').ok_or_else(no_key)?;
        let (key, values) = (key.trim(), values.trim());
        if key.is_empty() {
            return Err(no_key());
        }
        let domain = match values.contains("..") && !values.contains(['"', '\'', '[', ',']) {
            true => parse_range(key, values)?,
            false => Domain::Choice(parse_choices(key, values)?),
        };
        Ok(Self { key: key.to_owned(), domain })
    }

    pub fn value_at(&self, position: f64) -> String {
        let position = position.clamp(0.0, 1.0);
        match &self.domain {
            Domain::Choice(values) => {
                let number = (position * values.len() as f64) as usize;
                values[number.min(values.len() - 1)].clone()
            }
            Domain::Range { low, high, is_whole: true, scale } => {
                let value = scale.interpolate(low - HALF, high + HALF, position).round().clamp(*low, *high);
                (value as i64).to_string()
            }
            Domain::Range { low, high, is_whole: false, scale } => {
                let value = scale.interpolate(*low, *high, position);
                let rounded: f64 = format!("{value:.DIGITS$e}").parse().unwrap_or(value);
                format!("{:?}", rounded.clamp(*low, *high))
            }
        }
    }

    /// The position of a value, from 0 to 1. `None` for a value of a list.
    pub(crate) fn position(&self, value: &str) -> Option<f64> {
        let value: f64 = value.parse().ok()?;
        let Domain::Range { low, high, is_whole, scale } = &self.domain else { return None };
        let more = if *is_whole { HALF } else { 0.0 };
        Some(scale.position(low - more, high + more, value).clamp(0.0, 1.0))
    }

    /// Values by which it shows whether the job takes the whole domain: all of a list, the ends of a range.
    pub fn extreme_values(&self) -> Vec<String> {
        match &self.domain {
            Domain::Choice(values) => values.clone(),
            Domain::Range { .. } => vec![self.value_at(0.0), self.value_at(1.0)],
        }
    }
}

impl ValueScale {
    fn interpolate(self, low: f64, high: f64, position: f64) -> f64 {
        match self {
            Self::Linear => low + (high - low) * position,
            Self::Log => (low.ln() + (high.ln() - low.ln()) * position).exp(),
        }
    }

    fn position(self, low: f64, high: f64, value: f64) -> f64 {
        match self {
            Self::Linear => (value - low) / (high - low),
            Self::Log => (value.ln() - low.ln()) / (high.ln() - low.ln()),
        }
    }
}

fn parse_range(key: &str, text: &str) -> Result<Domain, ExperimentError> {
    let refused = |problem: &str| {
        let help = format!("write {key}=1e-4..1e-2, {key}=2..8, or with :log at the end");
        ExperimentError(format!("{key}={text} is no range: {problem}; {help}"))
    };
    let (range, scale) = match text.rsplit_once(':') {
        None => (text, ValueScale::Linear),
        Some((range, "log")) => (range, ValueScale::Log),
        Some(_) => return Err(refused("only :log may follow")),
    };
    let (low, high) = range.split_once("..").ok_or_else(|| refused("it has no `..`"))?;
    let (low, high) = (low.trim(), high.trim());
    let is_whole = low.parse::<i64>().is_ok() && high.parse::<i64>().is_ok();
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
    let (Some(low), Some(high)) = (number(low), number(high)) else {
        return Err(refused("both ends must be numbers"));
    };
    match low < high {
        false => Err(refused("the first number must be less than the second")),
        true if scale == ValueScale::Log && low <= 0.0 => Err(refused("a logarithm needs numbers above 0")),
        true => Ok(Domain::Range { low, high, is_whole, scale }),
    }
}

/// Divides at commas that are outside of brackets and quotes.
fn parse_choices(key: &str, text: &str) -> Result<Vec<String>, ExperimentError> {
    let (mut values, mut value, mut depth, mut quote) = (Vec::new(), String::new(), 0_i32, None);
    for c in text.chars() {
        match (c, quote) {
            (',', None) if depth == 0 => {
                values.push(std::mem::take(&mut value));
                continue;
            }
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            ('[' | '{', None) => depth += 1,
            (']' | '}', None) => depth -= 1,
            _ => {}
        }
        value.push(c);
    }
    values.push(value);
    let values: Vec<String> = values.iter().map(|value| value.trim().to_owned()).collect();
    if values.iter().any(String::is_empty) {
        return Err(ExperimentError(format!("{key} has an empty value; write {key}=VALUE,VALUE,…")));
    }
    Ok(values)
}

/// Tells the trials of one seed apart: 2^64 divided by the golden ratio, which spreads neighbouring numbers.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The source of chance of a trial.
pub(crate) fn trial_rng(seed: u64, number: usize) -> Pcg64 {
    Pcg64::seed_from_u64(seed ^ (number as u64 + 1).wrapping_mul(SPREAD))
}

/// A point by chance: a function of the seed and the trial's number (Bergstra & Bengio, JMLR 2012).
pub(crate) fn random_point(space: &Space, chance: &mut Pcg64) -> Values {
    space.parameters().iter().map(|parameter| parameter.value_at(chance.random())).collect()
}

/// The most combinations of a grid. No user trains more, and a typing error makes more.
const MOST_COMBINATIONS: usize = 100_000;

pub(crate) fn combination_count(space: &Space) -> Result<usize, ExperimentError> {
    let mut count = 1_u128;
    for Parameter { key, domain } in space.parameters() {
        match domain {
            Domain::Choice(values) => count = count.saturating_mul(values.len() as u128),
            Domain::Range { .. } => {
                let help = format!("list them ({key}=VALUE,VALUE,…), or use --random or --tpe");
                return Err(ExperimentError(format!("{key} is a range, and a grid needs values; {help}")));
            }
        }
    }
    usize::try_from(count).ok().filter(|count| *count <= MOST_COMBINATIONS).ok_or_else(|| {
        let most = MOST_COMBINATIONS;
        ExperimentError(format!("the grid has {count} combinations, more than {most}; use --random with --trials"))
    })
}

/// Combination `number` of the lists of values. The last parameter changes fastest, as the last digit of a number does.
pub(crate) fn grid_point(space: &Space, number: usize) -> Values {
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
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn parameter(text: &str) -> Parameter {
        Parameter::parse(text).unwrap()
    }

    #[test]
    fn lists_and_ranges_are_distinguished() {
        let choice = |values: &[&str]| Domain::Choice(values.iter().map(ToString::to_string).collect());
        assert_eq!(parameter("train.batch_size=512, 1024").domain, choice(&["512", "1024"]));
        assert_eq!(parameter("model.top=[64,32],[16]").domain, choice(&["[64,32]", "[16]"]));
        assert_eq!(parameter("a={kind='x,y', lr=1},b").domain, choice(&["{kind='x,y', lr=1}", "b"]));
        assert_eq!(parameter("data.train='../a',b").domain, choice(&["'../a'", "b"]));
        let whole = Domain::Range { low: 4.0, high: 16.0, is_whole: true, scale: ValueScale::Linear };
        assert_eq!(parameter("dim=4..16").domain, whole);
        let real = Domain::Range { low: 1e-4, high: 1e-2, is_whole: false, scale: ValueScale::Log };
        assert_eq!(parameter("lr=1e-4..1e-2:log"), Parameter { key: "lr".to_owned(), domain: real });
    }

    #[test]
    fn what_is_no_parameter_is_refused_with_what_was_written() {
        let refused = |text: &str| Parameter::parse(text).unwrap_err().to_string();
        assert!(refused("512,1024").contains("\"512,1024\" has no key"));
        assert!(refused("a=1,,2").contains("a has an empty value"));
        assert!(refused("a=").contains("empty value"));
        for (range, problem) in [
            ("2..1", "less than"),
            ("0..1:log", "above 0"),
            ("1..x", "must be numbers"),
            ("1..2:exp", "only :log"),
            ("0.0..1.0:log", "above 0"),
        ] {
            assert!(refused(&format!("a={range}")).contains(problem), "{range}");
        }
        assert!(Space::parse(["a=1", "b=1", "a=2"]).unwrap_err().to_string().contains("a is named twice"));
    }

    #[test]
    fn ends_are_part_of_a_range_and_numbers_are_short() {
        assert_eq!(parameter("lr=1e-4..1e-2:log").extreme_values(), ["0.0001", "0.01"]);
        assert_eq!(parameter("dim=4..16").extreme_values(), ["4", "16"]);
        assert_eq!(parameter("lr=0.0..1.0").value_at(1.0 / 3.0), "0.33333");
        assert_eq!(parameter("lr=1.0..3.0").value_at(0.5), "2.0", "a real number stays one");
    }

    proptest! {
        #[test]
        fn each_value_is_in_its_range_and_has_its_position(
            low in 1_i64..1000, more in 1_i64..1000, position in 0.0..1.0_f64, log in any::<bool>(),
        ) {
            let end = if log { ":log" } else { "" };
            let whole = parameter(&format!("a={low}..{}{end}", low + more));
            let value: i64 = whole.value_at(position).parse().unwrap();
            prop_assert!((low..=low + more).contains(&value));
            prop_assert_eq!(whole.value_at(whole.position(&value.to_string()).unwrap()), value.to_string());
            let real = parameter(&format!("a={low}.5..{}.5{end}", low + more));
            let value = real.value_at(position);
            let number: f64 = value.parse().unwrap();
            prop_assert!(number >= low as f64 + 0.5 && number <= (low + more) as f64 + 0.5);
            prop_assert!((real.position(&value).unwrap() - position).abs() < 0.05);
        }

        #[test]
        fn each_combination_comes_once(lengths in prop::collection::vec(1_usize..5, 1..5)) {
            let text = |(key, length): (usize, &usize)| {
                let values: Vec<String> = (0..*length).map(|value| value.to_string()).collect();
                format!("k{key}={}", values.join(","))
            };
            let texts: Vec<String> = lengths.iter().enumerate().map(text).collect();
            let space = Space::parse(texts.iter().map(String::as_str)).unwrap();
            let count = combination_count(&space).unwrap();
            let all: BTreeSet<Values> = (0..count).map(|number| grid_point(&space, number)).collect();
            prop_assert_eq!((all.len(), count), (count, lengths.iter().product()));
        }
    }

    #[test]
    fn the_last_parameter_changes_fastest() {
        let space = Space::parse(["a=1,2", "b=x,y,z"]).unwrap();
        assert_eq!(combination_count(&space), Ok(6));
        let all: Vec<String> = (0..6).map(|number| grid_point(&space, number).join("")).collect();
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

    /// A range of a thousandfold has a third of its values in each decade; each choice is as likely.
    #[test]
    fn values_are_spread_evenly() {
        let space = Space::parse(["lr=1e-3..1.0:log", "dim=4..6", "kind=a,b"]).unwrap();
        let mut seen: BTreeMap<String, u32> = BTreeMap::new();
        for number in 0..3000 {
            let values = random_point(&space, &mut trial_rng(3, number));
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
