//! `[features]` as it is written: a column is its name, or a table.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::column::Column;
use super::labels::Labels;
use crate::settings::{Categorical, Features, Numeric, PoolAt, Pooling, Sequence, Table, Values};

/// What a sample is made of.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Features")]
pub(crate) struct FeaturesFile {
    /// What the model learns to predict: the name of a column, a table, or a list of both. The first one chooses the state that is
    /// kept, and is what the progress of training shows. Default: `"label"` for Criteo, otherwise needed.
    pub(crate) label: Option<Labels>,
    /// Column of sample weights, numbers from 0: a sample of weight 2 counts in training as two of weight 1. Measures count every
    /// sample once. Default: none, each sample counts once.
    pub(crate) weight: Option<String>,
    /// Numeric columns, in order: each its name, or a table. Default: `I1` to `I13` with `log = true` for Criteo,
    /// otherwise none.
    pub(crate) numeric: Option<Vec<Column<Numeric>>>,
    /// Categorical columns, in order: each its name, or a table. Default: `C1` to `C26` for Criteo, otherwise none.
    pub(crate) categorical: Option<Vec<Column<CategoricalFile>>>,
}

/// A categorical column in full.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Categorical")]
pub(crate) struct CategoricalFile {
    /// Name of the column.
    pub(crate) column: String,
    /// Embedding table that holds the rows of its values: one of `[tables]`, or another feature's column. Default: a table named like
    /// the column.
    pub(crate) table: Option<String>,
    /// Values per row of the table: short for `dim` in `[tables.<name>]`. Default: `embedding.dim`.
    #[schemars(range(min = 1, max = 4096))]
    pub(crate) dim: Option<usize>,
    /// Text between the values of a cell, for a column that holds any number of them. A column of lists (Parquet, JSON) needs none, `pooling`
    /// is enough. Default: none, a cell is one value.
    pub(crate) separator: Option<String>,
    /// How the rows of several values become one vector. Default: `sum`; needs `separator`, or a
    /// column of lists.
    pub(crate) pooling: Option<Pooling>,
    /// Who adds up the rows of a cell. With many rare values a sum is fewer bytes than its rows; with few values that all samples
    /// share it is more. Default: `auto`; needs `separator`.
    pub(crate) pool_at: Option<PoolAt>,
    /// Keeps the values of a cell in order, for the networks that read sequences (`din`, `bst`). Default: none, values are pooled; needs
    /// `separator`, or a column of lists. Excludes `pooling` and `pool_at`.
    pub(crate) sequence: Option<Sequence>,
}

/// A column with one value per cell and its own table.
impl From<String> for CategoricalFile {
    fn from(column: String) -> Self {
        Self { column, table: None, dim: None, separator: None, pooling: None, pool_at: None, sequence: None }
    }
}

impl FeaturesFile {
    /// The keys that stand for `features`.
    pub(crate) fn of(features: &Features, tables: &[Table]) -> Self {
        let categorical = |feature: &Categorical| categorical(feature, &tables[feature.table].name);
        Self {
            label: Some(Labels::of(&features.targets)),
            weight: features.weight.clone(),
            numeric: Some(features.numeric.iter().cloned().map(Column::Full).collect()),
            categorical: Some(features.categorical.iter().map(categorical).collect()),
        }
    }
}

fn categorical(feature: &Categorical, table: &str) -> Column<CategoricalFile> {
    let column = feature.column.clone();
    let plain = CategoricalFile::from(column.clone());
    let table = (table != column).then(|| table.to_owned());
    match feature.values.clone() {
        Values::One if table.is_none() => Column::Name(column),
        Values::One => Column::Full(CategoricalFile { table, ..plain }),
        Values::Many { separator, pooling, pool_at } => {
            let separator = Some(separator).filter(|separator| !separator.is_empty());
            let (pooling, pool_at) = (Some(pooling), Some(pool_at));
            Column::Full(CategoricalFile { table, separator, pooling, pool_at, ..plain })
        }
        Values::Sequence { separator, sequence } => {
            let separator = Some(separator).filter(|separator| !separator.is_empty());
            Column::Full(CategoricalFile { table, separator, sequence: Some(sequence), ..plain })
        }
    }
}
