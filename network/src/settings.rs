//! Choices within blocks, as a job file names them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What follows each hidden linear layer of the network's MLPs, in this order: norm, activation, dropout. It applies to all MLPs of a
/// network: bottom, top and deep; attention units and transformers have functions of their own. A TorchScript module has its own layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Mlp")]
pub struct MlpSettings {
    /// Function of each hidden unit.
    pub activation: MlpActivation,
    /// What the values of a hidden layer are normalised over, before the activation.
    pub norm: MlpNorm,
}

/// Function of a hidden unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Activation")]
pub enum MlpActivation {
    /// max(x, 0).
    #[default]
    Relu,
    /// x, or 0.01·x below 0.
    LeakyRelu,
    /// x, or eˣ − 1 below 0.
    Elu,
    /// x·Φ(x), with the normal distribution's Φ.
    Gelu,
    /// x·σ(x).
    Silu,
    /// The hyperbolic tangent.
    Tanh,
    /// Dice: p·x + (1 − p)·a·x with p = σ((x − mean) / deviation) over the samples of a worker's batch and a learned a for each unit, at
    /// first 0 (Zhou et al. 2018, equation 5). Scores use running statistics, which are part of the model. Mode `async` has none.
    Dice,
}

/// What the values of a hidden layer are normalised over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MlpNorm {
    /// They are not normalised.
    #[default]
    None,
    /// Each unit over the samples of a worker's batch (Ioffe and Szegedy 2015). Scores use running statistics, which are part of the
    /// model. Mode `async` has none.
    Batch,
    /// Each sample over the units of the layer (Ba et al. 2016).
    Layer,
}

/// How cross layers and deep MLP are connected (Wang et al. 2021, figure 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Structure")]
pub enum CrossStructure {
    /// The deep MLP reads the output of the cross layers.
    #[default]
    Stacked,
    /// Both read the input, and one linear layer reads both outputs.
    Parallel,
}

/// The function between two layers of an attention unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AttentionActivation {
    /// max(0, x) + a·min(0, x) with a learned a for each unit, at first 0.25 (He et al. 2015).
    #[default]
    Prelu,
    /// 1 / (1 + e^−x).
    Sigmoid,
    /// max(0, x).
    Relu,
    /// Dice: as `prelu`, but the bend is smooth and at the mean of the batch's real positions (Zhou et al. 2018, equation 5). Scores use
    /// running statistics, which are part of the model. Mode `async` has none.
    Dice,
}
