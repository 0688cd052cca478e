//! `[features]` as it is written: a column is its name, or a table.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Column;
use super::labels::LabelForms;
use crate::settings::{
    Categorical, ColumnReading, DatePart, Features, IdRange, IdSource, Numeric, NumericEmbedding, Pooling, Sequence,
    Table, ValueBuckets, Values, Vocabulary, VocabularyKeys, ids_to_text,
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
    pub(crate) vocabulary: Option<VocabularyKeys>,
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
        IdRange::Vocabulary(Vocabulary { min_count, max_size, ids }) => {
            let ids = ids.as_deref().map(ids_to_text);
            (None, Some(VocabularyKeys { min_count, max_size, ids }))
        }
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
