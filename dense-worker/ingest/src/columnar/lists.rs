//! Numbers of a column that has any number of them in a row: a list, or a text with a separator.

use memchr::memmem::Finder;

use super::kind::ColumnValue;
use super::output::{ColumnOutput, ConvertedCell, ConvertedCells, MOST_IDS, NO_ENTRY, ToNumber, ValueTexts};
use crate::parse::missing::MissingTexts;

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
        Self { items: ConvertedCells::new(ToNumber(texts)), ends, dictionary_ends, separator, missing }
    }

    #[inline]
    pub(super) fn row_items(&self, row: usize) -> &[ConvertedCell] {
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.items.cells[start..self.ends[row]]
    }

    /// The items of a decoded row; none where the only one is missing.
    #[inline]
    pub(super) fn row_vector(&self, row: usize) -> &[ConvertedCell] {
        match self.row_items(row) {
            [ConvertedCell::Missing] => &[],
            cells => cells,
        }
    }

    pub(super) fn all_items(&self) -> &[ConvertedCell] {
        &self.items.cells
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

    pub(super) fn clear(&mut self) {
        self.items.cells.clear();
        self.ends.clear();
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
