//! The cells of a feature in a slice of rows. Performance-critical: no allocation per row.

use zagros_job::{Categorical, ColumnReading, Features, Numeric};
use zagros_zip::ZipEq;

use super::decoded::{ColumnFault, DecodedColumn, GroupColumns};
use super::groups::UsedColumn;
use super::output::{ConvertedCell, ConvertedCells, IdCells, ListCells, ToId, ToNumber, ToPart, ValueTexts};
use crate::IngestError;
use crate::category::{CellReading, CrossId, missing_id, small_id};
use crate::parse::bad::FieldFault;
use crate::parse::sink::{BatchSink, RowSink};
use crate::parse::values::{MissingTexts, NumberCell, ValueWeights};

#[derive(Debug)]
pub(super) enum NumericCells {
    /// A number a row.
    One(Box<DecodedColumn<ConvertedCells<ToNumber>>>, NumberCell),
    /// Always as many numbers a row, or none.
    Vector(Box<DecodedColumn<ListCells<ToNumber>>>, NumberCell, usize),
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
            let cells = columns.open_column(index, |column| ConvertedCells::new(texts(column), ToNumber))?;
            return Ok(Self::One(Box::new(cells), cell));
        };
        let separator = |column: &UsedColumn| feature.separator.as_deref().filter(|_| !column.is_list());
        let lists = columns.open_column(index, |column| ListCells::new(texts(column), ToNumber, separator(column)))?;
        Ok(Self::Vector(Box::new(lists), cell, width))
    }

    pub(super) fn decode(&mut self, skipped: usize, rows: usize) -> Result<(), ColumnFault> {
        match self {
            Self::One(column, _) => column.decode(skipped, rows),
            Self::Vector(column, _, _) => column.decode(skipped, rows),
        }
    }

    pub(super) fn has_faults(&self) -> bool {
        let is_faulty = |cell: &ConvertedCell| matches!(cell, ConvertedCell::Faulty(_));
        match self {
            Self::One(column, _) => column.out.cells.iter().any(is_faulty),
            Self::Vector(column, _, width) => {
                let other_width = |row: usize| {
                    !matches!(row_vector(&column.out, row).len(), 0) && row_vector(&column.out, row).len() != *width
                };
                column.out.items.cells.iter().any(is_faulty) || (0..column.out.row_count()).any(other_width)
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
                    return Err(FieldFault::new(column.position, cell.expected(), column.out.faulty_text(text)));
                }
                sink.numeric(first, found.as_number());
                Ok(first + 1)
            }
            Self::Vector(column, cell, width) => {
                let cells = row_vector(&column.out, row);
                if !cells.is_empty() && cells.len() != *width {
                    return Err(cell.width_fault(*width, cells.len()).locate_field(column.position));
                }
                for index in 0..*width {
                    let found = cells.get(index).copied().unwrap_or(ConvertedCell::Missing);
                    if matches!(found, ConvertedCell::Faulty(_)) {
                        return Err(FieldFault::new(column.position, cell.expected(), shown_item(&column.out, found)));
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

/// The numbers of a row; none where the only one is missing.
#[inline]
fn row_vector(lists: &ListCells<ToNumber>, row: usize) -> &[ConvertedCell] {
    match lists.row_items(row) {
        [ConvertedCell::Missing] => &[],
        cells => cells,
    }
}

/// An item that is no number, as a message shows it.
fn shown_item(lists: &ListCells<ToNumber>, cell: ConvertedCell) -> String {
    match cell {
        ConvertedCell::Missing => "null".to_owned(),
        ConvertedCell::Number(number) => number.to_string(),
        ConvertedCell::Faulty(text) => lists.items.faulty_text(text).to_owned(),
    }
}

#[derive(Debug)]
pub(super) enum CategoryCells {
    One(Box<DecodedColumn<IdCells>>),
    /// One of another reading, or the parts of a cross.
    Parts(Vec<PartCells>),
    Many(Box<DecodedColumn<ListCells<ToId>>>),
    /// Any number of texts a row, each with its weight.
    Weighted(Box<WeightedCells>),
}

/// The texts of a feature, and their weights in another column.
#[derive(Debug)]
pub(super) struct WeightedCells {
    bags: DecodedColumn<ListCells<ToId>>,
    numbers: DecodedColumn<ListCells<ToNumber>>,
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
        let id_cells = |column: &UsedColumn| IdCells::new(texts(column), ToId::default());
        let parts = features.column_parts(feature);
        match (feature.values.separator(), parts.as_slice()) {
            (Some(separator), _) => {
                let separator = |column: &UsedColumn| Some(separator).filter(|_| !column.is_list());
                let weights = ValueWeights::from_feature(feature);
                // A missing value keeps its place where it has a weight.
                let convert = ToId { dropped: weights.is_none().then(missing_id) };
                let bag = |column: &UsedColumn| ListCells::new(texts(column), convert, separator(column));
                let bags = columns.open_column(first, bag)?;
                let Some(weights) = weights else { return Ok(Self::Many(Box::new(bags))) };
                let lists = |column: &UsedColumn| ListCells::new(texts(column), ToNumber, separator(column));
                let numbers = columns.open_column(first + 1, lists)?;
                Ok(Self::Weighted(Box::new(WeightedCells { bags, numbers, weights })))
            }
            (None, [part]) if *part.reading == ColumnReading::Text => {
                Ok(Self::One(Box::new(columns.open_column(first, id_cells)?)))
            }
            (None, parts) => {
                let open = |(index, part): (usize, &zagros_job::ColumnPart<'_>)| match part.reading {
                    ColumnReading::Text => {
                        let cells = columns.open_column(first + index, id_cells)?;
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
            Self::Weighted(cells) => (0..cells.bags.out.row_count()).any(|row| cells.put_row(row, |_, _| ()).is_err()),
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
            Self::One(column) => sink.id(feature, column.out.cells[row]),
            Self::Parts(parts) => sink.id(feature, combined_id(parts, row)?),
            Self::Many(column) => {
                column.out.row_items(row).iter().for_each(|id| sink.id(feature, *id));
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
            Self::One(column) => batch.id_column(feature, column.out.cells.iter().copied()),
            Self::Parts(parts) => {
                let rows = parts.first().map_or(0, PartCells::row_count);
                batch.id_column(feature, (0..rows).map(|row| combined_id(parts, row).unwrap_or_else(|_| missing_id())));
            }
            Self::Many(column) => batch.bag_column(feature, &column.out.items.cells, &column.out.ends),
            Self::Weighted(cells) => {
                // No row is malformed.
                (0..cells.bags.out.row_count()).for_each(|row| drop(self.put_row(feature, row, batch)));
            }
        }
    }
}

impl WeightedCells {
    /// Gives the values of a row with their weights to `put`. A missing value is skipped with its weight. A cell whose only value is
    /// missing may stand beside an empty one.
    #[inline]
    fn put_row(&self, row: usize, mut put: impl FnMut(u64, f32)) -> Result<(), Box<FieldFault>> {
        let (numbers, missing) = (&self.numbers.out, missing_id());
        let (ids, cells) = (self.bags.out.row_items(row), numbers.row_items(row));
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
            put(*id, weight.ok_or_else(|| at_weights(self.weights.weight_fault(shown_item(numbers, *cell))))?);
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
            Self::Text(column) => column.out.cells.len(),
            Self::Number(column) => column.out.cells.len(),
        }
    }

    #[inline]
    fn row_id(&self, row: usize) -> Result<u64, &DecodedColumn<ConvertedCells<ToPart>>> {
        match self {
            Self::Text(column) => Ok(column.out.cells[row]),
            Self::Number(column) => match column.out.cells[row] {
                ConvertedCell::Number(number) => Ok(small_id(number as u32)),
                ConvertedCell::Missing => Ok(missing_id()),
                ConvertedCell::Faulty(_) => Err(column),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columnar::kind::{ColumnValue, ValueKind};
    use crate::columnar::output::{ColumnOutput, NO_ENTRY};

    fn lists(kind: ValueKind, separator: Option<&str>) -> ListCells<ToNumber> {
        ListCells::new(ValueTexts::new(kind, (&["?"][..]).into()), ToNumber, separator)
    }

    #[test]
    fn the_numbers_of_a_list_keep_their_places() {
        let mut found = lists(ValueKind::Double, None);
        found.value(ColumnValue::Float(0.5));
        found.null_item();
        found.value(ColumnValue::Float(f64::INFINITY));
        found.end_row();
        found.null();
        found.end_row();
        assert_eq!(found.row_items(0), [ConvertedCell::Number(0.5), ConvertedCell::Missing, ConvertedCell::Faulty(0)]);
        assert_eq!((found.row_items(1), shown_item(&found, found.row_items(0)[2])), (&[][..], "\"inf\"".to_owned()));
    }

    #[test]
    fn the_numbers_of_a_text_are_those_of_its_entry_in_a_dictionary() {
        let (mut found, mut entries) = (lists(ValueKind::Text, Some("|")), lists(ValueKind::Text, Some("|")));
        let texts: [&[u8]; 5] = [b"1|2.5", b"?", b"", b"3||x", b"7"];
        for (index, text) in texts.into_iter().enumerate() {
            found.value(ColumnValue::Bytes(text));
            found.end_row();
            entries.remember(ColumnValue::Bytes(text));
            entries.entry(index).unwrap();
            entries.end_row();
        }
        let rows = |lists: &ListCells<ToNumber>| (0..5).map(|row| lists.row_items(row).to_vec()).collect::<Vec<_>>();
        let (one, missing) = (ConvertedCell::Number, ConvertedCell::Missing);
        let expected = [
            vec![one(1.0), one(2.5)],
            vec![missing],
            vec![],
            vec![one(3.0), missing, ConvertedCell::Faulty(0)],
            vec![one(7.0)],
        ];
        assert_eq!(rows(&found), expected);
        assert_eq!(rows(&entries), expected);
        assert!(row_vector(&found, 1).is_empty() && row_vector(&found, 4).len() == 1);
        assert_eq!(entries.entry(5), Err(NO_ENTRY));
    }
}
