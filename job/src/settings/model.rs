//! `[model]`: the dense network.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AttentionActivation, AttentionPair, CrossStructure};

/// The dense network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Model {
    /// Naumov et al. 2019: numeric features through a bottom MLP, dot products between its output and all embedding
    /// vectors, top MLP. All tables share one `dim`. Without numeric features there is no bottom MLP.
    Dlrm {
        /// Widths of the hidden layers of the bottom MLP, in order; a last layer of the tables' `dim` is appended.
        #[serde(default = "bottom")]
        #[schemars(length(max = 64), inner(range(min = 1, max = 1_048_576)))]
        bottom: Vec<i64>,
        /// Widths of the hidden layers of the top MLP, in order; the output layer is appended.
        #[serde(default = "hidden")]
        #[schemars(length(max = 64), inner(range(min = 1, max = 1_048_576)))]
        top: Vec<i64>,
        /// Share of the hidden units of the top MLP that a training step drops.
        #[serde(default)]
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        dropout: f64,
    },
    /// Feed-forward network over numeric features and embedding vectors side by side.
    Ffnn {
        /// Widths of the hidden layers, in order; the output layer is appended.
        #[serde(default = "hidden")]
        #[schemars(length(max = 64), inner(range(min = 1, max = 1_048_576)))]
        hidden: Vec<i64>,
        /// Share of hidden units that a training step drops.
        #[serde(default)]
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        dropout: f64,
    },
    /// DCN-V2, Wang et al. 2021: cross layers over numeric features and embedding vectors side by side, and a deep MLP.
    Dcnv2 {
        /// Cross layers; each raises by one the degree of the feature products that the network can express.
        #[serde(default = "count::<3>")]
        #[schemars(range(min = 1, max = 64))]
        cross_layers: usize,
        /// Rank r of the cross layers' matrices: W = U·Vᵀ with U and V of width × r; below the width of the input.
        /// Default: none, W is of full rank, width × width.
        #[schemars(range(min = 1, max = 1_048_576))]
        rank: Option<usize>,
        /// How cross layers and deep MLP are connected.
        #[serde(default)]
        structure: CrossStructure,
        /// Widths of the hidden layers of the deep MLP, in order; none leaves the cross layers alone.
        #[serde(default = "hidden")]
        #[schemars(length(max = 64), inner(range(min = 1, max = 1_048_576)))]
        hidden: Vec<i64>,
        /// Share of the hidden units of the deep MLP that a training step drops.
        #[serde(default)]
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        dropout: f64,
    },
    /// DeepFM, Guo et al. 2017: a factorisation machine and a deep MLP over the same vectors, their logits added. All
    /// tables share one `dim` of at least 2: the first value of a row is the id's weight in the machine's first-order
    /// term, the others are its factors.
    DeepFm {
        /// Widths of the hidden layers of the deep MLP, in order; the output layer is appended.
        #[serde(default = "hidden")]
        #[schemars(length(max = 64), inner(range(min = 1, max = 1_048_576)))]
        hidden: Vec<i64>,
        /// Share of the hidden units of the deep MLP that a training step drops.
        #[serde(default)]
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        dropout: f64,
    },
    /// Wide & Deep, Cheng et al. 2016: a linear model and a deep MLP, their logits added. The first value of a row is the
    /// id's weight in the linear model. The others are its vector in the MLP, so a table of `dim = 1` is part of the linear
    /// model only.
    #[serde(rename = "wide_deep")]
    WideDeep {
        /// Widths of the hidden layers of the deep MLP, in order; the output layer is appended.
        #[serde(default = "hidden")]
        #[schemars(length(max = 64), inner(range(min = 1, max = 1_048_576)))]
        hidden: Vec<i64>,
        /// Share of the hidden units of the deep MLP that a training step drops.
        #[serde(default)]
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        dropout: f64,
    },
    /// Wukong, Zhang et al. 2024: a stack of layers, each with a factorisation machine block (FMB) over all vectors and a
    /// linear compress block (LCB). It grows by `layers`, `fmb` and `lcb`. All tables share one `dim`.
    Wukong {
        /// Layers of the stack; layer l holds products of up to 2^l features.
        #[serde(default = "count::<3>")]
        #[schemars(range(min = 1, max = 64))]
        layers: usize,
        /// Vectors that the factorisation machine block of a layer gives.
        #[serde(default = "count::<8>")]
        #[schemars(range(min = 1, max = 4096))]
        fmb: usize,
        /// Vectors that the linear compress block of a layer gives.
        #[serde(default = "count::<8>")]
        #[schemars(range(min = 1, max = 4096))]
        lcb: usize,
        /// Columns that are kept of the vectors' dot products: X·Xᵀ·Y with Y of n × rank.
        #[serde(default = "count::<8>")]
        #[schemars(range(min = 1, max = 4096))]
        rank: usize,
        /// Widths of the hidden layers of the MLP in a factorisation machine block, in order; its output layer is appended.
        #[serde(default = "one_layer::<256>")]
        #[schemars(length(max = 64), inner(range(min = 1, max = 1_048_576)))]
        fmb_hidden: Vec<i64>,
        /// Widths of the hidden layers of the bottom MLP, which makes one vector of the numeric features, in order; a last layer
        /// of the tables' `dim` is appended.
        #[serde(default = "bottom")]
        #[schemars(length(max = 64), inner(range(min = 1, max = 1_048_576)))]
        bottom: Vec<i64>,
        /// Widths of the hidden layers of the top MLP, in order; the output layer is appended.
        #[serde(default = "hidden")]
        #[schemars(length(max = 64), inner(range(min = 1, max = 1_048_576)))]
        top: Vec<i64>,
        /// Share of the hidden units of the top MLP that a training step drops.
        #[serde(default)]
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        dropout: f64,
    },
    /// FinalMLP, Mao et al. 2023: two MLPs over all numeric features and vectors side by side, and a bilinear product of their outputs.
    FinalMlp {
        /// Widths of the layers of the first stream, in order.
        #[serde(default = "hidden")]
        #[schemars(length(min = 1, max = 64), inner(range(min = 1, max = 1_048_576)))]
        first: Vec<i64>,
        /// Widths of the layers of the second stream, in order.
        #[serde(default = "hidden")]
        #[schemars(length(min = 1, max = 64), inner(range(min = 1, max = 1_048_576)))]
        second: Vec<i64>,
        /// Heads of the bilinear product: parts of the streams' outputs that are multiplied with each other. A divisor of the last width
        /// of both streams; more heads have fewer weights.
        #[serde(default = "count::<1>")]
        #[schemars(range(min = 1, max = 4096))]
        heads: usize,
        /// What scales the input of each stream. Default: nothing does; `{}` has learned factors.
        gate: Option<StreamGates>,
        /// Share of the hidden units of both streams that a training step drops.
        #[serde(default)]
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        dropout: f64,
    },
    /// DIN, Zhou et al. 2018: each value of a sequence is weighed by an attention unit that compares it with a target, and the weighed
    /// sum is a vector beside the others. Needs a feature with `sequence`.
    Din {
        /// Sequences and their targets: `[{ sequence = "history", target = "movie_id" }]`. A sequence and its target read the same
        /// table. Default: each sequence with the one other feature that reads its table.
        #[serde(default)]
        #[schemars(extend("default" = null))]
        attention: Vec<AttentionPair>,
        /// Widths of the hidden layers of the attention unit, in order; an output layer is appended, which gives the weight.
        #[serde(default = "attention_hidden")]
        #[schemars(length(max = 64), inner(range(min = 1, max = 1_048_576)))]
        attention_hidden: Vec<i64>,
        /// The function between the layers of the attention unit.
        #[serde(default)]
        activation: AttentionActivation,
        /// Whether the weights of a sequence are made to add up to 1 by a softmax. The paper keeps their sum: it says how strong the
        /// interest is.
        #[serde(default)]
        softmax: bool,
        /// Widths of the hidden layers of the MLP over numeric features, vectors and weighed sums, in order; the output layer is
        /// appended.
        #[serde(default = "hidden")]
        #[schemars(length(max = 64), inner(range(min = 1, max = 1_048_576)))]
        hidden: Vec<i64>,
        /// Share of the hidden units of that MLP that a training step drops.
        #[serde(default)]
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        dropout: f64,
    },
    /// BST, Chen et al. 2019: a transformer over each sequence and its target, whose outputs are read beside the vectors. Needs a feature
    /// with `sequence`.
    Bst {
        /// Sequences and their targets: `[{ sequence = "history", target = "movie_id" }]`. A sequence and its target read the same
        /// table. Default: each sequence with the one other feature that reads its table.
        #[serde(default)]
        #[schemars(extend("default" = null))]
        attention: Vec<AttentionPair>,
        /// Blocks of self-attention and a feed-forward network.
        #[serde(default = "count::<1>")]
        #[schemars(range(min = 1, max = 64))]
        layers: usize,
        /// Heads of the self-attention; a divisor of the table's `dim`.
        #[serde(default = "count::<1>")]
        #[schemars(range(min = 1, max = 64))]
        heads: usize,
        /// Width of the hidden layer of the feed-forward network of each position.
        #[serde(default = "count::<64>")]
        #[schemars(range(min = 1, max = 1_048_576))]
        ffn: usize,
        /// Whether a position attends only to itself and earlier ones, as in SASRec (Kang and McAuley 2018). The target comes last.
        #[serde(default)]
        causal: bool,
        /// Widths of the hidden layers of the MLP over numeric features, vectors and the outputs of the transformers, in order; the
        /// output layer is appended.
        #[serde(default = "hidden")]
        #[schemars(length(max = 64), inner(range(min = 1, max = 1_048_576)))]
        hidden: Vec<i64>,
        /// Share of the hidden units of that MLP that a training step drops.
        #[serde(default)]
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        dropout: f64,
    },
    /// A tower of each label over one MLP that all share (Caruana 1997). Without `bottom` every tower reads the features
    /// themselves; with a label that is `given` another one, that is ESMM (Ma et al. 2018).
    #[serde(rename = "shared_bottom")]
    SharedBottom {
        /// Widths of the hidden layers that all labels share, in order; none leaves the towers alone.
        #[serde(default = "hidden")]
        #[schemars(length(max = 64), inner(range(min = 1, max = 1_048_576)))]
        bottom: Vec<i64>,
        /// Widths of the hidden layers of each label's tower, in order; the output layer is appended.
        #[serde(default = "one_layer::<64>")]
        #[schemars(length(max = 64), inner(range(min = 1, max = 1_048_576)))]
        tower: Vec<i64>,
        /// Share of hidden units that a training step drops.
        #[serde(default)]
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        dropout: f64,
    },
    /// MMoE, Ma et al. 2018: experts that all labels share, a gate of each label that mixes them, and its tower.
    Mmoe {
        /// Experts, each an MLP over all features.
        #[serde(default = "count::<4>")]
        #[schemars(range(min = 1, max = 256))]
        experts: usize,
        /// The layers of experts and towers.
        #[serde(flatten)]
        layers: ExpertLayers,
    },
    /// PLE, Tang et al. 2020: experts of each label besides those that all share, in levels, with gates, and a tower of each label.
    Ple {
        /// Levels of experts; one is the paper's CGC.
        #[serde(default = "count::<1>")]
        #[schemars(range(min = 1, max = 16))]
        levels: usize,
        /// Experts of a level that all labels share.
        #[serde(default = "count::<2>")]
        #[schemars(range(min = 1, max = 256))]
        shared_experts: usize,
        /// Experts of a level that each label has of its own.
        #[serde(default = "count::<2>")]
        #[schemars(range(min = 1, max = 256))]
        task_experts: usize,
        /// The layers of experts and towers.
        #[serde(flatten)]
        layers: ExpertLayers,
    },
    /// A TorchScript module of your own: called with the numeric values `[batch, numeric]` and the feature vectors
    /// `[batch, ΣD]`, it gives the logits, `[batch]` or `[batch, 1]`; with
    /// several labels or classes their outputs in order, `[batch, outputs]`.
    #[serde(rename = "torchscript")]
    TorchScript {
        /// The file that `torch.jit.save` wrote. A relative path starts at the job file's folder; one given by `--set`
        /// or the environment starts at the current directory.
        #[schemars(length(min = 1))]
        file: PathBuf,
        /// SHA-256 of the file, 64 hexadecimal digits, as `sha256sum` prints it.
        #[schemars(length(min = 1))]
        sha256: String,
        /// Must be true: loading a module can run code of its author.
        #[serde(default)]
        trust: bool,
    },
}

/// The layers of a network of experts, with a tower of each label.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExpertLayers {
    /// Widths of the layers of an expert, in order.
    #[serde(default = "one_layer::<128>")]
    #[schemars(length(min = 1, max = 64), inner(range(min = 1, max = 1_048_576)))]
    pub hidden: Vec<i64>,
    /// Widths of the hidden layers of each label's tower, in order; the output layer is appended.
    #[serde(default = "one_layer::<64>")]
    #[schemars(length(max = 64), inner(range(min = 1, max = 1_048_576)))]
    pub tower: Vec<i64>,
    /// Share of hidden units that a training step drops.
    #[serde(default)]
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
    pub dropout: f64,
}

/// What scales the input of each stream of a FinalMLP (Mao et al. 2023, section 3.2): a factor of 0 to 2 for each value, so that the
/// streams learn from different features.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamGates {
    /// Widths of the hidden layers of a gate that reads features, in order; an output layer is appended.
    #[serde(default = "gate_hidden")]
    #[schemars(length(max = 64), inner(range(min = 1, max = 65536)))]
    pub hidden: Vec<i64>,
    /// Names of the features that the gate of the first stream reads, such as those of the user. Default: none, the factors are learned
    /// and the same for all samples.
    #[serde(default)]
    pub first: Vec<String>,
    /// Names of the features that the gate of the second stream reads, such as those of the item. Default: none, as for `first`.
    #[serde(default)]
    pub second: Vec<String>,
}

fn gate_hidden() -> Vec<i64> {
    vec![64]
}

impl Default for Model {
    fn default() -> Self {
        Self::Dlrm { bottom: bottom(), top: hidden(), dropout: 0.0 }
    }
}

fn bottom() -> Vec<i64> {
    vec![256, 64]
}

fn hidden() -> Vec<i64> {
    vec![256, 128]
}

fn attention_hidden() -> Vec<i64> {
    vec![80, 40]
}

fn one_layer<const WIDTH: i64>() -> Vec<i64> {
    vec![WIDTH]
}

fn count<const N: usize>() -> usize {
    N
}
