//! Sequences: features whose values stay in order, and how a network compares them with a target.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    #[must_use]
    pub const fn input_width(&self, dim: usize) -> usize {
        self.length * dim + 1
    }

    /// The range of the kept values among `count` values of a cell.
    #[must_use]
    pub fn kept_range(&self, count: usize) -> std::ops::Range<usize> {
        let kept = count.min(self.length);
        if self.keep == KeptEnd::Last { count - kept..count } else { 0..kept }
    }

    /// The position of the first of `count` real values.
    #[must_use]
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
