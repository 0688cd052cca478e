//! What a sample is made of.

use serde::Serialize;

use super::categorical::Categorical;
use super::numeric::Numeric;
use super::numeric_embedding::NumericEmbedding;
use super::targets::Target;

/// What a sample is made of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Features {
    /// What the model learns to predict: at least one target.
    pub targets: Vec<Target>,
    /// The column of sample weights.
    pub weight: Option<String>,
    /// Numeric features, in order.
    pub numeric: Vec<Numeric>,
    /// The vectors that single numbers become; `None`: the network reads the numbers.
    pub numeric_embedding: Option<NumericEmbedding>,
    /// Categorical features, in order.
    pub categorical: Vec<Categorical>,
}

impl Features {
    /// The target that is measured while training, and that chooses the state that is kept: the first.
    ///
    /// # Panics
    /// When there is no target, which no job has.
    #[must_use]
    pub fn main(&self) -> &Target {
        &self.targets[0]
    }

    /// Numeric inputs of the network, of all features.
    #[must_use]
    pub fn numeric_inputs(&self) -> usize {
        self.numeric.iter().map(Numeric::inputs).sum()
    }

    /// Outputs of the network, of all targets.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.targets.iter().map(Target::outputs).sum()
    }

    /// The columns that the model learns, and that of sample weights.
    pub fn learned_columns(&self) -> impl Iterator<Item = &String> {
        self.targets.iter().map(|target| &target.column).chain(&self.weight)
    }
}
