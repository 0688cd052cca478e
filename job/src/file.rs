//! The job file as it is written: its sections, and the two whose form differs from the settings they become.
//!
//! The schema of [`JobFile`] is the only source of three things: the checks of [`crate::check`], the reference page
//! `docs/job-file.md` and the JSON schema for editors. A default is written in one place. If the default depends on other
//! keys, the documentation of the key says "Default:" in words, and [`crate::resolve`] fills it in.

mod data;
mod features;

use std::collections::BTreeMap;

use schemars::{JsonSchema, schema_for};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::settings::{
    CheckpointSettings, ClusterSettings, DenseOptimizer, EvalSettings, Job, MlpSettings, Model, OutputSettings,
    Parametrization, TableOverrides, TableSettings, TrainSettings, shorten,
};

pub(crate) use data::{DataFile, DataLayout, DataPaths};
pub(crate) use features::{CategoricalFile, FeaturesFile, LabelFile, LabelForms};

/// A training job of Zagros: which samples, which features, which model, and who trains it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Job")]
pub(crate) struct JobFile {
    /// Name of the run, used in messages, metrics and the names of run folders: letters, digits, `-`, `_` and `.`, at most 100.
    /// Default: the job file's name without `.toml`.
    #[schemars(extend("x-change" = "operational"))]
    pub(crate) name: Option<String>,
    /// Where samples come from.
    pub(crate) data: DataFile,
    /// What a sample is made of. With `data.format = "criteo"` every key has a default. Otherwise `label` and at least one
    /// categorical feature are needed.
    #[serde(default)]
    pub(crate) features: FeaturesFile,
    /// Settings of all embedding tables, unless `[tables.<name>]` has others.
    #[serde(default)]
    pub(crate) embedding: TableSettings,
    /// Settings of single embedding tables, by name. Each categorical feature has a table named like its column, or the table that
    /// its `table` key names: features that name the same table share its rows. The keys are those of `[embedding]`. One that is not given
    /// has its value there.
    #[serde(default)]
    pub(crate) tables: BTreeMap<String, TableOverrides>,
    /// The dense network.
    #[serde(default)]
    pub(crate) model: ModelFile,
    /// What follows the hidden layers of the network's MLPs.
    #[serde(default)]
    pub(crate) mlp: MlpSettings,
    /// Optimiser of the dense network.
    #[serde(default)]
    pub(crate) optimizer: DenseOptimizer,
    /// How training runs.
    #[serde(default)]
    #[schemars(extend("x-change" = "learning"))]
    pub(crate) train: TrainSettings,
    /// How held-out rows are measured.
    #[serde(default)]
    #[schemars(extend("x-change" = "operational"))]
    pub(crate) eval: EvalSettings,
    /// What a run saves while it trains, to resume from after an interruption.
    #[serde(default)]
    #[schemars(extend("x-change" = "operational"))]
    pub(crate) checkpoint: CheckpointSettings,
    /// Who takes part, and where they listen.
    #[serde(default)]
    #[schemars(extend("x-change" = "operational"))]
    pub(crate) cluster: ClusterSettings,
    /// What is written.
    #[serde(default)]
    #[schemars(extend("x-change" = "operational"))]
    pub(crate) output: OutputSettings,
}

impl JobFile {
    /// The file that resolves to `job`: every key is written, and paths are absolute.
    pub(crate) fn from_job(job: &Job) -> Self {
        let embedding = job.tables.first().map(|table| table.settings).unwrap_or_default();
        Self {
            name: Some(job.name.clone()),
            data: DataFile::from_data(&job.data),
            features: FeaturesFile::from_features(&job.features, &job.tables),
            embedding,
            tables: own_settings(job, &embedding),
            model: ModelFile::from_job(job),
            mlp: job.mlp,
            optimizer: job.dense_optimizer,
            train: job.train.clone(),
            eval: job.eval.clone(),
            checkpoint: job.checkpoint.clone(),
            cluster: job.cluster.clone(),
            output: job.output.clone(),
        }
    }
}

/// Tables whose settings differ from those of the first one, and tables that no feature's name names.
fn own_settings(job: &Job, common: &TableSettings) -> BTreeMap<String, TableOverrides> {
    let named_by_feature = |name: &str| {
        let mut features = job.features.categorical.iter();
        features.any(|feature| feature.name == name && job.tables[feature.table].name == name)
    };
    let own = |table: &TableSettings| TableOverrides::difference(common, table);
    let all = job.tables.iter().map(|table| (table.name.clone(), own(&table.settings)));
    all.filter(|(name, own)| !own.is_empty() || !named_by_feature(name)).collect()
}

/// A key has one default: the one that its documentation gives in words, otherwise the one of its type.
pub(crate) fn job_schema() -> Json {
    let mut schema = schema_for!(JobFile).to_value();
    shorten(&mut schema);
    drop_defaults_in_words(&mut schema);
    share_keys(&mut schema);
    schema
}

/// Gives the keys of a table that all of its kinds have to each kind.
fn share_keys(schema: &mut Json) {
    let Json::Object(keys) = schema else { return };
    if keys.contains_key("oneOf")
        && let Some(Json::Object(shared)) = keys.remove("properties")
    {
        let kinds = keys.get_mut("oneOf").and_then(Json::as_array_mut).into_iter().flatten();
        for own in kinds.filter_map(|kind| kind.get_mut("properties")?.as_object_mut()) {
            own.extend(shared.clone());
        }
    }
    keys.values_mut().for_each(share_keys);
}

fn drop_defaults_in_words(schema: &mut Json) {
    match schema {
        Json::Object(keys) => {
            let words = keys.get("description").and_then(Json::as_str);
            if words.is_some_and(|words| words.contains("Default:")) {
                keys.remove("default");
            }
            keys.values_mut().for_each(drop_defaults_in_words);
        }
        Json::Array(items) => items.iter_mut().for_each(drop_defaults_in_words),
        _ => {}
    }
}

/// A column.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Column<T> {
    /// Name of the column. The other keys have their defaults.
    Name(String),
    /// In full.
    Full(T),
}

impl<T: From<String>> Column<T> {
    pub(crate) fn full(self) -> T {
        match self {
            Self::Name(column) => column.into(),
            Self::Full(column) => column,
        }
    }
}

/// The dense network, and the keys that all kinds of networks have.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ModelFile {
    /// Weights of the dense network, instead of its widths: a number with k, m, b or t, like `13m`. The network's recipe gives depth and widths
    /// (docs/how-to/size.md), and the resolved job has these. `--size` sets the key. Not for a TorchScript module. Default: none, the widths
    /// count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub(crate) size: Option<String>,
    /// Whether `embedding.dim` follows `size` too: 8 below 1m, 16 below 10m, 32 below 1b, 64 below 100b, then 128.
    /// Default: `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) size_embeddings: bool,
    /// Width of the network at which learning rate and first weights are what the job says. At another width they follow µP (Yang et al. 2022), so
    /// that one learning rate is right for all widths. The width is that of the first hidden layer of the main MLP. 0 switches µP off. Default:
    /// 128 with `size`, else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1_048_576))]
    pub(crate) mup_base_width: Option<u32>,
    /// The network.
    #[serde(flatten)]
    pub(crate) network: Model,
}

impl ModelFile {
    /// With widths in place of a size.
    pub(crate) fn from_job(job: &Job) -> Self {
        let mup_base_width = match job.parametrization {
            Parametrization::Standard => None,
            Parametrization::Mup { base_width } => Some(base_width),
        };
        Self { size: None, size_embeddings: false, mup_base_width, network: job.model.clone() }
    }
}
