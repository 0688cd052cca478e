//! The row groups of a file of columns: those of Parquet, or the record batches of Arrow.
//!
//! A split `[start, end)` owns the row groups whose middle is in it: neighbours agree on the border, so each row group has
//! one owner, whatever the borders are.

use std::path::Path;
use std::sync::Arc;

use ::parquet::schema::types::ColumnDescPtr;
use zagros_job::Job;
use zagros_store::StoreError;

use super::arrow::batches::RecordBatches;
use super::arrow::schema::ArrowLeaf;
use super::kind::ValueKind;
use super::parquet::pages::{ChunkPlace, GroupRanges, StoredGroups};
use crate::IngestError;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RowGroups {
    /// The columns that are read, in the order in which they were asked for.
    pub(crate) columns: Vec<UsedColumn>,
    pub(crate) groups: Vec<RowGroup>,
    pub(super) place: GroupPlace,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GroupPlace {
    Disk,
    Store(Arc<StoredGroups>),
    /// Arrow's record batches, wherever they are.
    Batches(Arc<RecordBatches>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UsedColumn {
    pub(crate) name: String,
    /// Its place among the columns of the file, from 0.
    pub(crate) position: usize,
    pub(crate) kind: ValueKind,
    pub(crate) description: ColumnDescription,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ColumnDescription {
    Parquet(ColumnDescPtr),
    Arrow(Arc<ArrowLeaf>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowGroup {
    pub(crate) first_row: u64,
    pub(crate) rows: u64,
    /// The byte that decides which split owns it. Never before that of an earlier row group: owners are found by bisection.
    pub(super) middle: u64,
    /// The pages of each used column; none of Arrow's.
    pub(crate) chunks: Vec<ChunkPlace>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowSlice {
    pub(crate) group: usize,
    pub(crate) start: u64,
    pub(crate) rows: usize,
}

impl UsedColumn {
    pub(crate) fn is_list(&self) -> bool {
        match &self.description {
            ColumnDescription::Parquet(column) => column.max_rep_level() > 0,
            ColumnDescription::Arrow(leaf) => leaf.is_list,
        }
    }
}

impl RowGroups {
    /// The row groups that the split `[start, end)` owns.
    pub(crate) fn owned_groups(&self, start: u64, end: u64) -> std::ops::Range<usize> {
        let groups_before = |byte: u64| self.groups.partition_point(|group| group.middle < byte);
        groups_before(start)..groups_before(end)
    }

    pub(crate) fn unit_name(&self) -> &'static str {
        if let GroupPlace::Batches(_) = self.place { "record batch" } else { "row group" }
    }

    /// The columns of a row group in a store; `None` for all others.
    pub(crate) fn store_ranges(&self, group: usize) -> Result<Option<GroupRanges>, StoreError> {
        match &self.place {
            GroupPlace::Store(stored) => stored.group_ranges(group, &self.groups[group].chunks).map(Some),
            GroupPlace::Disk | GroupPlace::Batches(_) => Ok(None),
        }
    }

    pub(crate) fn prefetch(&self, group: usize) {
        if group >= self.groups.len() {
            return;
        }
        // A failure comes again when the rows are read.
        match &self.place {
            GroupPlace::Disk => {}
            GroupPlace::Store(_) => drop(self.store_ranges(group)),
            GroupPlace::Batches(batches) => batches.prefetch(group),
        }
    }
}

/// Refuses a list where the job wants one value, and the other way round.
pub(crate) fn check_shapes(job: &Job, path: &Path, columns: &[UsedColumn]) -> Result<(), IngestError> {
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
        let of_kind = format!(
            "it holds {}, which have no separator; remove `separator`, and `pooling`, `sequence` or `width`",
            column.kind.plain_name()
        );
        let reason = match (many[index], column.is_list()) {
            (None, true) if index >= numbers => {
                "it holds lists; give it `pooling` in [features] to use them, such as { column = …, pooling = \"mean\" }"
            }
            (None, true) => {
                "it holds lists, and a label or number is a single value; a numeric feature with `width` is a vector \
                 of numbers"
            }
            (Some(_), false) if column.kind == ValueKind::Nothing => continue,
            (Some(""), false) if index < numbers => {
                "it does not hold lists; remove `width`, or give a `separator` for texts of several numbers"
            }
            (Some(""), false) => {
                "it does not hold lists; remove `pooling` or `sequence`, or give a `separator` for texts of several \
                 values"
            }
            (Some(_), false) if column.kind != ValueKind::Text => of_kind.as_str(),
            _ => continue,
        };
        let (path, column, reason) = (path.into(), column.name.clone(), reason.to_owned());
        return Err(IngestError::UnusableColumn { path, column, reason });
    }
    Ok(())
}
