//! The settings of a job: one type per concept, with the key, range, default and documentation of each setting.
//!
//! Only [`Job::load`] and [`Job::parse`] make a whole [`Job`], after all checks. Settings of rows that a table needs
//! unchanged are the table's own types, such as [`EvictionTarget`].

/// Keys with their defaults: a key that is not given has its own.
macro_rules! section {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$about:meta])* pub $key:ident: $type:ty = $default:expr,)+ }) => {
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        $(#[$meta])*
        pub struct $name {
            $($(#[$about])* pub $key: $type,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)+ }
            }
        }
    };
}

mod categorical;
mod cluster;
mod data;
mod dense;
mod dense_layers;
mod encoding;
mod features;
mod model;
mod network;
mod numbers;
mod numeric;
mod parametrization;
mod run;
mod schedule;
mod statistics;
mod table;
mod targets;
mod train;

pub use categorical::{
    AttentionPair, Categorical, ColumnReading, DatePart, IdRange, IdSource, KeptEnd, PadSide, PoolAt, Pooling,
    Sequence, ValueBuckets, Values,
};
pub use cluster::{ClusterSettings, CollectiveKind, DurabilityLevel, WireFormat};
pub use data::{
    ColumnarFormat, DataOrder, DataSettings, DecimalMark, DelimitedFormat, Format, HeldOutRows, NewestRows, STDIN,
    TimeBound, WrittenForm, WrittenKind,
};
pub use dense::{DENSE_TABLE, ServerTable, is_dense_table};
pub use dense_layers::{DenseTiles, StreamedLayer, StreamedTensor, TiledTensor};
pub use encoding::{CategoryEncoding, EncodeBy, EncodingTable, Vocabulary};
pub use features::{ColumnPart, Features};
pub use model::{ExpertLayers, Model, StreamGates};
pub(crate) use numbers::{shorten, size, word};
pub use numeric::{ColumnMoments, ColumnRange, Numeric, NumericEmbedding, Scaling};
pub use parametrization::{BASE_WIDTH, DenseSegment, LADDER, ModelSize, Parametrization};
pub use run::{CalibrationKind, CheckpointSettings, EarlyStop, EvalMetric, EvalSettings, OutputSettings, PredictRows};
pub(crate) use schedule::falls_at_once;
pub use schedule::{EpochCount, RateSchedule, StepCount};
pub use statistics::{FeatureStatistic, MeasuredValue};
pub(crate) use table::TableOverrides;
pub use table::{Table, TableSettings};
pub use targets::{LabelKind, LossName, MissingLabel, RegressionLoss, Target, TargetKind};
pub use train::{DenseUpdates, Device, Mode, Precision, StartChanged, StartSteps, TrainSettings, WeightStore};
pub use zagros_network::layout::{DenseLayout, DenseTensor, FirstValues, LayerDim, TensorRole};
pub use zagros_network::settings::{AttentionActivation, CrossStructure, MlpActivation, MlpNorm, MlpSettings};
pub use zagros_table::optimizer::dense::DenseOptimizer;
pub use zagros_table::{
    AdmissionPolicy, EvictionOrder, EvictionPolicy, EvictionTarget, FrequencyCounter, Initializer,
    LearningRateSchedule, NonFinitePolicy, Optimizer, Ttl, WeightType,
};

#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Name of the run, used in messages and metrics.
    pub name: String,
    pub data: DataSettings,
    pub features: Features,
    /// The embedding tables, in the order of their ids.
    pub tables: Vec<Table>,
    pub model: Model,
    /// How first values and learning rates of the dense network follow its width.
    pub parametrization: Parametrization,
    /// What follows the linear layers of its MLPs.
    pub mlp: MlpSettings,
    pub dense_optimizer: DenseOptimizer,
    pub train: TrainSettings,
    /// How held-out rows are measured.
    pub eval: EvalSettings,
    /// What a run saves while it trains.
    pub checkpoint: CheckpointSettings,
    /// Who takes part.
    pub cluster: ClusterSettings,
    /// What is written.
    pub output: OutputSettings,
}
