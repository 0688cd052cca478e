//! The columns that a categorical feature reads.

use super::categorical::{Categorical, ColumnReading, IdSource, Values};
use super::features::Features;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColumnPart<'a> {
    pub column: &'a str,
    pub reading: &'a ColumnReading,
}

impl Features {
    /// One, or those that a cross combines. A name in a cross is that of a feature of one value and one column,
    /// otherwise that of a column whose texts count.
    #[must_use]
    pub fn column_parts<'a>(&'a self, feature: &'a Categorical) -> Vec<ColumnPart<'a>> {
        match &feature.source {
            IdSource::Column { column, reading } => vec![ColumnPart { column, reading }],
            IdSource::Cross(names) => names.iter().map(|name| self.column_part(name)).collect(),
        }
    }

    /// The columns that a categorical feature reads: of its parts, and then that of its weights.
    pub fn source_columns<'a>(&'a self, feature: &'a Categorical) -> impl Iterator<Item = &'a str> {
        self.column_parts(feature).into_iter().map(|part| part.column).chain(feature.values.weight_column())
    }

    pub(super) fn column_part<'a>(&'a self, name: &'a str) -> ColumnPart<'a> {
        let named = |feature: &&Categorical| feature.name == name && feature.values == Values::One;
        match self.categorical.iter().find(named).map(|feature| &feature.source) {
            Some(IdSource::Column { column, reading }) => ColumnPart { column, reading },
            _ => ColumnPart { column: name, reading: &ColumnReading::Text },
        }
    }
}
