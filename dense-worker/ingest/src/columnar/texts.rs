//! The texts of a column: those of a key, which go with the scores of its rows, and those of some rows, as a CSV file has them.

use std::path::Path;

use super::decoded::GroupColumns;
use super::groups::{RowGroups, RowSlice};
use super::kind::{ColumnValue, ValueKind};
use super::output::{ColumnOutput, NO_ENTRY};
use crate::IngestError;

/// Separates the values of a list in its text: the ASCII character for this purpose.
pub const LIST_SEPARATOR: char = '\u{1f}';

/// Bytes of texts of a slice of rows. A small file can name a long entry of its dictionary often.
const MOST_BYTES: usize = 256 << 20;

/// Bytes of a sampled row's text, from which on a list takes no more values.
const MOST_SAMPLED: usize = 64 << 10;

#[derive(Clone, Debug)]
pub(super) struct TextCells {
    kind: ValueKind,
    cells: TextList,
    dictionary: TextList,
    buffer: Vec<u8>,
    /// Bytes of a row's text that are kept, where its start is enough.
    most: Option<usize>,
}

#[derive(Clone, Debug, Default)]
struct TextList {
    text: Vec<u8>,
    ends: Vec<usize>,
    /// Whether the newest text has a value.
    has_value: bool,
}

impl TextList {
    fn add(&mut self, value: &[u8], most: Option<usize>) {
        let start = self.ends.last().copied().unwrap_or(0);
        if most.is_some_and(|most| self.text.len() - start > most) {
            return;
        }
        if std::mem::replace(&mut self.has_value, true) {
            self.text.push(LIST_SEPARATOR as u8);
        }
        self.text.extend_from_slice(&value[..value.len().min(most.unwrap_or(usize::MAX))]);
    }

    fn finish(&mut self) {
        self.ends.push(self.text.len());
        self.has_value = false;
    }

    fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        Some(&self.text[index.checked_sub(1).map_or(0, |before| self.ends[before])..end])
    }

    fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
        self.has_value = false;
    }
}

impl TextCells {
    pub(super) fn new(kind: ValueKind) -> Self {
        let (cells, dictionary, buffer) = Default::default();
        Self { kind, cells, dictionary, buffer, most: None }
    }

    /// The text of a decoded row; empty where it has no value. Values of a list are separated by [`LIST_SEPARATOR`].
    pub(super) fn text(&self, row: usize) -> &[u8] {
        self.cells.get(row).unwrap_or_default()
    }
}

impl ColumnOutput for TextCells {
    fn value(&mut self, value: ColumnValue<'_>) {
        self.cells.add(self.kind.text(value, &mut self.buffer), self.most);
    }

    fn remember(&mut self, value: ColumnValue<'_>) {
        self.dictionary.add(self.kind.text(value, &mut self.buffer), self.most);
        self.dictionary.finish();
    }

    fn forget(&mut self) {
        self.dictionary.clear();
    }

    fn entry(&mut self, index: usize) -> Result<(), &'static str> {
        let text = self.dictionary.get(index).ok_or(NO_ENTRY)?;
        if self.most.is_none() && self.cells.text.len() + text.len() > MOST_BYTES {
            return Err("its texts are too long for a key; name another column");
        }
        self.cells.add(text, self.most);
        Ok(())
    }

    fn null(&mut self) {}

    fn end_row(&mut self) {
        self.cells.finish();
    }

    fn clear_rows(&mut self) {
        self.cells.clear();
    }
}

/// Gives the text of each row of the slices to `take`. The slices of a row group are in order.
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
        let cells = |kind| TextCells { most: Some(MOST_SAMPLED), ..TextCells::new(kind) };
        let mut column = columns.open_column(index, |column| cells(column.kind))?;
        let mut next_row = 0;
        for slice in of_group {
            let skipped = usize::try_from(slice.start.saturating_sub(next_row)).unwrap_or(usize::MAX);
            column.decode(skipped, slice.rows).map_err(|fault| columns.explain(fault))?;
            (0..slice.rows).for_each(|row| take(column.out.text(row)));
            next_row = slice.start + slice.rows as u64;
        }
    }
    Ok(())
}
