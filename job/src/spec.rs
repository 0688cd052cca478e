//! The validated job: what every role works from. Made by the loader only; the resolved form is
//! serialised into the run folder.

mod cluster;
mod dense;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

pub use cluster::{Cluster, Collective, Wire};
pub use dense::DENSE_TABLE;
pub use table::*;

/// A whole job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Job {
    /// Name of the run, used in messages and metrics.
    pub name: String,
    /// Where samples come from.
    pub data: Data,
    /// What a sample is made of.
    pub features: Features,
    /// The embedding tables, in the order of their ids.
    pub tables: Vec<Table>,
    /// The dense network.
    pub model: Model,
    /// Optimiser of the dense network.
    pub dense_optimizer: DenseOptimizer,
    /// How training runs.
    pub train: Train,
    /// How held-out rows are measured.
    pub eval: Eval,
    /// What is left behind to go on from.
    pub checkpoint: Checkpoint,
    /// Who takes part.
    pub cluster: Cluster,
    /// What is written.
    pub output: Output,
}

/// Where samples come from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Data {
    /// Layout of a line.
    pub format: Format,
    /// Training files, in reading order. Gzip is recognised by its magic bytes.
    pub train: Vec<PathBuf>,
    /// Held-out part.
    pub test: TestPart,
    /// Held-out part that is scored while training.
    pub validation: ValidationPart,
    /// How many malformed rows are skipped (and counted) before the run stops.
    pub max_bad_rows: u64,
    /// Longest line accepted, bytes.
    pub max_line_bytes: usize,
    /// Parser threads.
    pub threads: usize,
    /// Rows in the shuffle window; 0 keeps file order.
    pub shuffle_rows: usize,
}

impl Data {
    /// Whether there are rows that early stopping and the choice of the best state go by.
    #[must_use]
    pub fn has_validation(&self) -> bool {
        self.validation != ValidationPart::None
    }
}

/// Where the held-out samples come from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum TestPart {
    /// Files of their own.
    Files(Vec<PathBuf>),
    /// This share (0..1) of the training files' rows, chosen by a hash of the line.
    Fraction(f64),
    /// None: nothing is evaluated.
    None,
}

/// Where the samples come from that early stopping and the choice of the best state go by.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum ValidationPart {
    /// Files of their own.
    Files(Vec<PathBuf>),
    /// This share (0..1) of the training files' rows, chosen by a hash of the line, none of them in the test part.
    Share(f64),
    /// None: the test part is scored while training, where there is one.
    None,
}

/// How held-out rows are measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Eval {
    /// Column whose values make the groups of GAUC.
    pub group_by: Option<String>,
    /// Most samples that are kept by group.
    pub group_samples: usize,
}

/// When training ends before its last epoch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EarlyStop {
    /// Measure of the validation part that must get better.
    pub metric: Metric,
    /// Evaluations in a row without a better one after which training ends.
    pub patience: u32,
    /// By how much a measure must be better to count.
    pub min_delta: f64,
}

/// Measure of a held-out part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// Area under the ROC curve; more is better.
    Auc,
    /// Mean binary cross-entropy; less is better.
    Logloss,
    /// Mean AUC within groups; more is better.
    Gauc,
}

/// Layout of a line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Format {
    /// Criteo's TSV: label, 13 integers, 26 categories, tab-separated, no header.
    Criteo,
    /// Columns by name or position, quoted fields as in RFC 4180.
    Delimited(Delimited),
}

/// A generic CSV or TSV.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Delimited {
    /// Field separator, one ASCII byte.
    pub delimiter: u8,
    /// Whether files start with a line of column names.
    pub header: bool,
    /// Column names, in order; from the header when the job gives none.
    pub columns: Vec<String>,
    /// Lines that start with this are skipped.
    pub comment: Option<String>,
    /// Whether blanks around a field are cut.
    pub trim: bool,
    /// Field texts that mean "missing", besides the empty one.
    pub missing: Vec<String>,
}

/// What a sample is made of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Features {
    /// The column that is learned.
    pub label: Label,
    /// Numeric columns, in order.
    pub numeric: Vec<Numeric>,
    /// Categorical columns, in order.
    pub categorical: Vec<Categorical>,
}

/// The column that is learned.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Label {
    /// Column name.
    pub column: String,
    /// Texts that mean a positive sample.
    pub positive: Vec<String>,
    /// Texts that mean a negative sample; any other text is a bad row.
    pub negative: Vec<String>,
}

/// A numeric column.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Numeric {
    /// Column name.
    pub column: String,
    /// Whether x becomes sign(x)·ln(1 + |x|), before anything else.
    pub log: bool,
    /// Applied after the logarithm.
    pub standardise: Standardise,
    /// Value (after the transforms) that stands for a missing one.
    pub missing: f32,
}

/// `(x − mean) / deviation`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Standardise {
    /// Left as it is.
    No,
    /// Mean and deviation measured by an epoch before training.
    Fit,
    /// Given.
    Given {
        /// Subtracted.
        mean: f64,
        /// Divided by; positive.
        deviation: f64,
    },
}

/// A categorical column.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Categorical {
    /// Column name.
    pub column: String,
    /// Index into [`Job::tables`].
    pub table: usize,
    /// How many values a cell holds.
    pub values: Values,
}

/// How many values a cell of a categorical column holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Values {
    /// Exactly one; a missing value is a category of its own.
    One,
    /// Any number, split at a separator, pooled to one vector; none is the zero vector.
    Many {
        /// Text between two values.
        separator: String,
        /// How rows become one vector.
        pooling: Pooling,
        /// Who adds them up.
        pool_at: PoolAt,
    },
}

/// How the rows of a multi-valued feature become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Pooling {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// Their sum over the square root of how many they are.
    SqrtN,
}

/// Who adds up the rows of a multi-valued feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum PoolAt {
    /// Whoever makes fewer bytes cross the wire.
    Auto,
    /// The embedding servers.
    Server,
    /// The dense worker.
    Worker,
}

/// The dense network.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Model {
    /// Naumov et al. 2019: bottom MLP, dot interactions, top MLP. All tables share one dim.
    Dlrm {
        /// Hidden widths of the bottom MLP; the table dim is appended.
        bottom: Vec<i64>,
        /// Hidden widths of the top MLP; 1 is appended.
        top: Vec<i64>,
        /// Share of hidden units of the top MLP dropped in training.
        dropout: f64,
    },
    /// Feed-forward network over all features side by side.
    Ffnn {
        /// Hidden widths; 1 is appended.
        hidden: Vec<i64>,
        /// Share of hidden units dropped in training.
        dropout: f64,
    },
    /// Wang et al. 2021: cross layers and a deep MLP.
    Dcnv2 {
        /// How many cross layers.
        cross_layers: usize,
        /// Rank of their matrices, below the width of the input; `None` for full.
        rank: Option<usize>,
        /// How cross layers and deep MLP are put together.
        structure: Structure,
        /// Hidden widths of the deep MLP.
        hidden: Vec<i64>,
        /// Share of hidden units of the deep MLP dropped in training.
        dropout: f64,
    },
    /// Guo et al. 2017: factorisation machine and deep MLP. All tables share one dim, at least 2.
    DeepFm {
        /// Hidden widths of the deep MLP; 1 is appended.
        hidden: Vec<i64>,
        /// Share of hidden units of the deep MLP dropped in training.
        dropout: f64,
    },
    /// Cheng et al. 2016: linear model and deep MLP.
    WideDeep {
        /// Hidden widths of the deep MLP; 1 is appended.
        hidden: Vec<i64>,
        /// Share of hidden units of the deep MLP dropped in training.
        dropout: f64,
    },
    /// A TorchScript module of the user's, whom the job says to trust.
    TorchScript {
        /// Where it is, absolute.
        file: PathBuf,
        /// SHA-256 of the file, lower-case hexadecimal.
        sha256: String,
    },
}

/// How cross layers and deep MLP are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Structure {
    /// The deep MLP reads what the cross layers give.
    Stacked,
    /// Both read the input.
    Parallel,
}

/// Optimiser of the dense network.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum DenseOptimizer {
    /// Kingma & Ba 2015.
    Adam {
        /// Learning rate.
        lr: f64,
        /// L2 penalty added to the gradient.
        weight_decay: f64,
    },
    /// Loshchilov & Hutter 2019.
    AdamW {
        /// Learning rate.
        lr: f64,
        /// Decoupled decay.
        weight_decay: f64,
    },
    /// Duchi et al. 2011.
    Adagrad {
        /// Learning rate.
        lr: f64,
        /// Added to the root.
        epsilon: f64,
        /// First value of the accumulator.
        initial_accumulator: f64,
        /// L2 penalty added to the gradient.
        weight_decay: f64,
    },
    /// Plain gradient descent.
    Sgd {
        /// Learning rate.
        lr: f64,
        /// Momentum, 0 for none.
        momentum: f64,
        /// L2 penalty added to the gradient.
        weight_decay: f64,
    },
}

/// How training runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Train {
    /// Samples per step.
    pub batch_size: usize,
    /// Epochs over the training files.
    pub epochs: u32,
    /// Consistency between embeddings and the dense network.
    pub mode: Mode,
    /// τ: batches whose gradients may be unacknowledged when a lookup is made. 0 is sequential.
    pub staleness: usize,
    /// The same over all workers together; `None` for no bound but that of each.
    pub staleness_total: Option<usize>,
    /// Seed of every random choice.
    pub seed: u64,
    /// Torch threads inside a step.
    pub threads: usize,
    /// Numbers in the dense network's matrix products.
    pub precision: Precision,
    /// Where the dense network computes.
    pub device: Device,
    /// Stop after this many steps.
    pub max_steps: Option<u64>,
    /// Besides after each epoch, evaluate every so many steps.
    pub evaluate_every: Option<u64>,
    /// End once the validation part gets no better.
    pub early_stop: Option<EarlyStop>,
    /// How the dense network's updates are bounded and paced.
    pub updates: DenseUpdates,
}

/// Where the dense network computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Device {
    /// On the processor.
    Cpu,
    /// On a CUDA device of the same machine.
    Cuda,
}

/// Numbers in the dense network's matrix products; all else is f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Precision {
    /// 32 bits.
    F32,
    /// 16 bits: f32 without the lower half of its digits.
    Bf16,
    /// 16 bits with a range of their own, from 2⁻²⁴ to 65,504, so that the loss is scaled.
    F16,
}

/// What happens to the dense network's gradients before its optimiser takes them, and at which rate it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DenseUpdates {
    /// Factor on the learning rate by step.
    pub schedule: Schedule,
    /// Largest magnitude of a gradient's value; `None` for no limit, else above 0.
    pub clip_value: Option<f64>,
    /// Largest Euclidean norm of all gradients together, after `clip_value`; `None` for no limit, else above 0.
    pub clip_norm: Option<f64>,
    /// What becomes of a batch whose loss or gradients are not finite.
    pub non_finite: NonFinite,
}

/// Consistency between embeddings and the dense network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Mode {
    /// Embeddings lag by at most `staleness` batches.
    Hybrid,
    /// τ = 0: bit-exact from run to run.
    Sync,
    /// As hybrid, and the dense network lives on the servers too ([`Job::dense_table`]).
    Async,
}

/// What a run leaves behind while it trains, to go on from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checkpoint {
    /// Time between checkpoints.
    pub every: Option<Duration>,
    /// Steps between checkpoints.
    pub every_steps: Option<u64>,
    /// Parent of the runs' checkpoints, a path or `s3://bucket/prefix`; `None` for each run's own folder.
    pub folder: Option<String>,
    /// Newest that are kept; 0 makes none.
    pub keep: usize,
}

/// What is written.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Output {
    /// Parent of run folders.
    pub folder: PathBuf,
    /// Whether the trained model is saved at the end.
    pub save_model: bool,
    /// Parent of the runs' models, a path or `s3://bucket/prefix`; `None` for each run's own folder.
    pub model_folder: Option<String>,
    /// Whether TensorBoard events are written.
    pub tensorboard: bool,
    /// Best states kept while training, besides the last; 0 for no choice among states.
    pub keep_best: u32,
}
