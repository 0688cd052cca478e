//! The numbers of a column in a slice of rows: one a row, or any number of them, in a list or in a text with a separator.
//! Performance-critical: no allocation per row.

use memchr::memmem::Finder;
use zagros_job::Numeric;

use super::decoded::{ColumnFault, DecodedColumn, GroupColumns};
use super::groups::UsedColumn;
use super::kind::ColumnValue;
use super::output::{ColumnOutput, ConvertedCell, ConvertedCells, MOST_IDS, NO_ENTRY, ToNumber, ValueTexts};
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
            let cells = columns.open_column(index, |column| ConvertedCells::new(texts(column), ToNumber))?;
            return Ok(Self::One(Box::new(cells), cell));
        };
        let separator = |column: &UsedColumn| feature.separator.as_deref().filter(|_| !column.is_list());
        let lists = columns.open_column(index, |column| NumberLists::new(texts(column), separator(column)))?;
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
                    !matches!(column.out.row_vector(row).len(), 0) && column.out.row_vector(row).len() != *width
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
                let cells = column.out.row_vector(row);
                if !cells.is_empty() && cells.len() != *width {
                    return Err(cell.width_fault(*width, cells.len()).locate_field(column.position));
                }
                for index in 0..*width {
                    let found = cells.get(index).copied().unwrap_or(ConvertedCell::Missing);
                    if matches!(found, ConvertedCell::Faulty(_)) {
                        return Err(FieldFault::new(column.position, cell.expected(), column.out.shown_item(found)));
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

#[derive(Clone, Debug)]
pub(super) struct NumberLists {
    items: ConvertedCells<ToNumber>,
    /// Where the items of each row end.
    ends: Vec<usize>,
    dictionary_ends: Vec<usize>,
    /// What separates the numbers of a text; `None` for a list.
    separator: Option<Finder<'static>>,
    missing: MissingTexts,
}

impl NumberLists {
    pub(super) fn new(texts: ValueTexts, separator: Option<&str>) -> Self {
        let separator = separator.map(|separator| Finder::new(separator).into_owned());
        let (ends, dictionary_ends, missing) = (Vec::new(), Vec::new(), texts.missing.clone());
        Self { items: ConvertedCells::new(texts, ToNumber), ends, dictionary_ends, separator, missing }
    }

    #[inline]
    pub(super) fn row_items(&self, row: usize) -> &[ConvertedCell] {
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.items.cells[start..self.ends[row]]
    }

    /// The items of a decoded row; none where the only one is missing.
    #[inline]
    fn row_vector(&self, row: usize) -> &[ConvertedCell] {
        match self.row_items(row) {
            [ConvertedCell::Missing] => &[],
            cells => cells,
        }
    }

    pub(super) fn row_count(&self) -> usize {
        self.ends.len()
    }

    /// An item that is no number, as a message shows it.
    pub(super) fn shown_item(&self, cell: ConvertedCell) -> String {
        match cell {
            ConvertedCell::Missing => "null".to_owned(),
            ConvertedCell::Number(number) => number.to_string(),
            ConvertedCell::Faulty(text) => self.items.faulty_text(text).to_owned(),
        }
    }

    fn each_number(&mut self, value: ColumnValue<'_>, put: impl Fn(&mut ConvertedCells<ToNumber>, ColumnValue<'_>)) {
        let Self { items, separator, missing, .. } = self;
        match (separator, value) {
            (Some(separator), ColumnValue::Bytes(text)) => {
                missing.split_values(text, separator, false).for_each(|piece| put(items, ColumnValue::Bytes(piece)));
            }
            (Some(_), _) => {}
            (None, value) => put(items, value),
        }
    }
}

impl ColumnOutput for NumberLists {
    fn value(&mut self, value: ColumnValue<'_>) {
        self.each_number(value, ConvertedCells::value);
    }

    fn remember(&mut self, value: ColumnValue<'_>) {
        self.each_number(value, ConvertedCells::remember);
        self.dictionary_ends.push(self.items.dictionary.len());
    }

    fn forget(&mut self) {
        self.items.forget();
        self.dictionary_ends.clear();
    }

    #[inline]
    fn entry(&mut self, index: usize) -> Result<(), &'static str> {
        let end = self.dictionary_ends.get(index).ok_or(NO_ENTRY)?;
        let start = index.checked_sub(1).map_or(0, |before| self.dictionary_ends[before]);
        if self.items.cells.len() + (end - start) > MOST_IDS {
            return Err("its rows have too many numbers; write lists of fewer numbers");
        }
        self.items.cells.extend_from_slice(&self.items.dictionary[start..*end]);
        Ok(())
    }

    fn null(&mut self) {}

    fn null_item(&mut self) {
        self.items.cells.push(ConvertedCell::Missing);
    }

    fn end_row(&mut self) {
        self.ends.push(self.items.cells.len());
    }

    fn clear_rows(&mut self) {
        self.items.clear_rows();
        self.ends.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columnar::kind::ValueKind;

    fn lists(kind: ValueKind, separator: Option<&str>) -> NumberLists {
        NumberLists::new(ValueTexts::new(kind, (&["?"][..]).into()), separator)
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
        assert_eq!((found.row_items(1), found.shown_item(found.row_items(0)[2])), (&[][..], "\"inf\"".to_owned()));
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
        let rows = |lists: &NumberLists| (0..5).map(|row| lists.row_items(row).to_vec()).collect::<Vec<_>>();
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
        assert!(found.row_vector(1).is_empty() && found.row_vector(4).len() == 1);
        assert_eq!(entries.entry(5), Err(NO_ENTRY));
    }
}
