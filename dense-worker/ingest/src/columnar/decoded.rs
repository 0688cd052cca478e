//! A column of a row group with what its values become.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use super::fault::{Fault, Result};
use super::output::Output;
use super::parquet::column::ColumnReader;
use super::parquet::file::{RowGroups, UsedColumn};
use super::parquet::pages::PageFile;
use super::parquet::stored::GroupRanges;
use crate::IngestError;
use crate::source::open_file;

/// A column with what its values become.
#[derive(Debug)]
pub(super) struct Decoded<O> {
    reader: ColumnReader,
    pub(super) out: O,
    pub(super) position: usize,
}

/// Where the columns of a row group are.
enum GroupSource {
    Disk(Arc<File>),
    Store(GroupRanges),
}

/// Opens the columns of a row group.
pub(super) struct GroupColumns<'a> {
    path: &'a Path,
    source: GroupSource,
    row_groups: &'a RowGroups,
    group: usize,
}

impl<'a> GroupColumns<'a> {
    /// Of a file on a disk or in a store.
    pub(super) fn open(
        path: &'a Path,
        row_groups: &'a RowGroups,
        group: usize,
    ) -> std::result::Result<Self, IngestError> {
        let source = match row_groups.ranges(group)? {
            Some(ranges) => GroupSource::Store(ranges),
            None => {
                let file = open_file(path).map_err(|source| IngestError::Unreadable { path: path.into(), source })?;
                GroupSource::Disk(Arc::new(file.ok_or_else(|| IngestError::NotAFile { path: path.into() })?))
            }
        };
        Ok(Self { path, source, row_groups, group })
    }

    /// Where the columns of a row group in a store are.
    pub(super) fn ranges(&self) -> Option<GroupRanges> {
        if let GroupSource::Store(ranges) = &self.source { Some(Arc::clone(ranges)) } else { None }
    }

    /// A column, not decoded yet.
    pub(super) fn decoded<O>(
        &self,
        index: usize,
        out: impl FnOnce(&UsedColumn) -> O,
    ) -> std::result::Result<Decoded<O>, IngestError> {
        let column = &self.row_groups.columns[index];
        let place = self.row_groups.groups[self.group].chunks[index];
        let (file, ranges) = match &self.source {
            GroupSource::Disk(file) => (PageFile::Disk(Arc::clone(file)), None),
            GroupSource::Store(ranges) => (PageFile::Object(Arc::clone(&ranges[index])), Some(ranges)),
        };
        let reader = ColumnReader::new(file, place, &column.column);
        let reader = reader.map_err(|fault| failed(self.path, self.row_groups, self.group, index, ranges, fault))?;
        Ok(Decoded { reader, out: out(column), position: column.position })
    }

    /// Decodes the `rows` rows behind the next `skipped` ones.
    pub(super) fn decode<O: Output>(
        &self,
        index: usize,
        column: &mut Decoded<O>,
        skipped: usize,
        rows: usize,
    ) -> std::result::Result<(), IngestError> {
        let decoded = column.decode(skipped, rows);
        let ranges = self.ranges();
        decoded.map_err(|fault| failed(self.path, self.row_groups, self.group, index, ranges.as_ref(), fault))
    }
}

/// The fault of a used column in a row group, or what the store said.
pub(super) fn failed(
    path: &Path,
    row_groups: &RowGroups,
    row_group: usize,
    index: usize,
    ranges: Option<&GroupRanges>,
    fault: Fault,
) -> IngestError {
    if let Some(source) = ranges.and_then(|ranges| ranges[index].take_failure()) {
        return IngestError::Store { source };
    }
    let (Fault(reason), column) = (fault, row_groups.columns[index].name.clone());
    IngestError::DamagedColumn { path: path.into(), row_group, column, reason }
}

impl<O: Output> Decoded<O> {
    /// Decodes the rows of a slice.
    pub(super) fn decode(&mut self, skipped: usize, rows: usize) -> Result<()> {
        self.reader.read_slice(skipped, rows, &mut self.out)
    }
}
