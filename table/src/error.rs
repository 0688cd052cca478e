//! Errors of a table. A refused request has changed nothing.

use crate::ColdError;
use crate::optimizer::LARGEST;

/// A request or a setting that a table does not accept.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TableError {
    /// A push stages or commits gradients of a table that applies them at once.
    #[error("table {table} applies gradients at once; it neither stages nor commits them")]
    Unstaged { table: u32 },
    #[error("table {table}: {problem}")]
    Config {
        table: u32,
        /// The setting, its value and the accepted range.
        problem: String,
    },
    #[error("there is no table {table}; this model has {tables} tables, numbered from 0")]
    UnknownTable { table: u32, tables: usize },
    /// A request names a table twice. Then gradients of one id could not be summed.
    #[error("table {table} is named more than once in one request; send one segment per table")]
    RepeatedTable { table: u32 },
    #[error(
        "table {table} has dim {expected}, but the request has dim {found}; start all processes with the same job file"
    )]
    Dim { table: u32, expected: usize, found: usize },
    #[error("{what}: expected {expected} values, found {found}")]
    Length { what: &'static str, expected: usize, found: usize },
    /// A segment has more ids than a 32-bit position can count.
    #[error("table {table}: {rows} rows in one request, at most {} are accepted", u32::MAX)]
    TooManyRows { table: u32, rows: usize },
    #[error(
        "table {table}: the gradient of id {id} is {value} at position {position}; \
         nothing of this push was applied (lower the learning rate, or look for bad input)"
    )]
    NotFinite { table: u32, id: u64, position: usize, value: f32 },
    /// A gradient so large that the row might not stay finite.
    #[error(
        "table {table}: the gradient of id {id} is {value} at position {position}, beyond {LARGEST:e}, which would drive the \
         row out of the range of numbers; nothing of this push was applied (lower the learning rate, set clip_norm or \
         clip_value, or look for bad input)"
    )]
    TooLarge { table: u32, id: u64, position: usize, value: f32 },
    /// Memory is full: a row has to be paged in, and no row can be evicted.
    #[error("table {table}: memory is full, {used} bytes of {limit}, and no row can leave it; try again later")]
    Full {
        table: u32,
        used: usize,
        /// The budget. While rows cannot be evicted, a quarter more may be used.
        limit: usize,
        /// Why rows cannot be evicted.
        #[source]
        source: ColdError,
    },
    /// A request waited until its sender gave up. Nothing of a push is applied. A lookup may have paged rows in, which
    /// changes no row.
    #[error("the request waited for {whom} until its sender gave up; it is not carried out")]
    Late { whom: &'static str },
    /// The snapshot has read this stripe before and no longer keeps its rows.
    #[error("table {table}: stripe {stripe} was read from this snapshot before; take another one")]
    AlreadyRead { table: u32, stripe: usize },
    /// The copies for a snapshot reached their limit while nothing of it was read, so it was given up.
    #[error(
        "the snapshot is given up: copies of rows that changed meanwhile reached their limit, and nothing of it was written for a \
         while; training went on; see whether the disk or store of checkpoints is slow"
    )]
    SnapshotGivenUp,
    #[error("table {table}: {source}; try again later")]
    Cold {
        table: u32,
        #[source]
        source: ColdError,
    },
}

impl TableError {
    /// Whether the same request may succeed later. If not, the request itself is wrong.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Cold { .. } | Self::Late { .. })
    }

    pub fn table_number(&self) -> Option<u32> {
        match self {
            Self::Config { table, .. }
            | Self::RepeatedTable { table }
            | Self::Dim { table, .. }
            | Self::TooManyRows { table, .. }
            | Self::NotFinite { table, .. }
            | Self::TooLarge { table, .. }
            | Self::Full { table, .. }
            | Self::AlreadyRead { table, .. }
            | Self::Unstaged { table }
            | Self::Cold { table, .. } => Some(*table),
            Self::UnknownTable { .. } | Self::Length { .. } | Self::Late { .. } | Self::SnapshotGivenUp => None,
        }
    }
}
