//! Whether the columns of a file are what the job wants: a single value or a list.

use std::path::Path;

use zagros_job::Job;

use super::groups::UsedColumn;
use super::kind::ValueKind;
use crate::IngestError;

/// Refuses a list where the job wants one value, and the other way round.
pub(crate) fn check_shapes(job: &Job, path: &Path, columns: &[UsedColumn]) -> Result<(), IngestError> {
    let refuse = |column: &UsedColumn, reason: String| {
        Err(IngestError::UnusableColumn { path: path.into(), column: column.name.clone(), reason })
    };
    let labels = if job.eval.predict.is_none() { job.features.learned_columns().count() } else { 0 };
    let numbers = labels + job.features.number_features().count();
    let mut many = vec![None; labels];
    many.extend(job.features.number_features().map(|of| of.width.map(|_| of.separator.as_deref().unwrap_or_default())));
    let categories = job.features.category_features();
    for feature in &categories {
        match feature.values.separator() {
            None => many.extend(job.features.column_parts(feature).iter().map(|_| None)),
            separator => many.extend(job.features.source_columns(feature).map(|_| separator)),
        }
    }
    many.resize(columns.len(), None);
    for (index, column) in columns.iter().enumerate() {
        match (many[index], column.is_list()) {
            (None, true) if index >= numbers => {
                let help = "it holds lists; give it `pooling` in [features] to use them, such as { column = …, pooling = \"mean\" }";
                return refuse(column, help.into());
            }
            (None, true) => {
                let help = "it holds lists, and a label or number is a single value; a numeric feature with `width` is a vector of numbers";
                return refuse(column, help.into());
            }
            (Some(_), false) if column.kind == ValueKind::Nothing => {}
            (Some(""), false) if index < numbers => {
                let help = "it does not hold lists; remove `width`, or give a `separator` for texts of several numbers";
                return refuse(column, help.into());
            }
            (Some(""), false) => {
                let help = "it does not hold lists; remove `pooling` or `sequence`, or give a `separator` for texts of several values";
                return refuse(column, help.into());
            }
            (Some(_), false) if column.kind != ValueKind::Text => {
                let help = format!(
                    "it holds {}, which have no separator; remove `separator`, and `pooling`, `sequence` or `width`",
                    column.kind.plain_name()
                );
                return refuse(column, help);
            }
            _ => {}
        }
    }
    Ok(())
}
