//! The texts of a column: those of a key, which go with the scores of its rows, and those of some rows, as a CSV file has them.

use std::path::Path;

use super::decoded::GroupColumns;
use super::groups::{RowGroups, RowSlice};
use super::kind::{ColumnValue, ValueKind};
use super::output::{ColumnOutput, NO_ENTRY};
use crate::IngestError;

/// Bytes of texts of a slice of rows. A small file can name a long entry of its dictionary often.
const MOST_BYTES: usize = 256 << 20;

#[derive(Clone, Debug)]
pub(super) struct TextCells {
    kind: ValueKind,
    cells: TextList,
    dictionary: TextList,
    buffer: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
struct TextList {
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl TextList {
    fn push(&mut self, text: &[u8]) {
        self.text.extend_from_slice(text);
        self.ends.push(self.text.len());
    }

    fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        Some(&self.text[index.checked_sub(1).map_or(0, |before| self.ends[before])..end])
    }

    fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
    }
}

impl TextCells {
    pub(super) fn new(kind: ValueKind) -> Self {
        Self { kind, cells: TextList::default(), dictionary: TextList::default(), buffer: Vec::new() }
    }

    /// The text of a decoded row; empty where it has no value.
    pub(super) fn text(&self, row: usize) -> &[u8] {
        self.cells.get(row).unwrap_or_default()
    }
}

impl ColumnOutput for TextCells {
    fn value(&mut self, value: ColumnValue<'_>) {
        self.cells.push(self.kind.text(value, &mut self.buffer));
    }

    fn remember(&mut self, value: ColumnValue<'_>) {
        self.dictionary.push(self.kind.text(value, &mut self.buffer));
    }

    fn forget(&mut self) {
        self.dictionary.clear();
    }

    fn entry(&mut self, index: usize) -> Result<(), &'static str> {
        let text = self.dictionary.get(index).ok_or(NO_ENTRY)?;
        if self.cells.text.len() + text.len() > MOST_BYTES {
            return Err("its texts are too long for a key; name another column");
        }
        self.cells.push(text);
        Ok(())
    }

    fn null(&mut self) {
        self.cells.push(b"");
    }

    fn clear_rows(&mut self) {
        self.cells.clear();
    }
}

/// Separates the values of a list in its text: the ASCII character for this purpose.
pub const LIST_SEPARATOR: char = '\u{1f}';

/// Bytes of a row's text, from which on a list takes no more values.
const MOST_ROW: usize = 64 << 10;

/// Gives the text of each row of the slices to `take`. The slices of a row group are in order. Values of a list are separated by
/// [`LIST_SEPARATOR`].
pub(crate) fn column_texts(
    path: &Path,
    row_groups: &RowGroups,
    index: usize,
    slices: &[RowSlice],
    mut take: impl FnMut(&[u8]),
) -> Result<(), IngestError> {
    for of_group in slices.chunk_by(|one, next| one.group == next.group) {
        let group = of_group[0].group;
        let columns = GroupColumns::open(path, row_groups, group)?;
        let mut column = columns.open_column(index, |column| RowTexts::new(column.kind))?;
        let mut next_row = 0;
        for slice in of_group {
            let skipped = usize::try_from(slice.start.saturating_sub(next_row)).unwrap_or(usize::MAX);
            column.decode(skipped, slice.rows).map_err(|fault| columns.explain(fault))?;
            column.out.rows.drain(..).for_each(|text| take(&text));
            next_row = slice.start + slice.rows as u64;
        }
    }
    Ok(())
}

struct RowTexts {
    kind: ValueKind,
    rows: Vec<Vec<u8>>,
    row: Vec<u8>,
    has_value: bool,
    dictionary: Vec<Vec<u8>>,
    buffer: Vec<u8>,
}

impl RowTexts {
    fn new(kind: ValueKind) -> Self {
        let (rows, row, dictionary, buffer) = Default::default();
        Self { kind, rows, row, has_value: false, dictionary, buffer }
    }

    fn add(row: &mut Vec<u8>, has_value: &mut bool, text: &[u8]) {
        if row.len() > MOST_ROW {
            return;
        }
        if *has_value {
            row.extend_from_slice(LIST_SEPARATOR.encode_utf8(&mut [0; 4]).as_bytes());
        }
        row.extend_from_slice(text);
        *has_value = true;
    }
}

impl ColumnOutput for RowTexts {
    fn value(&mut self, value: ColumnValue<'_>) {
        let text = self.kind.text(value, &mut self.buffer);
        Self::add(&mut self.row, &mut self.has_value, text);
    }

    fn remember(&mut self, value: ColumnValue<'_>) {
        let text = self.kind.text(value, &mut self.buffer);
        self.dictionary.push(text[..text.len().min(MOST_ROW)].to_vec());
    }

    fn forget(&mut self) {
        self.dictionary.clear();
    }

    fn entry(&mut self, index: usize) -> Result<(), &'static str> {
        let text = self.dictionary.get(index).ok_or(NO_ENTRY)?;
        Self::add(&mut self.row, &mut self.has_value, text);
        Ok(())
    }

    fn null(&mut self) {}

    fn end_row(&mut self) {
        self.rows.push(std::mem::take(&mut self.row));
        self.has_value = false;
    }
}
