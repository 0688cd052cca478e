//! A column of a row group with what its values become.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use super::arrow::batches::FieldArrays;
use super::arrow::column::ArrowColumn;
use super::fault::{FileFault, Result, fail};
use super::groups::{ColumnDescription, GroupPlace, RowGroups, UsedColumn};
use super::output::ColumnOutput;
use super::parquet::column::ColumnReader;
use super::parquet::pages::{GroupRanges, PageFile};
use crate::IngestError;
use crate::source::open_file;

#[derive(Debug)]
pub(super) struct DecodedColumn<O> {
    reader: DecodedReader,
    pub(super) out: O,
    pub(super) position: usize,
}

#[derive(Debug)]
enum DecodedReader {
    Parquet(Box<ColumnReader>),
    Arrow(ArrowColumn),
}

enum GroupSource {
    Disk(Arc<File>),
    Store(GroupRanges),
    Arrays(FieldArrays),
}

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
        let source = match (&row_groups.place, row_groups.store_ranges(group)?) {
            (GroupPlace::Batches(batches), _) => GroupSource::Arrays(batches.batch_arrays(group)?),
            (_, Some(ranges)) => GroupSource::Store(ranges),
            (_, None) => {
                let file = open_file(path).map_err(|source| IngestError::Unreadable { path: path.into(), source })?;
                GroupSource::Disk(Arc::new(file.ok_or_else(|| IngestError::NotAFile { path: path.into() })?))
            }
        };
        Ok(Self { path, source, row_groups, group })
    }

    pub(super) fn store_ranges(&self) -> Option<GroupRanges> {
        if let GroupSource::Store(ranges) = &self.source { Some(Arc::clone(ranges)) } else { None }
    }

    /// A column, not decoded yet.
    pub(super) fn open_column<O>(
        &self,
        index: usize,
        out: impl FnOnce(&UsedColumn) -> O,
    ) -> std::result::Result<DecodedColumn<O>, IngestError> {
        let column = &self.row_groups.columns[index];
        let ranges = self.store_ranges();
        let reader = self.open_reader(column, index);
        let reader = reader
            .map_err(|fault| column_error(self.path, self.row_groups, self.group, index, ranges.as_ref(), fault))?;
        Ok(DecodedColumn { reader, out: out(column), position: column.position })
    }

    fn open_reader(&self, column: &UsedColumn, index: usize) -> Result<DecodedReader> {
        let chunks = &self.row_groups.groups[self.group].chunks;
        let file = match (&self.source, &column.description) {
            (GroupSource::Arrays(arrays), ColumnDescription::Arrow(leaf)) => {
                return match arrays.get(&leaf.field) {
                    Some(array) => ArrowColumn::new(leaf, array).map(DecodedReader::Arrow),
                    None => fail("it was not read"),
                };
            }
            (GroupSource::Disk(file), _) => PageFile::Disk(Arc::clone(file)),
            (GroupSource::Store(ranges), _) => PageFile::Object(Arc::clone(&ranges[index])),
            (GroupSource::Arrays(_), ColumnDescription::Parquet(_)) => return fail("it has no pages"),
        };
        match &column.description {
            ColumnDescription::Parquet(column) => {
                ColumnReader::new(file, chunks[index], column).map(|reader| DecodedReader::Parquet(Box::new(reader)))
            }
            ColumnDescription::Arrow(_) => fail("it has no arrays"),
        }
    }

    /// Decodes the `rows` rows behind the next `skipped` ones.
    pub(super) fn decode<O: ColumnOutput>(
        &self,
        index: usize,
        column: &mut DecodedColumn<O>,
        skipped: usize,
        rows: usize,
    ) -> std::result::Result<(), IngestError> {
        let decoded = column.decode(skipped, rows);
        let ranges = self.store_ranges();
        decoded.map_err(|fault| column_error(self.path, self.row_groups, self.group, index, ranges.as_ref(), fault))
    }
}

/// The fault of a used column in a row group, or what the store said.
pub(super) fn column_error(
    path: &Path,
    row_groups: &RowGroups,
    number: usize,
    index: usize,
    ranges: Option<&GroupRanges>,
    fault: FileFault,
) -> IngestError {
    if let Some(source) = ranges.and_then(|ranges| ranges[index].take_failure()) {
        return IngestError::Store { source };
    }
    let (FileFault(reason), column) = (fault, row_groups.columns[index].name.clone());
    IngestError::DamagedColumn { path: path.into(), unit: row_groups.unit_name(), number, column, reason }
}

impl<O: ColumnOutput> DecodedColumn<O> {
    pub(super) fn decode(&mut self, skipped: usize, rows: usize) -> Result<()> {
        match &mut self.reader {
            DecodedReader::Parquet(reader) => reader.read_slice(skipped, rows, &mut self.out),
            DecodedReader::Arrow(reader) => reader.read_slice(skipped, rows, &mut self.out),
        }
    }
}
