//! How a row is named.

/// A row of a table: the table's place in the job, and the id.
pub type RowId = (u32, u64);
