//! The job file as it is written: one struct per section, every key with its unit, default and range.
//!
//! The schema derived from these structs is the only source of three things: the checks of
//! [`crate::check`], the reference page `docs/job-file.md` and the JSON schema for editors. A default
//! stands in one place, here; a key whose default depends on others is an `Option` and says "Default:" in its words.

mod checkpoint;
mod cluster;
mod data;
mod embedding;
mod eval;
mod features;
mod model;
mod rows;
mod train;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use checkpoint::Checkpoint;
pub(crate) use cluster::{Cluster, Collective, Wire};
pub(crate) use data::{Data, Format, Paths};
pub(crate) use embedding::{Embedding, Init, Table, TableOptimizer};
pub(crate) use eval::Eval;
pub(crate) use features::{
    Categorical, CategoricalTable, Features, Label, LabelTable, Numeric, NumericTable, PoolAt, Pooling, Standardise,
};
pub(crate) use model::{DenseOptimizer, Hidden, Model, Preset, Structure};
pub(crate) use rows::{Admission, Counter, Element, Evict, NonFinite, SKETCH, Schedule, Victims};
pub(crate) use train::{Device, EarlyStop, Metric, Mode, NonFiniteStep, Output, Precision, Train};

/// A training job of Zagros: which samples, which features, which model, and who trains it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Job {
    /// Name of the run, used in messages, metrics and the names of run folders: letters, digits, `-`, `_` and `.`,
    /// at most 100. Default: the job file's name without `.toml`.
    pub(crate) name: Option<String>,
    /// Where samples come from.
    pub(crate) data: Data,
    /// What a sample is made of. With `data.format = "criteo"` every key has a default; otherwise `label` and at
    /// least one categorical feature are needed.
    #[serde(default)]
    pub(crate) features: Features,
    /// What all embedding tables have in common unless `[tables.<name>]` says otherwise.
    #[serde(default)]
    pub(crate) embedding: Embedding,
    /// Settings of single embedding tables, by name. Each categorical feature has a table named like its column,
    /// or the one that its `table` key names: features that name the same table share its rows.
    #[serde(default)]
    pub(crate) tables: BTreeMap<String, Table>,
    /// The dense network.
    #[serde(default)]
    pub(crate) model: Model,
    /// Optimiser of the dense network.
    #[serde(default)]
    pub(crate) optimizer: DenseOptimizer,
    /// How training runs.
    #[serde(default)]
    pub(crate) train: Train,
    /// How held-out rows are measured.
    #[serde(default)]
    pub(crate) eval: Eval,
    /// What a run leaves behind while it trains, to go on from when it was interrupted.
    #[serde(default)]
    pub(crate) checkpoint: Checkpoint,
    /// Who takes part, and where they listen.
    #[serde(default)]
    pub(crate) cluster: Cluster,
    /// What is written.
    #[serde(default)]
    pub(crate) output: Output,
}
