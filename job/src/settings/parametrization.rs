//! How first values and learning rates of the dense network follow its width: as PyTorch has them, or by µP.
//!
//! µP, the maximal update parametrisation (Yang et al. 2022, "Tensor Programs V", table 3), makes one learning rate right for all widths. m is
//! the width of the network over the base width, and a dimension is wide if it grows with the width:
//!
//! ```text
//!                         weights that read → give
//!                         fixed → wide   wide → wide   wide → fixed   biases, norms, slopes
//!  first values, σ             1              1            1/√m       √m after a wide input
//!  rate, Adam … Adagrad        1             1/m           1/m                1
//!  rate, SGD                   m              1            1/m        m with a wide output
//! ```
//!
//! Each entry is a factor of what PyTorch's scheme has, σ = 1/√(3·inputs), so a network of the base width is one of that scheme.
//!
//! The size of a network is a number of weights, written as `590k`, `13m`, `1.3b` or `1t`.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use super::{DenseOptimizer, DenseTensor, Job};

/// The width of a network with `model.size`, at which µP changes nothing.
pub const BASE_WIDTH: u32 = 128;

/// How first values and learning rates of the dense network follow its width.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Parametrization {
    /// First values by PyTorch's scheme, and one learning rate.
    #[default]
    Standard,
    Mup {
        /// Width at which first values and rates are those of the standard parametrisation.
        base_width: u32,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct DenseSegment {
    pub tensor: DenseTensor,
    pub range: std::ops::Range<usize>,
    pub lr_factor: f64,
    /// Factor of the bound or deviation of the first values.
    pub first_factor: f64,
}

impl Job {
    /// The tensors of the dense network in the order of the flat vector of its weights, with their factors; `None` for a user's module.
    pub fn dense_segments(&self) -> Option<Vec<DenseSegment>> {
        let multiplier = self.width_multiplier();
        let is_sgd = matches!(self.dense_optimizer, DenseOptimizer::Sgd { .. });
        let mut start = 0;
        let segment = |tensor: DenseTensor| {
            let range = start..start + usize::try_from(tensor.len()).unwrap_or(usize::MAX);
            start = range.end;
            let lr_factor = multiplier.powi(tensor.lr_power(is_sgd));
            let first_factor = multiplier.powf(tensor.first_power());
            DenseSegment { tensor, range, lr_factor, first_factor }
        };
        Some(self.dense_layout()?.tensors.into_iter().map(segment).collect())
    }

    /// m: the network's width over the base width; 1 without µP.
    pub fn width_multiplier(&self) -> f64 {
        match (self.parametrization, self.model.main_width()) {
            (Parametrization::Mup { base_width }, Some(width)) => width as f64 / f64::from(base_width),
            (Parametrization::Mup { .. } | Parametrization::Standard, _) => 1.0,
        }
    }
}

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
    use crate::fixture::{CRITEO, job};

    /// Factors of the learning rate and of the first values by name, with m = 4.
    fn factors(text: &str) -> Vec<(String, f64, f64)> {
        let (model, rest) = text.split_once('\n').unwrap_or((text, ""));
        let text = format!("[model]\n{}\nmup_base_width = 2\n{rest}\n", model.replace("; ", "\n"));
        let segments = job(CRITEO, &text).dense_segments().unwrap();
        segments.into_iter().map(|one| (one.tensor.name, one.lr_factor, one.first_factor)).collect()
    }

    fn named(name: &str, lr: f64, first: f64) -> (String, f64, f64) {
        (name.to_owned(), lr, first)
    }

    #[test]
    fn rates_of_adam_and_first_values_are_those_of_the_table() {
        let expected = [
            named("layers.0.weight", 1.0, 1.0),
            named("layers.0.bias", 1.0, 1.0),
            named("layers.1.weight", 0.25, 1.0),
            named("layers.1.bias", 1.0, 2.0),
            named("layers.2.weight", 0.25, 0.5),
            named("layers.2.bias", 1.0, 2.0),
        ];
        assert_eq!(factors("kind = 'ffnn'; hidden = [8, 6]"), expected);
        assert_eq!(factors("kind = 'ffnn'; hidden = [8, 6]\n[optimizer]\nkind = 'adagrad'"), expected);
    }

    #[test]
    fn rates_of_sgd_have_a_column_of_their_own() {
        let found = factors("kind = 'ffnn'; hidden = [8, 6]\n[mlp]\nnorm = 'layer'\n[optimizer]\nkind = 'sgd'");
        let rates: Vec<f64> = found.iter().map(|(_, lr, _)| *lr).collect();
        // Weight and bias of three layers, then weight and bias of two norms.
        assert_eq!(rates, [4.0, 4.0, 1.0, 4.0, 0.25, 1.0, 4.0, 4.0, 4.0, 4.0]);
    }

    #[test]
    fn the_vector_of_a_bottom_mlp_is_an_output() {
        let found = factors("kind = 'dlrm'; bottom = [8]; top = [8]");
        assert!(found.contains(&named("bottom.1.weight", 0.25, 0.5)), "{found:?}");
        assert!(found.contains(&named("top.0.weight", 1.0, 1.0)), "{found:?}");
    }

    /// The products of two streams are as many as the square of the width.
    #[test]
    fn a_product_of_two_streams_is_an_output_of_both() {
        let found = factors("kind = 'finalmlp'; first = [8]; second = [8]");
        assert!(found.contains(&named("fusion.0.weight", 1.0 / 16.0, 0.25)), "{found:?}");
    }

    #[test]
    fn without_mup_every_factor_is_one_and_ranges_follow_each_other() {
        let segments = job(CRITEO, "").dense_segments().unwrap();
        assert!(segments.iter().all(|one| (one.lr_factor, one.first_factor) == (1.0, 1.0)));
        assert!(segments.windows(2).all(|pair| pair[0].range.end == pair[1].range.start));
        let all = segments.last().map(|last| last.range.end as u64);
        assert_eq!(all, job(CRITEO, "").dense_parameters());
    }
}

#[cfg(test)]
mod size_tests {
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
