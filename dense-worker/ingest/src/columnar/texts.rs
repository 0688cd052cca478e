//! The texts of a key column, which go with the scores of its rows.

use super::kind::{ColumnValue, ValueKind};
use super::output::{ColumnOutput, NO_ENTRY};

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

    pub(super) fn clear(&mut self) {
        self.cells.clear();
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
}
