//! What a sample is made of.

use serde::Serialize;

use super::categorical::Categorical;
use super::numeric::Numeric;
use super::numeric_embedding::NumericEmbedding;
use super::targets::Target;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Features {
    /// What the model learns to predict: at least one target.
    pub targets: Vec<Target>,
    pub weight: Option<String>,
    pub numeric: Vec<Numeric>,
    /// The vectors that single numbers become; `None`: the network reads the numbers.
    pub numeric_embedding: Option<NumericEmbedding>,
    pub categorical: Vec<Categorical>,
}

impl Features {
    /// The target that is measured while training, and that chooses the state that is kept: the first.
    #[must_use]
    pub fn main_target(&self) -> &Target {
        &self.targets[0]
    }

    #[must_use]
    pub fn numeric_inputs(&self) -> usize {
        self.numeric.iter().map(Numeric::input_count).sum()
    }

    #[must_use]
    pub fn output_count(&self) -> usize {
        self.targets.iter().map(Target::output_count).sum()
    }

    /// The columns that the model learns, and that of sample weights.
    pub fn learned_columns(&self) -> impl Iterator<Item = &String> {
        self.targets.iter().map(|target| &target.column).chain(&self.weight)
    }
}

impl Features {
    /// The inputs that are single numbers, which a numeric embedding is for: not those of vectors, and not missing indicators.
    #[must_use]
    pub fn single_numbers(&self) -> Vec<usize> {
        let starts = self.numeric.iter().scan(0, |end, feature| {
            let start = *end;
            *end += feature.input_count();
            Some((feature, start))
        });
        starts.filter(|(feature, _): &(&Numeric, usize)| feature.width.is_none()).map(|(_, start)| start).collect()
    }

    /// Values that the network reads of a numeric feature: its inputs, with a vector in place of an embedded number.
    #[must_use]
    pub fn numeric_width(&self, feature: &Numeric) -> usize {
        let is_embedded = feature.width.is_none();
        let more = self.numeric_embedding.filter(|_| is_embedded).map_or(0, |embedding| embedding.dim - 1);
        feature.input_count() + more
    }

    #[must_use]
    pub fn numeric_values(&self) -> usize {
        self.numeric.iter().map(|feature| self.numeric_width(feature)).sum()
    }
}
