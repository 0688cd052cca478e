//! The cells of a categorical feature in a slice of rows. Performance-critical: no allocation per row.

use zagros_job::{Categorical, ColumnReading, Features};
use zagros_zip::ZipEq;

use super::decoded::{ColumnFault, DecodedColumn, GroupColumns};
use super::groups::UsedColumn;
use super::numbers::NumberLists;
use super::output::{BagCells, BagForm, ConvertedCell, ConvertedCells, IdCells, ToPart, ValueTexts};
use crate::IngestError;
use crate::category::reading::{CellReading, CrossId, missing_id, small_id};
use crate::parse::bad::FieldFault;
use crate::parse::bags::ValueWeights;
use crate::parse::missing::MissingTexts;
use crate::parse::sink::{BatchSink, RowSink};

#[derive(Debug)]
pub(super) enum CategoryCells {
    One(Box<DecodedColumn<IdCells>>),
    /// One of another reading, or the parts of a cross.
    Parts(Vec<PartCells>),
    Many(Box<DecodedColumn<BagCells>>),
    /// Any number of texts a row, each with its weight.
    Weighted(Box<WeightedCells>),
}

/// The texts of a feature, and their weights in another column.
#[derive(Debug)]
pub(super) struct WeightedCells {
    bags: DecodedColumn<BagCells>,
    numbers: DecodedColumn<NumberLists>,
    weights: ValueWeights,
}

/// The cells of one column of a feature of one value.
#[derive(Debug)]
pub(super) enum PartCells {
    Text(Box<DecodedColumn<IdCells>>),
    /// Small numbers: of ranges, or parts of dates.
    Number(Box<DecodedColumn<ConvertedCells<ToPart>>>),
}

pub(super) enum CategoryFault<'a> {
    /// Which of a feature's columns it is in.
    Part(usize, &'a DecodedColumn<ConvertedCells<ToPart>>),
    /// Weights that do not fit their values.
    Weights(Box<FieldFault>),
}

impl CategoryCells {
    /// Opens the columns of a feature, the first of which is the `first`-th used one.
    pub(super) fn open(
        features: &Features,
        feature: &Categorical,
        columns: &GroupColumns<'_>,
        first: usize,
        missing: &MissingTexts,
    ) -> Result<Self, IngestError> {
        let texts = |column: &UsedColumn| ValueTexts::new(column.kind, missing.clone());
        let parts = features.column_parts(feature);
        match (feature.values.separator(), parts.as_slice()) {
            (Some(separator), _) => {
                let separator = |column: &UsedColumn| Some(separator).filter(|_| !column.is_list());
                let weights = ValueWeights::from_feature(feature);
                let form = |column: &UsedColumn| BagForm::new(separator(column), weights.is_some());
                let bags = columns.open_column(first, |column| BagCells::new(texts(column), form(column)))?;
                let Some(weights) = weights else { return Ok(Self::Many(Box::new(bags))) };
                let lists = |column: &UsedColumn| NumberLists::new(texts(column), separator(column));
                let numbers = columns.open_column(first + 1, lists)?;
                Ok(Self::Weighted(Box::new(WeightedCells { bags, numbers, weights })))
            }
            (None, [part]) if *part.reading == ColumnReading::Text => {
                Ok(Self::One(Box::new(columns.open_column(first, |column| IdCells::new(texts(column)))?)))
            }
            (None, parts) => {
                let open = |(index, part): (usize, &zagros_job::ColumnPart<'_>)| match part.reading {
                    ColumnReading::Text => {
                        let cells = columns.open_column(first + index, |column| IdCells::new(texts(column)))?;
                        Ok(PartCells::Text(Box::new(cells)))
                    }
                    reading => {
                        let convert = ToPart(CellReading::new(reading));
                        let cells =
                            columns.open_column(first + index, |column| ConvertedCells::new(texts(column), convert))?;
                        Ok(PartCells::Number(Box::new(cells)))
                    }
                };
                Ok(Self::Parts(parts.iter().enumerate().map(open).collect::<Result<_, IngestError>>()?))
            }
        }
    }

    pub(super) fn decode(&mut self, skipped: usize, rows: usize) -> Result<(), ColumnFault> {
        match self {
            Self::One(column) => column.decode(skipped, rows),
            Self::Many(column) => column.decode(skipped, rows),
            Self::Weighted(cells) => {
                cells.bags.decode(skipped, rows)?;
                cells.numbers.decode(skipped, rows)
            }
            Self::Parts(parts) => parts.iter_mut().try_for_each(|part| part.decode(skipped, rows)),
        }
    }

    pub(super) fn has_faults(&self) -> bool {
        let is_faulty = |part: &PartCells| match part {
            PartCells::Text(_) => false,
            PartCells::Number(column) => column.out.cells.iter().any(|cell| matches!(cell, ConvertedCell::Faulty(_))),
        };
        match self {
            Self::One(_) | Self::Many(_) => false,
            Self::Parts(parts) => parts.iter().any(is_faulty),
            Self::Weighted(cells) => (0..cells.bags.out.ends.len()).any(|row| cells.put_row(row, |_, _| ()).is_err()),
        }
    }

    #[inline]
    pub(super) fn put_row<S: RowSink>(
        &self,
        feature: usize,
        row: usize,
        sink: &mut S,
    ) -> Result<(), CategoryFault<'_>> {
        match self {
            Self::One(column) => sink.id(feature, column.out.ids[row]),
            Self::Parts(parts) => sink.id(feature, combined_id(parts, row)?),
            Self::Many(column) => {
                let BagCells { ids, ends, .. } = &column.out;
                let start = row.checked_sub(1).map_or(0, |before| ends[before]);
                ids[start..ends[row]].iter().for_each(|id| sink.id(feature, *id));
                sink.end_bag(feature);
            }
            Self::Weighted(cells) => {
                let put = |id, weight| sink.weighted_id(feature, id, weight);
                cells.put_row(row, put).map_err(CategoryFault::Weights)?;
                sink.end_bag(feature);
            }
        }
        Ok(())
    }

    /// Gives all rows of the slice, none of them malformed, to `batch`.
    pub(super) fn put_column(&self, feature: usize, batch: &mut BatchSink) {
        match self {
            Self::One(column) => batch.id_column(feature, column.out.ids.iter().copied()),
            Self::Parts(parts) => {
                let rows = parts.first().map_or(0, PartCells::row_count);
                batch.id_column(feature, (0..rows).map(|row| combined_id(parts, row).unwrap_or_else(|_| missing_id())));
            }
            Self::Many(column) => batch.bag_column(feature, &column.out.ids, &column.out.ends),
            Self::Weighted(cells) => {
                // No row is malformed.
                (0..cells.bags.out.ends.len()).for_each(|row| drop(self.put_row(feature, row, batch)));
            }
        }
    }
}

impl WeightedCells {
    /// Gives the values of a row with their weights to `put`. A missing value is skipped with its weight. A cell whose only value is
    /// missing may stand beside an empty one.
    #[inline]
    fn put_row(&self, row: usize, mut put: impl FnMut(u64, f32)) -> Result<(), Box<FieldFault>> {
        let (BagCells { ids, ends, .. }, numbers, missing) = (&self.bags.out, &self.numbers.out, missing_id());
        let start = row.checked_sub(1).map_or(0, |before| ends[before]);
        let (ids, cells) = (&ids[start..ends[row]], numbers.row_items(row));
        let at_weights = |fault: Box<FieldFault>| fault.locate_field(self.numbers.position);
        let is_missing = || {
            matches!((ids, cells), ([id], []) if *id == missing)
                || matches!((ids, cells), ([], [ConvertedCell::Missing]))
        };
        if ids.len() != cells.len() && is_missing() {
            return Ok(());
        }
        if ids.len() != cells.len() {
            return Err(at_weights(self.weights.count_fault(ids.len(), cells.len())));
        }
        for (id, cell) in ids.iter().zip_eq(cells).filter(|(id, _)| **id != missing) {
            let weight = cell.as_number().and_then(|number| self.weights.accepted_weight(number));
            put(*id, weight.ok_or_else(|| at_weights(self.weights.weight_fault(numbers.shown_item(*cell))))?);
        }
        Ok(())
    }
}

/// The id of a row: of its only part, or of the combination.
#[inline]
fn combined_id(parts: &[PartCells], row: usize) -> Result<u64, CategoryFault<'_>> {
    if let [part] = parts {
        return part.row_id(row).map_err(|column| CategoryFault::Part(0, column));
    }
    let mut cross = CrossId::default();
    for (index, part) in parts.iter().enumerate() {
        cross.add(part.row_id(row).map_err(|column| CategoryFault::Part(index, column))?);
    }
    Ok(cross.finish())
}

impl PartCells {
    fn decode(&mut self, skipped: usize, rows: usize) -> Result<(), ColumnFault> {
        match self {
            Self::Text(column) => column.decode(skipped, rows),
            Self::Number(column) => column.decode(skipped, rows),
        }
    }

    fn row_count(&self) -> usize {
        match self {
            Self::Text(column) => column.out.ids.len(),
            Self::Number(column) => column.out.cells.len(),
        }
    }

    #[inline]
    fn row_id(&self, row: usize) -> Result<u64, &DecodedColumn<ConvertedCells<ToPart>>> {
        match self {
            Self::Text(column) => Ok(column.out.ids[row]),
            Self::Number(column) => match column.out.cells[row] {
                ConvertedCell::Number(number) => Ok(small_id(number as u32)),
                ConvertedCell::Missing => Ok(missing_id()),
                ConvertedCell::Faulty(_) => Err(column),
            },
        }
    }
}
