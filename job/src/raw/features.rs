//! `[features]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a sample is made of.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Features {
    /// The column that is learned: its name, or a table. Default: `"label"` for Criteo, otherwise needed.
    pub(crate) label: Option<Label>,
    /// Numeric columns, in order: each its name, or a table. Default: `I1` to `I13` with `log = true` for Criteo,
    /// otherwise none.
    pub(crate) numeric: Option<Vec<Numeric>>,
    /// Categorical columns, in order: each its name, or a table. Default: `C1` to `C26` for Criteo, otherwise none.
    pub(crate) categorical: Option<Vec<Categorical>>,
}

/// The column that is learned.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Label {
    /// Name of a column of `1` and `0`.
    Column(String),
    /// In full.
    Table(LabelTable),
}

/// The label in full.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LabelTable {
    /// Name of the column.
    pub(crate) column: String,
    /// Texts that mean a positive sample.
    #[serde(default = "positive")]
    #[schemars(length(min = 1))]
    pub(crate) positive: Vec<String>,
    /// Texts that mean a negative sample; any text in neither list is a malformed row.
    #[serde(default = "negative")]
    #[schemars(length(min = 1))]
    pub(crate) negative: Vec<String>,
}

impl LabelTable {
    /// A column of `1` and `0`.
    pub(crate) fn binary(column: String) -> Self {
        Self { column, positive: positive(), negative: negative() }
    }
}

/// A numeric column.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Numeric {
    /// Name of the column, taken as it is.
    Column(String),
    /// In full.
    Table(NumericTable),
}

/// A numeric column in full.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NumericTable {
    /// Name of the column.
    pub(crate) column: String,
    /// Whether x becomes ln(1 + x), or −ln(1 − x) when it is negative: tames counts, keeps the sign, maps 0 to 0.
    #[serde(default)]
    pub(crate) log: bool,
    /// Whether the value, after `log`, becomes (value − mean) / deviation. `true` measures both in one pass over the
    /// training rows before training; `{ mean, deviation }` gives them.
    #[serde(default)]
    pub(crate) standardise: Standardise,
    /// What a missing value becomes; not transformed. With `standardise` 0 is the mean.
    #[serde(default)]
    #[schemars(range(min = -1e30, max = 1e30))]
    pub(crate) missing: f64,
}

/// Shift and scale of a numeric column.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Standardise {
    /// Measured, or not done at all.
    Switch(bool),
    /// Given.
    Given {
        /// Mean of the column after `log`.
        mean: f64,
        /// Standard deviation of the column after `log`.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        deviation: f64,
    },
}

impl Default for Standardise {
    fn default() -> Self {
        Self::Switch(false)
    }
}

/// A categorical column.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Categorical {
    /// Name of the column, one value a cell, a table of its own.
    Column(String),
    /// In full.
    Table(CategoricalTable),
}

/// A categorical column in full.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CategoricalTable {
    /// Name of the column.
    pub(crate) column: String,
    /// Embedding table that holds the rows of its values: one of `[tables]`, or another feature's column. Default:
    /// a table named like the column.
    pub(crate) table: Option<String>,
    /// Values per row of the table, short for `dim` in `[tables.<name>]`. Default: `embedding.dim`.
    #[schemars(range(min = 1, max = 4096))]
    pub(crate) dim: Option<usize>,
    /// Text between the values of a cell, for a column that holds any number of them. Default: none, a cell is one
    /// value.
    pub(crate) separator: Option<String>,
    /// How the rows of several values become one vector. Default: `sum`; needs `separator`.
    pub(crate) pooling: Option<Pooling>,
    /// Who adds up the rows of a cell: with many short-lived values a sum is fewer bytes than its rows, with few values
    /// that all samples share it is more. Default: `auto`; needs `separator`.
    pub(crate) pool_at: Option<PoolAt>,
}

impl CategoricalTable {
    /// One value a cell, a table of its own.
    pub(crate) fn single(column: String) -> Self {
        Self { column, table: None, dim: None, separator: None, pooling: None, pool_at: None }
    }
}

/// How the rows of several values become one vector.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Pooling {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// Their sum over the square root of how many they are.
    Sqrtn,
}

/// Who adds up the rows of a cell.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PoolAt {
    /// Whichever sends fewer bytes, batch by batch; the worker where `train.staleness` is 0 or nothing is learned.
    Auto,
    /// The embedding servers. The order in which rows are added depends on how many servers there are: results are
    /// equal for any number of them only up to rounding.
    Server,
    /// The dense worker.
    Worker,
}

fn positive() -> Vec<String> {
    vec!["1".to_owned()]
}

fn negative() -> Vec<String> {
    vec!["0".to_owned()]
}
