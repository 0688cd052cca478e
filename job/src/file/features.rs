//! `[features]` as it is written: a column is its name, or a table; a label also a list of both.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Column;
use crate::settings::{
    Categorical, ColumnReading, DatePart, Features, IdRange, IdSource, LabelKind, LossName, MissingLabel, Numeric,
    NumericEmbedding, Pooling, RegressionLoss, Sequence, Table, Target, TargetKind, ValueBuckets, Values, Vocabulary,
};

/// What a sample is made of.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Features")]
pub(crate) struct FeaturesFile {
    /// What the model learns to predict: the name of a column, a table, or a list of both. The first one chooses the state that is
    /// kept, and is what the progress of training shows. Default: `"label"` for Criteo, otherwise needed.
    pub(crate) label: Option<LabelForms>,
    /// Column of sample weights, numbers from 0: a sample of weight 2 counts in training as two of weight 1. Measures count every
    /// sample once. Default: none, each sample counts once.
    pub(crate) weight: Option<String>,
    /// Numeric features, in order: each the name of a column, or a table. Default: `I1` to `I13` with `log = true` for Criteo,
    /// otherwise none.
    pub(crate) numeric: Option<Vec<Column<Numeric>>>,
    /// Makes each single number a learned vector, which the network reads in its place, `{ frequencies, sigma, dim }`, or `{}` for the defaults.
    /// Vectors (`width`) and missing indicators stay as they are. Default: none, the network reads the numbers.
    pub(crate) numeric_embedding: Option<NumericEmbedding>,
    /// Categorical features, in order: each the name of a column, or a table. Default: `C1` to `C26` for Criteo, otherwise none.
    pub(crate) categorical: Option<Vec<Column<CategoricalFile>>>,
}

/// A categorical feature in full.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Categorical")]
pub(crate) struct CategoricalFile {
    /// Name of the column. Default: none; needed unless the feature is a `cross`.
    pub(crate) column: Option<String>,
    /// Name of the feature. No two categorical features have one name, so a column that is in several features needs it. Default: the
    /// column's name; of a cross, the names joined by `_x_`.
    pub(crate) name: Option<String>,
    /// Embedding table that holds the rows of its values: one of `[tables]`, or another feature's name. Default: a table named like
    /// the feature.
    pub(crate) table: Option<String>,
    /// Values per row of the table: short for `dim` in `[tables.<name>]`. Default: `embedding.dim`.
    #[schemars(range(min = 1, max = 4096))]
    pub(crate) dim: Option<usize>,
    /// Makes a column of numbers categorical: the category of a value is the number of the range that it is in. A list gives the edges
    /// between the ranges, ascending; a range includes its lower edge. A number N makes N ranges between the quantiles of the training
    /// rows, measured before training. Default: none, the text is the category.
    pub(crate) buckets: Option<ValueBuckets>,
    /// Makes a part of a column of dates or times the category. Default: none, the text is the category.
    pub(crate) date: Option<DatePart>,
    /// The combination of the categories of two or more features of one value, or of the texts of columns, instead of a `column`: a feature's
    /// `buckets` and `date` count. Default: none.
    #[schemars(length(min = 2))]
    pub(crate) cross: Option<Vec<String>>,
    /// Text in place of a missing value. Default: none, a missing value is a category of its own.
    #[schemars(length(min = 1))]
    pub(crate) default: Option<String>,
    /// Number of different ids: that of a category is its hash modulo this, so that categories share rows, and the table has at most so many.
    /// Default: none, each category has a row of its own.
    #[schemars(range(min = 1, max = 9_007_199_254_740_992_u64))]
    pub(crate) hash_size: Option<u64>,
    /// Gives a row of its own only to categories that are frequent in the training rows, which are measured before training. All others share one
    /// row. Default: none.
    pub(crate) vocabulary: Option<Vocabulary>,
    /// Text between the values of a cell, for a column that holds any number of them. A column of lists (Parquet, Arrow, JSON) needs none, `pooling`
    /// is enough. Default: none, a cell is one value.
    pub(crate) separator: Option<String>,
    /// How the rows of several values become one vector. Default: `sum`; needs `separator`, or a
    /// column of lists.
    pub(crate) pooling: Option<Pooling>,
    /// Name of a second column, with a number for each value of the cell: the value's row counts times its weight. It has the same
    /// separator, or is a column of lists as well. A cell of another number of weights than values is malformed, and so is a value without
    /// a weight; a missing value is skipped with its weight. With `pooling = "mean"` weights are from 0. Default: none, each value counts
    /// once; needs `separator`, or a column of lists.
    pub(crate) weights: Option<String>,
    /// Keeps the values of a cell in order, for the networks that read sequences (`din`, `bst`). Default: none, values are pooled; needs
    /// `separator`, or a column of lists. Excludes `pooling`.
    pub(crate) sequence: Option<Sequence>,
}

impl CategoricalFile {
    /// The name of the feature; empty if neither a column nor a cross is given.
    pub(crate) fn feature_name(&self) -> String {
        let cross = || self.cross.as_ref().map(|names| names.join("_x_"));
        self.name.clone().or_else(|| self.column.clone()).or_else(cross).unwrap_or_default()
    }
}

impl From<String> for CategoricalFile {
    fn from(column: String) -> Self {
        Self { column: Some(column), ..Self::default() }
    }
}

impl FeaturesFile {
    pub(crate) fn from_features(features: &Features, tables: &[Table]) -> Self {
        let categorical = |feature: &Categorical| categorical(feature, &tables[feature.table].name);
        Self {
            label: Some(LabelForms::from_targets(&features.targets)),
            weight: features.weight.clone(),
            numeric: Some(features.numeric.iter().cloned().map(Column::Full).collect()),
            numeric_embedding: features.numeric_embedding,
            categorical: Some(features.categorical.iter().map(categorical).collect()),
        }
    }
}

fn categorical(feature: &Categorical, table: &str) -> Column<CategoricalFile> {
    let plain = CategoricalFile::default();
    let file = match feature.source.clone() {
        IdSource::Cross(names) => CategoricalFile { cross: Some(names), ..plain },
        IdSource::Column { column, reading } => {
            let plain = CategoricalFile { column: Some(column), ..plain };
            match reading {
                ColumnReading::Text => plain,
                ColumnReading::Buckets(buckets) => CategoricalFile { buckets: Some(buckets), ..plain },
                ColumnReading::Date(part) => CategoricalFile { date: Some(part), ..plain },
            }
        }
    };
    let name = Some(&feature.name).filter(|name| **name != file.feature_name()).cloned();
    let (hash_size, vocabulary) = match feature.ids.clone() {
        IdRange::All => (None, None),
        IdRange::Hashed(size) => (Some(size.get()), None),
        IdRange::Vocabulary(vocabulary) => (None, Some(vocabulary)),
    };
    let separator = feature.values.separator().filter(|separator| !separator.is_empty()).map(str::to_owned);
    let (pooling, sequence) = match feature.values {
        Values::One => (None, None),
        Values::Many { pooling, .. } => (Some(pooling), None),
        Values::Sequence { sequence, .. } => (None, Some(sequence)),
    };
    let weights = feature.values.weight_column().map(str::to_owned);
    let table = (table != feature.name).then(|| table.to_owned());
    let default = feature.default.clone();
    let file =
        CategoricalFile { name, table, default, hash_size, vocabulary, separator, pooling, weights, sequence, ..file };
    match file.column.clone() {
        Some(column) if *feature == Categorical::of_column(column.clone(), feature.table) && file.table.is_none() => {
            Column::Name(column)
        }
        _ => Column::Full(file),
    }
}

/// What the model learns.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Labels")]
pub(crate) enum LabelForms {
    /// Name of the column, whose values are `1` and `0`.
    Name(String),
    /// The column in full.
    One(Box<LabelFile>),
    /// Several columns, the first of which chooses the state that is kept.
    Many(#[schemars(length(min = 1, max = 64))] Vec<Column<LabelFile>>),
}

/// A label column in full.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Label")]
pub(crate) struct LabelFile {
    /// Name of the column.
    pub(crate) column: String,
    /// Its name in measures and predictions. Default: the column's.
    pub(crate) name: Option<String>,
    /// What its values are.
    #[serde(default)]
    pub(crate) kind: LabelKind,
    /// Texts that mean a positive sample, of kind `click`. Default: `["1"]`.
    #[schemars(length(min = 1))]
    pub(crate) positive: Option<Vec<String>>,
    /// Texts that mean a negative sample, of kind `click`. A text in neither list is a malformed row. Default: `["0"]`.
    #[schemars(length(min = 1))]
    pub(crate) negative: Option<Vec<String>>,
    /// Texts of the classes, of kind `classes`, which needs two or more. Another text is a malformed row. Default: none.
    #[schemars(length(min = 2, max = 4096))]
    pub(crate) classes: Option<Vec<String>>,
    /// Loss of a sample, of kind `regression`. Default: `mse`.
    pub(crate) loss: Option<LossName>,
    /// Difference from which the loss `huber` is linear. Default: 1.
    #[schemars(range(max = 1e30), extend("exclusiveMinimum" = 0.0))]
    pub(crate) delta: Option<f64>,
    /// Factor of its loss in the loss of a sample, which is the sum over the labels.
    #[serde(default = "one")]
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub(crate) weight: f64,
    /// What becomes of a row whose label is missing: empty, or one of `data.missing` that is no text of this label.
    #[serde(default)]
    pub(crate) missing: MissingLabel,
    /// Name of an earlier label of kind `click` without which this one never happens, as a purchase never without a click: the
    /// network then predicts P(given) · P(this | given), learned from all rows (ESMM, Ma et al. 2018). Default: none.
    pub(crate) given: Option<String>,
}

/// A column of `1` and `0`.
impl From<String> for LabelFile {
    fn from(column: String) -> Self {
        Self { column, weight: one(), ..Self::default() }
    }
}

impl LabelForms {
    pub(crate) fn from_targets(targets: &[Target]) -> Self {
        let mut labels: Vec<LabelFile> = targets.iter().map(|target| label(target, targets)).collect();
        match labels.len() {
            1 => Self::One(Box::new(labels.remove(0))),
            _ => Self::Many(labels.into_iter().map(Column::Full).collect()),
        }
    }
}

fn label(target: &Target, targets: &[Target]) -> LabelFile {
    let Target { name, column, kind, weight, missing } = target.clone();
    let name = (name != column).then_some(name);
    let plain = LabelFile { name, weight, missing, ..LabelFile::from(column) };
    match kind {
        TargetKind::Click { positive, negative, given } => {
            let given = given.map(|index| targets[index].name.clone());
            LabelFile { positive: Some(positive), negative: Some(negative), given, ..plain }
        }
        TargetKind::Regression { loss } => {
            let (loss, delta) = match loss {
                RegressionLoss::Mse => (LossName::Mse, None),
                RegressionLoss::Huber { delta } => (LossName::Huber, Some(delta)),
                RegressionLoss::Poisson => (LossName::Poisson, None),
            };
            LabelFile { kind: LabelKind::Regression, loss: Some(loss), delta, ..plain }
        }
        TargetKind::Classes { classes } => LabelFile { kind: LabelKind::Classes, classes: Some(classes), ..plain },
    }
}

fn one() -> f64 {
    1.0
}
