//! Which numeric columns the job leaves to be measured.

use zagros_job::{Job, Standardise};

/// Numeric columns, by position, whose mean and deviation the job leaves to be measured.
pub(super) fn measured_columns(job: &Job) -> Vec<usize> {
    let columns = job.features.numeric.iter().enumerate();
    columns.filter(|(_, column)| column.standardise == Standardise::Fit).map(|(position, _)| position).collect()
}
