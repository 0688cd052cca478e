//! Vectors that a network learns in place of single numbers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Each single number becomes a vector before the network reads it: sines and cosines of learned frequencies, a linear layer of the
/// feature's own, and a ReLU: the PLR embedding of Gorishniy et al. 2022 ("On Embeddings for Numerical Features in Tabular Deep Learning").
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NumericEmbedding {
    /// Learned frequencies of a feature, each with a sine and a cosine.
    #[schemars(range(min = 1, max = 1024))]
    pub frequencies: usize,
    /// Standard deviation of the first frequencies. A small one makes smooth functions of the number, a large one steps. It is for numbers of
    /// unit scale: give the features `standardise` or `min_max`.
    #[schemars(range(min = 1e-4, max = 1000.0))]
    pub sigma: f64,
    /// Values of a feature's vector.
    #[schemars(range(min = 1, max = 1024))]
    pub dim: usize,
}

impl Default for NumericEmbedding {
    fn default() -> Self {
        Self { frequencies: 16, sigma: 0.1, dim: 8 }
    }
}
