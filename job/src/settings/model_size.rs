//! The size of a dense network: a number of weights, written as `590k`, `13m`, `1.3b` or `1t`.

use std::fmt;
use std::str::FromStr;

pub const LADDER: [ModelSize; 8] = [
    ModelSize(111_000),
    ModelSize(590_000),
    ModelSize(1_300_000),
    ModelSize(13_000_000),
    ModelSize(111_000_000),
    ModelSize(1_300_000_000),
    ModelSize(13_000_000_000),
    ModelSize(111_000_000_000),
];

const UNITS: [(char, f64); 4] = [('t', 1e12), ('b', 1e9), ('m', 1e6), ('k', 1e3)];
/// Beyond this, counts of weights and bytes no longer fit into 64 bits.
const MOST: f64 = 1e15;

/// A number of weights and biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelSize(pub u64);

impl FromStr for ModelSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a size: write a number with k, m, b or t, like 590k, 13m, 1.3b");
        let lower = text.trim().to_ascii_lowercase();
        let unit = UNITS.into_iter().find(|(unit, _)| lower.ends_with(*unit));
        let (digits, factor) =
            unit.map_or((lower.as_str(), 1.0), |(unit, factor)| (lower.trim_end_matches(unit), factor));
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let number: f64 = digits.parse().ok().filter(|_| is_number).ok_or_else(wrong)?;
        let weights = (number * factor).round();
        if !(1.0..=MOST).contains(&weights) {
            return Err(format!("a network of {text} weights is out of range, expected 1 to 1000t"));
        }
        Ok(Self(weights as u64))
    }
}

/// With at most three digits: `13m`, `1.31b`.
impl fmt::Display for ModelSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weights = self.0 as f64;
        let unit = UNITS.into_iter().find(|(_, factor)| weights >= *factor * 0.9995);
        let Some((unit, factor)) = unit else { return write!(f, "{}", self.0) };
        let number = weights / factor;
        let places = if number < 9.995 { 2 } else { usize::from(number < 99.95) };
        let digits = format!("{number:.places$}");
        let digits = if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { &digits };
        write!(f, "{digits}{unit}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_with_a_unit_is_a_size() {
        let sizes = [("111k", 111_000), ("13m", 13_000_000), ("1.3B", 1_300_000_000), (" 2t ", 2_000_000_000_000)];
        for (text, weights) in sizes.into_iter().chain([("4100", 4100), ("0.5k", 500)]) {
            assert_eq!(text.parse(), Ok(ModelSize(weights)), "{text}");
        }
        for wrong in ["", "m", "13 m", "13mb", "-1k", "1e6", "k13", "1.2.3k", "inf", "nan", "0", "0.1", "2000t"] {
            assert!(wrong.parse::<ModelSize>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_size_is_shown_as_it_is_written() {
        let shown: Vec<String> = LADDER.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["111k", "590k", "1.3m", "13m", "111m", "1.3b", "13b", "111b"]);
        for (weights, expected) in
            [(7, "7"), (999, "999"), (999_999, "1m"), (1_234_567, "1.23m"), (12_345_678, "12.3m")]
        {
            assert_eq!(ModelSize(weights).to_string(), expected);
        }
        assert!(LADDER.is_sorted());
    }

    proptest! {
        #[test]
        fn a_size_that_is_shown_is_read_again(weights in 1_u64..1_000_000_000_000_000) {
            let again: ModelSize = ModelSize(weights).to_string().parse().unwrap();
            let error = again.0.abs_diff(weights) as f64 / weights as f64;
            prop_assert!(error <= 0.0051, "{weights} {again:?}");
        }

        #[test]
        fn no_text_panics(text in "[0-9.kmbt e+-]{0,8}") {
            let _ = text.parse::<ModelSize>();
        }
    }
}
