//! The columns that a categorical feature reads.

use super::categorical::{Categorical, Reading, Source, Values};
use super::features::Features;

/// A column, and the category of its cells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part<'a> {
    /// Name of the column.
    pub column: &'a str,
    /// The category of a cell.
    pub reading: &'a Reading,
}

impl Features {
    /// The columns of a categorical feature: one, or those that a cross combines. A name in a cross is that of a feature of one value and
    /// one column, otherwise that of a column whose texts count.
    #[must_use]
    pub fn column_parts<'a>(&'a self, feature: &'a Categorical) -> Vec<Part<'a>> {
        match &feature.source {
            Source::Column { column, reading } => vec![Part { column, reading }],
            Source::Cross(names) => names.iter().map(|name| self.part(name)).collect(),
        }
    }

    /// The columns that a categorical feature reads: of its parts, and then that of its weights.
    pub fn source_columns<'a>(&'a self, feature: &'a Categorical) -> impl Iterator<Item = &'a str> {
        self.column_parts(feature).into_iter().map(|part| part.column).chain(feature.values.weight_column())
    }

    /// What a name in a cross stands for.
    pub(super) fn part<'a>(&'a self, name: &'a str) -> Part<'a> {
        let named = |feature: &&Categorical| feature.name == name && feature.values == Values::One;
        match self.categorical.iter().find(named).map(|feature| &feature.source) {
            Some(Source::Column { column, reading }) => Part { column, reading },
            _ => Part { column: name, reading: &Reading::Text },
        }
    }
}
