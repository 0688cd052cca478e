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
    #[must_use]
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
    #[must_use]
    pub fn width_multiplier(&self) -> f64 {
        match (self.parametrization, self.model.main_width()) {
            (Parametrization::Mup { base_width }, Some(width)) => width as f64 / f64::from(base_width),
            (Parametrization::Mup { .. } | Parametrization::Standard, _) => 1.0,
        }
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
