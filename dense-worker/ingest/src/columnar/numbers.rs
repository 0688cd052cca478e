//! The cells of a numeric feature in a slice of rows. Performance-critical: no allocation per row.

use zagros_job::Numeric;

use super::decoded::{DecodedColumn, GroupColumns};
use super::fault::FileFault;
use super::groups::UsedColumn;
use super::lists::NumberLists;
use super::output::{ConvertedCell, ConvertedCells, ToNumber, ValueTexts};
use crate::IngestError;
use crate::parse::bad::FieldFault;
use crate::parse::missing::MissingTexts;
use crate::parse::numbers::NumberCell;
use crate::parse::sink::{BatchSink, RowSink};

#[derive(Debug)]
pub(super) enum NumericCells {
    /// A number a row.
    One(Box<DecodedColumn<ConvertedCells<ToNumber>>>, NumberCell),
    /// Always as many numbers a row, or none.
    Vector(Box<DecodedColumn<NumberLists>>, NumberCell, usize),
}

impl NumericCells {
    /// Opens the column of a feature, the `index`-th used one.
    pub(super) fn open(
        feature: &Numeric,
        columns: &GroupColumns<'_>,
        index: usize,
        missing: &MissingTexts,
    ) -> Result<Self, IngestError> {
        let texts = |column: &UsedColumn| ValueTexts::new(column.kind, missing.clone());
        let cell = NumberCell::new(feature);
        let Some(width) = feature.width else {
            let cells = columns.open_column(index, |column| ConvertedCells::new(ToNumber(texts(column))))?;
            return Ok(Self::One(Box::new(cells), cell));
        };
        let separator = |column: &UsedColumn| feature.separator.as_deref().filter(|_| !column.is_list());
        let lists = columns.open_column(index, |column| NumberLists::new(texts(column), separator(column)))?;
        Ok(Self::Vector(Box::new(lists), cell, width))
    }

    pub(super) fn decode(&mut self, skipped: usize, rows: usize) -> Result<(), FileFault> {
        match self {
            Self::One(column, _) => {
                column.out.cells.clear();
                column.decode(skipped, rows)
            }
            Self::Vector(column, _, _) => {
                column.out.clear();
                column.decode(skipped, rows)
            }
        }
    }

    pub(super) fn has_faults(&self) -> bool {
        let is_faulty = |cell: &ConvertedCell| matches!(cell, ConvertedCell::Faulty(_));
        match self {
            Self::One(column, _) => column.out.cells.iter().any(is_faulty),
            Self::Vector(column, _, width) => {
                let other_width = |row: usize| {
                    !matches!(column.out.row_vector(row).len(), 0) && column.out.row_vector(row).len() != *width
                };
                column.out.all_items().iter().any(is_faulty) || (0..column.out.row_count()).any(other_width)
            }
        }
    }

    /// Gives the numbers of a row, the first of which is number `first`, to `sink`. Returns the number after them.
    #[inline]
    pub(super) fn put_row<S: RowSink>(&self, first: usize, row: usize, sink: &mut S) -> Result<usize, Box<FieldFault>> {
        match self {
            Self::One(column, cell) => {
                let found = column.out.cells[row];
                if let ConvertedCell::Faulty(text) = found {
                    return Err(field_fault(column.position, cell, column.out.faulty_text(text).into()));
                }
                sink.numeric(first, found.as_number());
                Ok(first + 1)
            }
            Self::Vector(column, cell, width) => {
                let cells = column.out.row_vector(row);
                if !cells.is_empty() && cells.len() != *width {
                    let mut fault = cell.width_fault(*width, cells.len());
                    fault.column = column.position + 1;
                    return Err(fault);
                }
                for index in 0..*width {
                    let found = cells.get(index).copied().unwrap_or(ConvertedCell::Missing);
                    if matches!(found, ConvertedCell::Faulty(_)) {
                        return Err(field_fault(column.position, cell, column.out.shown_item(found)));
                    }
                    sink.numeric(first + index, found.as_number());
                }
                Ok(first + width)
            }
        }
    }

    /// Gives all rows of the slice, none of them malformed, to `batch`. Returns the number after the feature's.
    pub(super) fn put_column(&self, first: usize, batch: &mut BatchSink) -> usize {
        match self {
            Self::One(column, _) => {
                batch.number_column(first, column.out.cells.iter().map(|cell| cell.as_number()));
                first + 1
            }
            Self::Vector(column, _, width) => {
                for index in 0..*width {
                    let number = |row: usize| column.out.row_items(row).get(index).and_then(|cell| cell.as_number());
                    batch.number_column(first + index, (0..column.out.row_count()).map(number));
                }
                first + width
            }
        }
    }
}

#[cold]
fn field_fault(position: usize, cell: &NumberCell, found: String) -> Box<FieldFault> {
    Box::new(FieldFault { column: position + 1, expected: cell.expected(), found })
}
