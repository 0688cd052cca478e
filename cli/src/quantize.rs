//! `zagros quantize`: a copy of a saved model whose tables have weights in another number format.
//!
//! ```text
//! plan ────────────────────────────────► apply
//! the model's files and their chains,    1 every file is compared with the manifest
//! the job as the copy has it,            2 rows, block by block, a chain to a file
//! how each table is converted            3 the other files, the job
//!                                        4 the manifest
//! ```
//!
//! A folder without its manifest is no model. So a command that ends before step 4 leaves none (invariant CK-1), and the model that it
//! reads is never changed.

mod apply;
mod plan;

pub(crate) use apply::apply;
pub(crate) use plan::{PlannedTable, QuantizePlan};
