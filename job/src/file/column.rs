//! A column as it is written: its name, or a table.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
