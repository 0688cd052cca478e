//! What a table refuses. Whatever is refused has changed nothing.

/// A request or a configuration that a table does not accept.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TableError {
    /// A configuration out of range.
    #[error("table {table}: {problem}")]
    Config {
        /// Position of the table.
        table: u32,
        /// What is wrong, and the range.
        problem: String,
    },
    /// No such table.
    #[error("there is no table {table}; this model has {tables} tables, numbered from 0")]
    UnknownTable {
        /// What was asked for.
        table: u32,
        /// How many there are.
        tables: usize,
    },
    /// A table named twice in one request: its gradients could not be summed by id.
    #[error("table {table} is named more than once in one request; send one segment per table")]
    RepeatedTable {
        /// The table.
        table: u32,
    },
    /// Row widths disagree.
    #[error("table {table} has dim {expected}, the request says {found}")]
    Dim {
        /// The table.
        table: u32,
        /// Its width.
        expected: usize,
        /// The width in the request.
        found: usize,
    },
    /// Lengths disagree.
    #[error("{what}: expected {expected} values, found {found}")]
    Length {
        /// Which argument.
        what: &'static str,
        /// Values implied by the ids.
        expected: usize,
        /// Values that came.
        found: usize,
    },
    /// More ids in one segment than positions can be counted.
    #[error("table {table}: {rows} rows in one request, at most {} are accepted", u32::MAX)]
    TooManyRows {
        /// The table.
        table: u32,
        /// How many came.
        rows: usize,
    },
    /// A gradient that is infinite or not a number.
    #[error(
        "table {table}: the gradient of id {id} is {value} at position {position}; \
         nothing of this push was applied (lower the learning rate, or look for bad input)"
    )]
    NotFinite {
        /// The table.
        table: u32,
        /// The row.
        id: u64,
        /// Position within the row.
        position: usize,
        /// The offending value.
        value: f32,
    },
}

impl TableError {
    /// Position of the table that is meant, where there is one.
    #[must_use]
    pub fn table(&self) -> Option<u32> {
        match self {
            Self::Config { table, .. }
            | Self::RepeatedTable { table }
            | Self::Dim { table, .. }
            | Self::TooManyRows { table, .. }
            | Self::NotFinite { table, .. } => Some(*table),
            Self::UnknownTable { .. } | Self::Length { .. } => None,
        }
    }
}
