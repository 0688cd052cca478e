//! Scores rows with a saved model, in one process: no servers, no runtime, and nothing learns.
//!
//! ```text
//! model folder ─┬─ manifest ─► each file compared (CK-4)      manifest, replaced_files, saved_model
//!               ├─ rows ─────► tables in memory               rows
//!               ├─ weights ──► network                        rows, where weights are streamed
//!               └─ calibration                                calibrators
//! batch ────────► rows of its ids ─► network's input ─► outputs      scorer
//! ```
//!
//! A score is a function of the row and the model alone, whatever else is in the batch. `export` writes the rows for other programs.

mod calibrators;
mod error;
mod export;
mod manifest;
mod replaced_files;
mod rows;
mod saved_model;
mod scorer;
#[cfg(test)]
mod testing;

pub use calibrators::ModelCalibrators;
pub use error::ScoringError;
pub use export::{ExportError, ExportFormat, ExportSource, ExportSummary, export_table};
pub use manifest::{
    FORMAT, FileRecord, MANIFEST, Manifest, TrainingOutcome, checkpoint_name, checkpoint_step, damaged, row_file,
    to_json,
};
pub use replaced_files::CopiedFiles;
pub use rows::{ModelRows, RowSource};
pub use saved_model::{DENSE, JOB, OPTIMIZER, SavedModel, fingerprint, parse_job};
pub use scorer::{GatheredBatch, ModelScorer, TableLookups};
