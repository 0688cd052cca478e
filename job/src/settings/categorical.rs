//! Categorical features: how the cells of columns become ids, in order (sequences) or pooled, and how a network compares a sequence with a target.

use std::num::NonZeroU64;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::encoding::Vocabulary;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Categorical {
    pub name: String,
    pub source: IdSource,
    /// Index into [`crate::Job::tables`].
    pub table: usize,
    pub values: Values,
    /// Text in place of a missing value of a feature of one value; `None`: a missing value is a category of its own.
    pub default: Option<String>,
    /// What ids become before their rows are looked up.
    pub ids: IdRange,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum IdSource {
    Column {
        column: String,
        reading: ColumnReading,
    },
    /// The combination of other features' cells, by name, or of columns' texts: at least two.
    Cross(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum ColumnReading {
    Text,
    /// The number of the range that its number is in.
    Buckets(ValueBuckets),
    /// A part of its date or time.
    Date(DatePart),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum IdRange {
    /// An id a category: 64-bit hashes, in practice without collisions.
    All,
    /// The hash modulo a size: categories share ids.
    Hashed(NonZeroU64),
    /// The ids of frequent categories, and one for all others.
    Vocabulary(Vocabulary),
}

/// The ranges of a bucketised column. The number of a range is that of the edges that are not greater than the value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Buckets")]
pub enum ValueBuckets {
    /// So many ranges, whose edges are the quantiles of the training rows, measured before training.
    Fit(#[schemars(range(min = 2, max = 65536))] u32),
    /// The edges, ascending.
    Edges(#[schemars(length(min = 1, max = 65536), inner(range(min = -1e30, max = 1e30)))] Vec<f64>),
    /// Edges that were measured.
    Fitted {
        /// Number of ranges that the job asks for.
        #[schemars(range(min = 2, max = 65536))]
        quantiles: u32,
        /// The edges, ascending. There are fewer than asked for where a value is so frequent that quantiles are equal.
        #[schemars(inner(range(min = -1e30, max = 1e30)))]
        edges: Vec<f64>,
    },
}

impl ValueBuckets {
    /// The edges; empty while they are not measured.
    pub fn edges(&self) -> &[f64] {
        if let Self::Edges(edges) | Self::Fitted { edges, .. } = self { edges } else { &[] }
    }

    /// Number of ranges: measured or to be measured, or that of the given edges.
    pub fn range_count(&self) -> u32 {
        match self {
            Self::Fit(quantiles) | Self::Fitted { quantiles, .. } => *quantiles,
            Self::Edges(edges) => edges.len() as u32 + 1,
        }
    }
}

/// A part of a date or time, whose text is `2026-11-25`, `2026-11-25 13:45:00`, or seconds (up to 11 digits), milliseconds (up to 14) or
/// microseconds since 1970. The clock is that of the text: an offset behind it is not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DatePart {
    /// 0 to 59.
    Minute,
    /// 0 to 23.
    Hour,
    /// 1 (Monday) to 7.
    Weekday,
    /// 0 (Monday at midnight) to 167.
    HourOfWeek,
    /// 1 to 31.
    Day,
    /// 1 to 12.
    Month,
    /// Such as 2026.
    Year,
}

impl Categorical {
    /// A column with one value a cell, under its own name.
    pub fn of_column(column: impl Into<String>, table: usize) -> Self {
        let column = column.into();
        let source = IdSource::Column { column: column.clone(), reading: ColumnReading::Text };
        Self { name: column, source, table, values: Values::One, default: None, ids: IdRange::All }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Values {
    /// Exactly one. A missing value is a category of its own.
    One,
    /// Any number, split at a separator and pooled to one vector. The vector of no value is zero.
    Many {
        /// Text between two values. Empty: the column holds lists.
        separator: String,
        pooling: Pooling,
        pool_at: PoolAt,
        /// The column with a weight for each value; the servers, which add rows up unweighted, do not pool such a feature.
        #[serde(skip_serializing_if = "Option::is_none")]
        weights: Option<String>,
    },
    /// Up to a number of values, in order, which are not pooled.
    Sequence {
        /// Text between two values. Empty: the column holds lists.
        separator: String,
        sequence: Sequence,
    },
}

impl Values {
    /// Text between two values, empty for lists; `None` if a cell is one value.
    pub fn separator(&self) -> Option<&str> {
        if let Self::Many { separator, .. } | Self::Sequence { separator, .. } = self { Some(separator) } else { None }
    }

    /// The column with a weight for each value, if there is one.
    pub fn weight_column(&self) -> Option<&str> {
        if let Self::Many { weights, .. } = self { weights.as_deref() } else { None }
    }

    pub fn sequence(&self) -> Option<&Sequence> {
        if let Self::Sequence { sequence, .. } = self { Some(sequence) } else { None }
    }
}

/// How the rows of a multi-valued feature become one vector. With `weights`, each row counts times its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// Their sum.
    Sum,
    /// Their mean; with `weights`, their sum divided by that of the weights, which are from 0.
    Mean,
    /// Their sum divided by the square root of their number; with `weights`, of the sum of the weights' squares.
    SqrtN,
}

impl Pooling {
    pub fn least_weight(self) -> f64 {
        if self == Self::Mean { 0.0 } else { f64::from(f32::MIN) }
    }

    /// Makes the weights of a cell the factors of its rows: the rows, each times its factor, add up to the pooled vector. Of weights that
    /// are all 0, each factor is 0.
    pub fn scale_weights(self, weights: &mut [f32]) {
        let squares = || weights.iter().map(|weight| f64::from(*weight).powi(2)).sum::<f64>();
        let whole = match self {
            Self::Sum => return,
            Self::Mean => weights.iter().map(|weight| f64::from(*weight)).sum(),
            Self::SqrtN => squares().sqrt(),
        };
        if whole > 0.0 {
            weights.iter_mut().for_each(|weight| *weight = (f64::from(*weight) / whole) as f32);
        }
    }
}

/// Where the rows of a cell are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolAt {
    /// Wherever fewer bytes are sent, batch by batch. Always the worker if `train.staleness` is 0 or nothing is learned. A job has
    /// this, or the worker for a feature with weights.
    Auto,
    /// At the embedding servers. The order of the additions depends on the number of servers, so results for different
    /// numbers are equal only up to rounding.
    Server,
    /// At the dense worker.
    Worker,
}

/// A feature whose values are not pooled: each sample has a matrix of `length` vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sequence {
    /// The most values of a cell that are kept. The other positions of a shorter sequence are padding: zeros for which no row is
    /// looked up.
    #[schemars(range(min = 1, max = 4096))]
    pub length: usize,
    /// Which values of a longer cell are kept.
    #[serde(default)]
    pub keep: KeptEnd,
    /// Where the padding of a shorter sequence is.
    #[serde(default)]
    pub pad: PadSide,
}

/// Which values of a long cell are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Keep")]
pub enum KeptEnd {
    /// The last ones: the newest, where cells are in the order of time.
    #[default]
    Last,
    /// The first ones.
    First,
}

/// On which side of a sequence its padding is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Pad")]
pub enum PadSide {
    /// Before the values: the last value is always at the last position.
    #[default]
    Left,
    /// After the values: the first value is always at the first position.
    Right,
}

/// A sequence, and the feature with which each of its values is compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Attention")]
pub struct AttentionPair {
    /// Name of a feature with `sequence`.
    pub sequence: String,
    /// Name of a feature without `sequence` that reads the same table.
    pub target: String,
}

impl Sequence {
    /// Values of one sample in the input of the network: `length` vectors of `dim` values, and the number of real positions.
    pub const fn input_width(&self, dim: usize) -> usize {
        self.length * dim + 1
    }

    /// The range of the kept values among `count` values of a cell.
    pub fn kept_range(&self, count: usize) -> std::ops::Range<usize> {
        let kept = count.min(self.length);
        if self.keep == KeptEnd::Last { count - kept..count } else { 0..kept }
    }

    /// The position of the first of `count` real values.
    pub const fn first_position(&self, count: usize) -> usize {
        if matches!(self.pad, PadSide::Left) { self.length - count } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_cell_is_cut_at_one_end_and_a_short_one_is_padded_at_one_side() {
        let sequence = |keep, pad| Sequence { length: 3, keep, pad };
        let (last, first) = (sequence(KeptEnd::Last, PadSide::Left), sequence(KeptEnd::First, PadSide::Right));
        assert_eq!([5, 3, 1, 0].map(|values| last.kept_range(values)), [2..5, 0..3, 0..1, 0..0]);
        assert_eq!([first.kept_range(5), first.kept_range(2)], [0..3, 0..2]);
        assert_eq!([last.first_position(3), last.first_position(1), last.first_position(0)], [0, 2, 3]);
        assert_eq!([first.first_position(3), first.first_position(1)], [0, 0]);
        assert_eq!(last.input_width(4), 13);
    }
}
