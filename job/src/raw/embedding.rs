//! `[embedding]` and `[tables.<name>]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rows::{Admission, Element, Evict, NonFinite, Schedule, Victims};

/// What all embedding tables have in common.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Embedding {
    /// Values per row.
    #[schemars(range(min = 1, max = 4096))]
    pub(crate) dim: usize,
    /// First value of a row: a function of `train.seed`, table and id alone.
    pub(crate) init: Init,
    /// How rows learn.
    pub(crate) optimizer: TableOptimizer,
    /// Values of a gradient are cut to this, above and below zero; 0 for no limit.
    #[schemars(range(min = 0.0, max = 1e30))]
    pub(crate) clip_value: f64,
    /// A row's gradient, after `clip_value`, is scaled down to this Euclidean norm; 0 for no limit.
    #[schemars(range(min = 0.0, max = 1e30))]
    pub(crate) clip_norm: f64,
    /// Weights are cut to this, above and below zero, after each update; 0 for 2⁴⁰ (1.1e12), which is the most.
    #[schemars(range(min = 0.0, max = 1e30))]
    pub(crate) weight_bound: f64,
    /// What becomes of a gradient that is infinite, not a number, or unclipped and beyond ±2⁴⁰ (1.1e12), from where on a
    /// row might not stay finite.
    pub(crate) non_finite: NonFinite,
    /// How weights are stored. Arithmetic and the optimiser's state are f32 throughout.
    pub(crate) element: Element,
    /// Factor on the optimiser's learning rate by step. A step is one of training, which all workers make together, also one
    /// that joined late; in mode `async` each worker counts its own batches.
    pub(crate) schedule: Schedule,
    /// Which ids get a row. One without a row is answered with zeros, its gradients are counted and dropped.
    pub(crate) admission: Admission,
    /// Which rows leave memory first once `cluster.memory` is used up.
    pub(crate) evict: Evict,
    /// Steps without a use after which a row is forgotten: it starts again from its first value. 0 for never; excludes
    /// `ttl_seconds`.
    #[schemars(range(max = 4_294_967_295_u32))]
    pub(crate) ttl_steps: u32,
    /// Seconds without a use after which a row is forgotten, counted while its server runs: setting the time of day
    /// ages no row, nor does the time between a save and the run that goes on from it. 0 for never; excludes
    /// `ttl_steps`, and `evict` by frequency, which counts steps.
    #[schemars(range(max = 4_294_967_295_u32))]
    pub(crate) ttl_seconds: u32,
    /// Rows whose weights have a smaller Euclidean norm leave memory, now and then; 0 for none. With `victims = "cold"`
    /// it needs `cluster.memory`.
    #[schemars(range(min = 0.0, max = 1e30))]
    pub(crate) small_norm: f64,
    /// Where rows go that leave memory for want of space or for their small norm.
    pub(crate) victims: Victims,
}

impl Default for Embedding {
    fn default() -> Self {
        let init = Init::Uniform { bound: bound() };
        let optimizer =
            TableOptimizer::Adagrad { lr: adagrad_lr(), epsilon: epsilon(), initial_accumulator: 0.0, l2: 0.0 };
        Self {
            dim: 16,
            init,
            optimizer,
            clip_value: 0.0,
            clip_norm: 0.0,
            weight_bound: 0.0,
            non_finite: NonFinite::Refuse,
            element: Element::F32,
            schedule: Schedule::Constant,
            admission: Admission::Always,
            evict: Evict::Lru,
            ttl_steps: 0,
            ttl_seconds: 0,
            small_norm: 0.0,
            victims: Victims::Cold,
        }
    }
}

/// One embedding table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Table {
    /// Values per row. Default: `embedding.dim`.
    #[schemars(range(min = 1, max = 4096))]
    pub(crate) dim: Option<usize>,
    /// First value of a row. Default: `embedding.init`.
    pub(crate) init: Option<Init>,
    /// How rows learn. Default: `embedding.optimizer`.
    pub(crate) optimizer: Option<TableOptimizer>,
    /// Values of a gradient are cut to this; 0 for no limit. Default: `embedding.clip_value`.
    #[schemars(range(min = 0.0, max = 1e30))]
    pub(crate) clip_value: Option<f64>,
    /// A row's gradient is scaled down to this norm; 0 for no limit. Default: `embedding.clip_norm`.
    #[schemars(range(min = 0.0, max = 1e30))]
    pub(crate) clip_norm: Option<f64>,
    /// Weights are cut to this; 0 for no limit. Default: `embedding.weight_bound`.
    #[schemars(range(min = 0.0, max = 1e30))]
    pub(crate) weight_bound: Option<f64>,
    /// What becomes of a gradient that is not finite. Default: `embedding.non_finite`.
    pub(crate) non_finite: Option<NonFinite>,
    /// How weights are stored. Default: `embedding.element`.
    pub(crate) element: Option<Element>,
    /// Factor on the learning rate by step. Default: `embedding.schedule`.
    pub(crate) schedule: Option<Schedule>,
    /// Which ids get a row. Default: `embedding.admission`.
    pub(crate) admission: Option<Admission>,
    /// Which rows leave memory first. Default: `embedding.evict`.
    pub(crate) evict: Option<Evict>,
    /// Steps without a use after which a row is forgotten; 0 for never. Default: that of `[embedding]`, unless
    /// `ttl_seconds` stands here.
    #[schemars(range(max = 4_294_967_295_u32))]
    pub(crate) ttl_steps: Option<u32>,
    /// Seconds without a use after which a row is forgotten; 0 for never. Default: that of `[embedding]`, unless
    /// `ttl_steps` stands here.
    #[schemars(range(max = 4_294_967_295_u32))]
    pub(crate) ttl_seconds: Option<u32>,
    /// Rows whose weights have a smaller norm leave memory; 0 for none. Default: `embedding.small_norm`.
    #[schemars(range(min = 0.0, max = 1e30))]
    pub(crate) small_norm: Option<f64>,
    /// Where rows go that leave memory. Default: `embedding.victims`.
    pub(crate) victims: Option<Victims>,
}

/// First value of a row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Init {
    /// All zero.
    Zero,
    /// Uniform in `[-bound, bound)`.
    Uniform {
        /// Half width of the range.
        #[serde(default = "bound")]
        #[schemars(range(min = 1e-12, max = 1000.0))]
        bound: f64,
    },
    /// Normal around zero.
    Normal {
        /// Standard deviation.
        #[serde(default = "deviation")]
        #[schemars(range(min = 1e-12, max = 1000.0))]
        deviation: f64,
    },
    /// Normal around zero, drawn again where it falls beyond two deviations.
    TruncatedNormal {
        /// Standard deviation before the cut.
        #[serde(default = "deviation")]
        #[schemars(range(min = 1e-12, max = 1000.0))]
        deviation: f64,
    },
    /// Uniform with the bound √(6 / (rows + dim)) (Glorot and Bengio 2010).
    Xavier {
        /// Rows that the table is expected to hold.
        #[serde(default = "xavier_rows")]
        #[schemars(range(min = 1.0, max = 1e15))]
        rows: f64,
    },
    /// All one value.
    Constant {
        /// Every weight's first value.
        #[schemars(range(min = -1000.0, max = 1000.0))]
        value: f64,
    },
}

/// How embedding rows learn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum TableOptimizer {
    /// Gradient descent: v ← momentum·v + g; w ← w − lr·v. State: none, or with momentum one value per weight.
    Sgd {
        /// Learning rate.
        #[serde(default = "sgd_lr")]
        #[schemars(range(min = 1e-12, max = 1000.0))]
        lr: f64,
        /// Share of the velocity v that an update keeps; 0 keeps no velocity at all.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 0.9999))]
        momentum: f64,
        /// L2 penalty: l2·w is added to the gradient of rows in the batch.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0))]
        l2: f64,
    },
    /// Adagrad (Duchi et al. 2011), element-wise: a ← a + g²; w ← w − lr·g / (√a + epsilon). State: one
    /// value per weight.
    Adagrad {
        /// Learning rate.
        #[serde(default = "adagrad_lr")]
        #[schemars(range(min = 1e-12, max = 1000.0))]
        lr: f64,
        /// Added to the root; keeps the quotient finite.
        #[serde(default = "epsilon")]
        #[schemars(range(min = 1e-30, max = 1.0))]
        epsilon: f64,
        /// First value of the accumulator a; above 0 it softens the first steps of a row.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1000.0))]
        initial_accumulator: f64,
        /// L2 penalty: l2·w is added to the gradient of rows in the batch.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0))]
        l2: f64,
    },
    /// Adagrad with one accumulator a row: a ← a + mean(g²). State: one value per row.
    RowAdagrad {
        /// Learning rate.
        #[serde(default = "adagrad_lr")]
        #[schemars(range(min = 1e-12, max = 1000.0))]
        lr: f64,
        /// Added to the root; keeps the quotient finite.
        #[serde(default = "epsilon")]
        #[schemars(range(min = 1e-30, max = 1.0))]
        epsilon: f64,
        /// First value of the accumulator a; above 0 it softens the first steps of a row.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1000.0))]
        initial_accumulator: f64,
        /// L2 penalty: l2·w is added to the gradient of rows in the batch.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0))]
        l2: f64,
    },
    /// Adam (Kingma and Ba 2015) on the rows of a batch, each corrected by its own count t of updates:
    /// m ← beta1·m + (1−beta1)·g; v ← beta2·v + (1−beta2)·g²; w ← w − lr·m̂ / (√v̂ + epsilon), m̂ = m / (1−beta1ᵗ) and
    /// v̂ = v / (1−beta2ᵗ). State: two values per weight and two per row.
    Adam {
        /// Learning rate.
        #[serde(default = "adam_lr")]
        #[schemars(range(min = 1e-12, max = 1000.0))]
        lr: f64,
        /// Share of the mean m that an update keeps.
        #[serde(default = "beta1")]
        #[schemars(range(min = 0.0, max = 0.9999))]
        beta1: f64,
        /// Share of the mean square v that an update keeps.
        #[serde(default = "beta2")]
        #[schemars(range(min = 0.0, max = 0.999999))]
        beta2: f64,
        /// Added to the root; keeps the quotient finite.
        #[serde(default = "epsilon")]
        #[schemars(range(min = 1e-30, max = 1.0))]
        epsilon: f64,
        /// L2 penalty: l2·w is added to the gradient of rows in the batch.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0))]
        l2: f64,
    },
    /// Adam with decoupled decay (Loshchilov and Hutter 2019) of the rows of a batch: w ← w − lr·weight_decay·w
    /// besides. State: as Adam.
    #[serde(rename = "adamw")]
    AdamW {
        /// Learning rate.
        #[serde(default = "adam_lr")]
        #[schemars(range(min = 1e-12, max = 1000.0))]
        lr: f64,
        /// Share of the mean m that an update keeps.
        #[serde(default = "beta1")]
        #[schemars(range(min = 0.0, max = 0.9999))]
        beta1: f64,
        /// Share of the mean square v that an update keeps.
        #[serde(default = "beta2")]
        #[schemars(range(min = 0.0, max = 0.999999))]
        beta2: f64,
        /// Added to the root; keeps the quotient finite.
        #[serde(default = "epsilon")]
        #[schemars(range(min = 1e-30, max = 1.0))]
        epsilon: f64,
        /// Decoupled decay of rows in the batch.
        #[serde(default = "weight_decay")]
        #[schemars(range(min = 0.0, max = 1.0))]
        weight_decay: f64,
    },
    /// FTRL-proximal (McMahan et al. 2013, algorithm 1). State: two values per weight.
    Ftrl {
        /// Learning rate, α in the paper.
        #[serde(default = "ftrl_lr")]
        #[schemars(range(min = 1e-12, max = 1000.0))]
        lr: f64,
        /// Added to the root of the sum of squares.
        #[serde(default = "ftrl_beta")]
        #[schemars(range(min = 0.0, max = 1000.0))]
        beta: f64,
        /// L1 penalty: weights that would be small are zero.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1000.0))]
        l1: f64,
        /// L2 penalty.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1000.0))]
        l2: f64,
    },
}

fn bound() -> f64 {
    0.01
}

fn deviation() -> f64 {
    0.01
}

fn sgd_lr() -> f64 {
    0.1
}

fn adagrad_lr() -> f64 {
    0.02
}

fn epsilon() -> f64 {
    1e-8
}

fn xavier_rows() -> f64 {
    1e6
}

fn adam_lr() -> f64 {
    0.001
}

fn beta1() -> f64 {
    0.9
}

fn beta2() -> f64 {
    0.999
}

fn weight_decay() -> f64 {
    0.01
}

fn ftrl_lr() -> f64 {
    0.05
}

fn ftrl_beta() -> f64 {
    1.0
}
