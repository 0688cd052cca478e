//! How a row is named: by its table's place in the job, and its id.

pub type RowId = (u32, u64);
