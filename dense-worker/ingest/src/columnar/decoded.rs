//! A column of a row group with what its values become.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use ::parquet::schema::types::ColumnDescPtr;

use super::arrow::batches::FieldArrays;
use super::arrow::column::ArrowColumn;
use super::groups::{ColumnDescription, GroupPlace, RowGroups, UsedColumn};
use super::output::ColumnOutput;
use super::parquet::column::ColumnReader;
use super::parquet::pages::{GroupRanges, PageFile};
use super::{FileFault, Result, fail};
use crate::IngestError;
use crate::source::open_file;

#[derive(Debug)]
pub(super) struct DecodedColumn<O> {
    reader: DecodedReader,
    pub(super) out: O,
    pub(super) position: usize,
    /// Its place among the used columns.
    index: usize,
}

/// What is wrong, and the place of its column among the used ones.
pub(super) type ColumnFault = (usize, FileFault);

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
    pub(super) fn open(
        path: &'a Path,
        row_groups: &'a RowGroups,
        group: usize,
    ) -> std::result::Result<Self, IngestError> {
        let source = match (&row_groups.place, row_groups.store_ranges(group)?) {
            (GroupPlace::Batches(batches), _) => GroupSource::Arrays(batches.batch_arrays(group)?),
            (_, Some(ranges)) => GroupSource::Store(ranges),
            (_, None) => GroupSource::Disk(Arc::new(open_file(path)?.0)),
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
        let reader = self.open_reader(column, index).map_err(|fault| self.explain((index, fault)))?;
        Ok(DecodedColumn { reader, out: out(column), position: column.position, index })
    }

    fn open_reader(&self, column: &UsedColumn, index: usize) -> Result<DecodedReader> {
        let chunks = &self.row_groups.groups[self.group].chunks;
        let pages = |file: PageFile, column: &ColumnDescPtr| {
            ColumnReader::new(file, chunks[index], column).map(|reader| DecodedReader::Parquet(Box::new(reader)))
        };
        match (&self.source, &column.description) {
            (GroupSource::Disk(file), ColumnDescription::Parquet(column)) => {
                pages(PageFile::Disk(Arc::clone(file)), column)
            }
            (GroupSource::Store(ranges), ColumnDescription::Parquet(column)) => {
                pages(PageFile::Object(Arc::clone(&ranges[index])), column)
            }
            (GroupSource::Arrays(arrays), ColumnDescription::Arrow(leaf)) => match arrays.get(&leaf.field) {
                Some(array) => ArrowColumn::new(leaf, array).map(DecodedReader::Arrow),
                None => fail("it was not read"),
            },
            _ => fail("it is a column of another format"),
        }
    }

    pub(super) fn explain(&self, fault: ColumnFault) -> IngestError {
        column_error(self.path, self.row_groups, self.group, self.store_ranges().as_ref(), fault)
    }
}

/// The fault of a used column in a row group, or what the store said.
pub(super) fn column_error(
    path: &Path,
    row_groups: &RowGroups,
    number: usize,
    ranges: Option<&GroupRanges>,
    fault: ColumnFault,
) -> IngestError {
    let (index, FileFault(reason)) = fault;
    if let Some(source) = ranges.and_then(|ranges| ranges[index].take_failure()) {
        return IngestError::Store { source };
    }
    let column = row_groups.columns[index].name.clone();
    IngestError::DamagedColumn { path: path.into(), unit: row_groups.unit_name(), number, column, reason }
}

impl<O: ColumnOutput> DecodedColumn<O> {
    /// Decodes the `rows` rows behind the next `skipped` ones, in place of the rows before.
    pub(super) fn decode(&mut self, skipped: usize, rows: usize) -> std::result::Result<(), ColumnFault> {
        self.out.clear_rows();
        let decoded = match &mut self.reader {
            DecodedReader::Parquet(reader) => reader.read_slice(skipped, rows, &mut self.out),
            DecodedReader::Arrow(reader) => reader.read_slice(skipped, rows, &mut self.out),
        };
        decoded.map_err(|fault| (self.index, fault))
    }
}
