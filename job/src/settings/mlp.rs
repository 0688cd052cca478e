//! `[mlp]`: what follows the linear layers of the network's MLPs.

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{CRITEO, job, problems};

    #[test]
    fn layers_have_relu_and_no_norm_unless_the_job_says_otherwise() {
        assert_eq!(job(CRITEO, "").mlp, MlpSettings { activation: MlpActivation::Relu, norm: MlpNorm::None });
        let chosen = job(CRITEO, "[mlp]\nactivation = 'leaky_relu'\nnorm = 'layer'\n");
        assert_eq!(chosen.mlp, MlpSettings { activation: MlpActivation::LeakyRelu, norm: MlpNorm::Layer });
        assert_eq!(
            chosen.dense_parameters(),
            job(CRITEO, "").dense_parameters().map(|plain| plain + 2 * (320 + 16 + 384))
        );
        let dice = job(CRITEO, "[mlp]\nactivation = 'dice'\nnorm = 'layer'\n");
        assert_eq!(dice.dense_parameters(), chosen.dense_parameters().map(|normed| normed + 320 + 16 + 384));
        let unknown = problems(CRITEO, "[mlp]\nactivation = 'gello'\n");
        assert_eq!(unknown, ["`mlp.activation` has no choice \"gello\""]);
    }

    #[test]
    fn what_has_no_layers_or_no_statistics_is_refused() {
        let module = format!(
            "[model]\nkind = 'torchscript'\nfile = 'net.pt'\nsha256 = '{}'\ntrust = true\n[mlp]\nnorm = 'batch'\n",
            "ab".repeat(32)
        );
        assert_eq!(problems(CRITEO, &module), ["a TorchScript module has its own layers"]);
        let asynchronous = "[train]\nmode = 'async'\n[mlp]\nnorm = 'batch'\n";
        assert_eq!(
            problems(CRITEO, asynchronous),
            ["mode \"async\" keeps no running statistics, which batch norm needs"]
        );
        let dice = "[train]\nmode = 'async'\n[mlp]\nactivation = 'dice'\n";
        assert_eq!(problems(CRITEO, dice), ["mode \"async\" keeps no running statistics, which Dice needs"]);
        let towers = "[model]\nkind = 'mmoe'\n[mlp]\nactivation = 'dice'\n";
        assert_eq!(problems(CRITEO, towers), ["the towers and experts of networks for several labels take no Dice"]);
    }
}
