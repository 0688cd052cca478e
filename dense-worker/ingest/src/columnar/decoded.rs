//! A column of a row group with what its values become.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use super::fault::{Fault, Result};
use super::output::Output;
use super::parquet::column::ColumnReader;
use super::parquet::file::{RowGroups, UsedColumn};
use crate::IngestError;

/// A column with what its values become.
#[derive(Debug)]
pub(super) struct Decoded<O> {
    reader: ColumnReader,
    pub(super) out: O,
    pub(super) position: usize,
}

/// Opens the columns of a row group.
pub(super) struct GroupColumns<'a> {
    pub(super) path: &'a Path,
    pub(super) file: Arc<File>,
    pub(super) row_groups: &'a RowGroups,
    pub(super) group: usize,
}

impl GroupColumns<'_> {
    /// A used column, by its position among them.
    pub(super) fn decoded<O>(
        &self,
        index: usize,
        out: impl FnOnce(&UsedColumn) -> O,
    ) -> std::result::Result<Decoded<O>, IngestError> {
        let column = &self.row_groups.columns[index];
        let place = self.row_groups.groups[self.group].chunks[index];
        let reader = ColumnReader::new(Arc::clone(&self.file), place, &column.column);
        let reader = reader.map_err(|fault| damaged(self.path, self.row_groups, self.group, index, fault))?;
        Ok(Decoded { reader, out: out(column), position: column.position })
    }
}

/// The fault of a used column in a row group.
pub(super) fn damaged(
    path: &Path,
    row_groups: &RowGroups,
    row_group: usize,
    index: usize,
    fault: Fault,
) -> IngestError {
    let (Fault(reason), column) = (fault, row_groups.columns[index].name.clone());
    IngestError::DamagedColumn { path: path.into(), row_group, column, reason }
}

impl<O: Output> Decoded<O> {
    /// Decodes the rows of a slice.
    pub(super) fn decode(&mut self, skipped: usize, rows: usize) -> Result<()> {
        self.reader.read_slice(skipped, rows, &mut self.out)
    }
}
