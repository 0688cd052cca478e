//! Vectors that a network learns in place of single numbers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::features::Features;
use super::numeric::Numeric;

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

impl NumericEmbedding {
    /// Learned values of so many numbers.
    #[must_use]
    pub fn parameters(&self, numbers: u64) -> u64 {
        let (frequencies, dim) = (self.frequencies as u64, self.dim as u64);
        numbers * (frequencies + (2 * frequencies + 1) * dim)
    }
}

impl Features {
    /// The inputs that are single numbers, which a numeric embedding is for: not those of vectors, and not missing indicators.
    #[must_use]
    pub fn single_numbers(&self) -> Vec<usize> {
        let starts = self.numeric.iter().scan(0, |end, feature| {
            let start = *end;
            *end += feature.inputs();
            Some((feature, start))
        });
        starts.filter(|(feature, _): &(&Numeric, usize)| feature.width.is_none()).map(|(_, start)| start).collect()
    }

    /// Values that the network reads of a numeric feature: its inputs, with a vector in place of an embedded number.
    #[must_use]
    pub fn numeric_width(&self, feature: &Numeric) -> usize {
        let is_embedded = feature.width.is_none();
        let more = self.numeric_embedding.filter(|_| is_embedded).map_or(0, |embedding| embedding.dim - 1);
        feature.inputs() + more
    }

    /// Numeric values that the network reads, of all features.
    #[must_use]
    pub fn numeric_values(&self) -> usize {
        self.numeric.iter().map(|feature| self.numeric_width(feature)).sum()
    }
}
