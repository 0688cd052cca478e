//! What a table refuses. Whatever is refused has changed nothing.

use crate::ColdError;
use crate::optimizer::LARGEST;

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
    /// A gradient that a row might not stay finite with.
    #[error(
        "table {table}: the gradient of id {id} is {value} at position {position}, beyond {LARGEST:e}, which would drive the \
         row out of the range of numbers; nothing of this push was applied (lower the learning rate, set clip_norm or \
         clip_value, or look for bad input)"
    )]
    TooLarge {
        /// The table.
        table: u32,
        /// The row.
        id: u64,
        /// Position within the row.
        position: usize,
        /// The offending value.
        value: f32,
    },
    /// No room for a row that would have to come to memory, because none can leave it.
    #[error("table {table}: memory is full, {used} bytes of {limit}, and no row can leave it; try again later")]
    Full {
        /// The table.
        table: u32,
        /// Bytes in use.
        used: usize,
        /// The budget, of which a quarter more may be used while rows cannot leave.
        limit: usize,
        /// Why rows cannot leave.
        #[source]
        source: ColdError,
    },
    /// A request that waited until its sender gave up. Of a push nothing is applied. Of a lookup rows may have come to
    /// memory, which changes no row.
    #[error("the request waited for {whom} until its sender gave up, and is not carried out")]
    Late {
        /// What it waited for.
        whom: &'static str,
    },
    /// A stripe that was read from a snapshot before, and is not kept for it any more.
    #[error("table {table}: stripe {stripe} was read from this snapshot before; take another one")]
    AlreadyRead {
        /// The table.
        table: u32,
        /// The stripe.
        stripe: usize,
    },
    /// Rows of the cold tier cannot be read.
    #[error("table {table}: {source}; try again later")]
    Cold {
        /// The table.
        table: u32,
        /// What went wrong.
        #[source]
        source: ColdError,
    },
}

impl TableError {
    /// Whether the same request may succeed later; else it is wrong in itself.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Cold { .. } | Self::Late { .. })
    }

    /// Position of the table that is meant, where there is one.
    #[must_use]
    pub fn table(&self) -> Option<u32> {
        match self {
            Self::Config { table, .. }
            | Self::RepeatedTable { table }
            | Self::Dim { table, .. }
            | Self::TooManyRows { table, .. }
            | Self::NotFinite { table, .. }
            | Self::TooLarge { table, .. }
            | Self::Full { table, .. }
            | Self::AlreadyRead { table, .. }
            | Self::Cold { table, .. } => Some(*table),
            Self::UnknownTable { .. } | Self::Length { .. } | Self::Late { .. } => None,
        }
    }
}
