//! Embedding tables: the shape of their rows, how they learn, which there are and where they stay.

use serde::Serialize;

/// An embedding table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// Unique name.
    pub name: String,
    /// Values per row.
    pub dim: usize,
    /// First value of a row.
    pub init: Init,
    /// How gradients are applied.
    pub optimizer: TableOptimizer,
    /// Limits on gradients and weights.
    pub limits: TableLimits,
    /// What becomes of gradients that are not finite.
    pub non_finite: NonFinite,
    /// How weights are stored.
    pub element: Element,
    /// Factor on the learning rate by step.
    pub schedule: Schedule,
    /// Which ids get a row.
    pub admission: Admission,
    /// Which rows leave memory.
    pub retention: Retention,
}

/// Limits on gradients and weights of a table; `None` for no limit, else above 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TableLimits {
    /// Largest magnitude of a gradient's value.
    pub clip_value: Option<f32>,
    /// Largest Euclidean norm of a row's gradient, after `clip_value`.
    pub clip_norm: Option<f32>,
    /// Largest magnitude of a weight.
    pub weight_bound: Option<f32>,
}

/// First value of a row, a function of (seed, table, id) alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Init {
    /// All zero.
    Zero,
    /// Uniform in `[-bound, bound)`.
    Uniform {
        /// Half width.
        bound: f32,
    },
    /// Normal around zero.
    Normal {
        /// Standard deviation.
        deviation: f32,
    },
    /// Normal around zero, drawn again beyond two deviations.
    TruncatedNormal {
        /// Standard deviation before the cut.
        deviation: f32,
    },
    /// Uniform with the bound √(6 / (rows + dim)).
    Xavier {
        /// Rows that the table is expected to hold.
        rows: f32,
    },
    /// All one value.
    Constant {
        /// The value.
        value: f32,
    },
}

/// How an embedding row learns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum TableOptimizer {
    /// v ← momentum·v + g; w ← w − lr·v
    Sgd {
        /// Learning rate.
        lr: f32,
        /// Share of the velocity kept; 0 keeps none.
        momentum: f32,
        /// L2 penalty added to the gradient.
        l2: f32,
    },
    /// a ← a + g²; w ← w − lr·g / (√a + ε), element-wise (Duchi et al. 2011).
    Adagrad {
        /// Learning rate.
        lr: f32,
        /// Added to the root.
        epsilon: f32,
        /// First value of the accumulator.
        initial_accumulator: f32,
        /// L2 penalty added to the gradient.
        l2: f32,
    },
    /// Adagrad with one accumulator a row: a ← a + mean(g²).
    RowAdagrad {
        /// Learning rate.
        lr: f32,
        /// Added to the root.
        epsilon: f32,
        /// First value of the accumulator.
        initial_accumulator: f32,
        /// L2 penalty added to the gradient.
        l2: f32,
    },
    /// Kingma and Ba 2015, corrected by the row's own count of updates.
    Adam {
        /// Learning rate.
        lr: f32,
        /// Share of the mean kept.
        beta1: f32,
        /// Share of the mean square kept.
        beta2: f32,
        /// Added to the root.
        epsilon: f32,
        /// L2 penalty added to the gradient.
        l2: f32,
    },
    /// Adam with decoupled decay, Loshchilov and Hutter 2019.
    AdamW {
        /// Learning rate.
        lr: f32,
        /// Share of the mean kept.
        beta1: f32,
        /// Share of the mean square kept.
        beta2: f32,
        /// Added to the root.
        epsilon: f32,
        /// Decoupled decay.
        weight_decay: f32,
    },
    /// FTRL-proximal, McMahan et al. 2013.
    Ftrl {
        /// Learning rate.
        lr: f32,
        /// Added to the root.
        beta: f32,
        /// L1 penalty.
        l1: f32,
        /// L2 penalty.
        l2: f32,
    },
}

/// What becomes of a gradient that is infinite or not a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum NonFinite {
    /// Its whole push is refused.
    #[default]
    Refuse,
    /// Its row is skipped and counted.
    Skip,
}

/// How weights are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Element {
    /// Exact.
    #[default]
    F32,
    /// 11 significant bits, small range.
    F16,
    /// 8 significant bits, full range.
    Bf16,
}

/// Factor on the learning rate by step: from 0 up to 1 over `warmup` steps, then as named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub enum Schedule {
    /// Always 1.
    #[default]
    Constant,
    /// In a straight line to `floor`.
    Linear {
        /// Steps of the rise.
        warmup: u64,
        /// Steps of the fall after it.
        decay: u64,
        /// Last factor.
        floor: f32,
    },
    /// Half a cosine to `floor`.
    Cosine {
        /// Steps of the rise.
        warmup: u64,
        /// Steps of the fall after it.
        decay: u64,
        /// Last factor.
        floor: f32,
    },
    /// Times `factor` after each `every` steps.
    Step {
        /// Steps of the rise.
        warmup: u64,
        /// Steps between two falls.
        every: u64,
        /// What remains after a fall.
        factor: f32,
    },
}

/// When an id gets a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub enum Admission {
    /// At its first sighting.
    #[default]
    Always,
    /// At this sighting.
    Count {
        /// Sightings needed.
        sightings: u32,
        /// How they are counted.
        counter: Counter,
    },
    /// If it is of the chosen share of ids.
    Probability {
        /// Share of ids that are chosen.
        share: f32,
    },
}

/// How sightings are counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Counter {
    /// One counter for each id.
    Exact,
    /// In constant memory, now and then too high.
    CountMin {
        /// Share of all sightings that a count may be too high by.
        error: f32,
        /// Probability that it is too high by more.
        failure: f32,
    },
}

/// Which rows leave memory, and where they go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Retention {
    /// Which rows go first when memory is short.
    pub order: Order,
    /// Age since the last use at which a row is forgotten.
    pub ttl: Option<Ttl>,
    /// Rows whose weights have a smaller Euclidean norm leave; 0 for none.
    pub small_norm: f32,
    /// Where rows go.
    pub victims: Victims,
}

/// Which rows go first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Order {
    /// Those used longest ago.
    #[default]
    Lru,
    /// Those used least often.
    Lfu {
        /// Steps after which a use counts half.
        half_life: u32,
    },
}

/// An age, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Ttl {
    /// Steps of training.
    Steps(u32),
    /// Seconds.
    Seconds(u32),
}

/// Where rows go that leave memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Victims {
    /// To the cold tier.
    #[default]
    Cold,
    /// Nowhere.
    Drop,
}
