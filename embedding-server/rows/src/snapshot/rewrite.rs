//! Rows of one number format become rows of another: weights are rounded to the nearest number, optimiser state keeps every bit.
//!
//! ```text
//! f32, dim 4, Adagrad    w w w w       │ a a a a
//! int8                   scale · codes │ a a a a     the scale is the largest |w| / 127
//! ```
//!
//! Training rounds stochastically, because a later step must find what an earlier one could not store. Nothing follows a
//! conversion, so the nearest number has the smallest error, and equal rows become equal rows.
//!
//! A saved file is copied block by block, and a change decides what the copy has of each block.
//!
//! ```text
//! a file with its deltas   each row once, as the newest file has it ─► change ─► one file of all rows
//! a delta alone            blocks as they are                       ─► change ─► a delta, which follows another copy
//! ```

use std::io::Write;

use zagros_table::{RowBatch, WeightType};

use crate::snapshot::format::{BlockContent, FollowedFile, SnapshotBlock, TableHeader};
use crate::snapshot::{
    FileChain, RewriteError, RowConversionError, SavedFile, SnapshotError, SnapshotWriter, WrittenFile,
};

/// Layout of rows without optimiser state.
const NO_STATE: &str = "sgd";

/// What becomes of the optimiser state of rows that are converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateConversion {
    Keep,
    /// Rows have weights only, as with an optimiser without state.
    LeaveOut,
}

/// How the rows of one table are converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowConversion {
    from: WeightType,
    to: WeightType,
    saved: TableHeader,
    converted: TableHeader,
}

impl RowConversion {
    /// Rows of a saved table with weights in the format `to`.
    pub fn new(saved: &TableHeader, to: WeightType, state: StateConversion) -> Self {
        // The reader refuses a header with an unknown number format, and slots without room for the weights.
        let from = saved.weight_type().unwrap_or_default();
        let state_words = match state {
            StateConversion::Keep => saved.width.saturating_sub(from.words(saved.dim)),
            StateConversion::LeaveOut => 0,
        };
        let mut converted = saved.clone();
        to.name().clone_into(&mut converted.element);
        converted.width = to.words(saved.dim) + state_words;
        if state == StateConversion::LeaveOut {
            NO_STATE.clone_into(&mut converted.state);
        }
        Self { from, to, saved: saved.clone(), converted }
    }

    pub fn saved_header(&self) -> &TableHeader {
        &self.saved
    }

    /// Rows of a saved table without the state of their optimiser: weights alone.
    pub fn without_state(saved: &TableHeader) -> Self {
        Self::new(saved, saved.weight_type().unwrap_or_default(), StateConversion::LeaveOut)
    }

    pub fn converted_header(&self) -> &TableHeader {
        &self.converted
    }

    pub fn changes_rows(&self) -> bool {
        (self.from, self.saved.width) != (self.to, self.converted.width)
    }

    /// Converts rows, in their order. Needs the memory of both. Fails at the first weight that is not finite, or beyond the
    /// format's largest number.
    pub fn convert_rows(&self, rows: RowBatch) -> Result<RowBatch, RowConversionError> {
        if !self.changes_rows() {
            return Ok(rows);
        }
        let (dim, width, saved) = (self.saved.dim, self.converted.width, self.saved.width);
        let (read, written) = (self.from.words(dim), self.to.words(dim));
        let (mut weights, mut slots) = (vec![0.0; dim], vec![0; rows.ids.len() * width]);
        for (row, id) in rows.ids.iter().enumerate() {
            let (before, after) = (&rows.slots[row * saved..][..saved], &mut slots[row * width..][..width]);
            self.from.decode(before, &mut weights);
            if let Some(weight) = weights.iter().find(|weight| self.from != self.to && !self.to.can_store(**weight)) {
                let (table, id, weight) = (self.saved.name.clone(), *id, *weight);
                return Err(RowConversionError { table, id, weight, element: self.to });
            }
            match self.from == self.to {
                true => after[..written].copy_from_slice(&before[..read]),
                false => self.to.encode(&weights, after),
            }
            after[written..].copy_from_slice(&before[read..][..width - written]);
        }
        Ok(RowBatch { ids: rows.ids, slots, access: rows.access })
    }
}

/// The tables that are converted. Others stay as they are.
impl RowChange for Vec<RowConversion> {
    fn change_table(&self, saved: &TableHeader) -> TableHeader {
        conversion_of(self, saved).map_or(saved, RowConversion::converted_header).clone()
    }

    fn change_content(&self, saved: &TableHeader, content: BlockContent) -> Result<BlockContent, RowConversionError> {
        match (conversion_of(self, saved), content) {
            (Some(conversion), BlockContent::Rows(rows)) => conversion.convert_rows(rows).map(BlockContent::Rows),
            (_, content) => Ok(content),
        }
    }

    fn is_applied(&self, copy: &SavedFile) -> Result<bool, SnapshotError> {
        let reader = copy.open()?;
        Ok(self.iter().all(|conversion| reader.header().tables.contains(&conversion.converted)))
    }
}

fn conversion_of<'a>(conversions: &'a [RowConversion], saved: &TableHeader) -> Option<&'a RowConversion> {
    conversions.iter().find(|conversion| conversion.saved == *saved)
}

pub trait RowChange {
    fn change_table(&self, saved: &TableHeader) -> TableHeader;

    /// Answers a block with one of its kind.
    fn change_content(&self, saved: &TableHeader, content: BlockContent) -> Result<BlockContent, RowConversionError>;

    /// Whether a finished copy has nothing that was to change.
    fn is_applied(&self, copy: &SavedFile) -> Result<bool, SnapshotError>;
}

/// Copies a file to one that follows `follows` if its own file follows another. Every block is read, so every checksum is checked. Needs
/// the memory of a block and its changed copy, and of the ids of deltas.
pub fn rewrite_rows(
    chain: &FileChain,
    change: &dyn RowChange,
    follows: Option<FollowedFile>,
    to: impl Write,
) -> Result<WrittenFile, RewriteError> {
    let (Some(oldest), Some(newest)) = (chain.files().first(), chain.files().last()) else {
        return Ok(WrittenFile::default());
    };
    let mut header = newest.open()?.header().clone();
    header.tables.iter_mut().for_each(|table| *table = change.change_table(table));
    env!("CARGO_PKG_VERSION").clone_into(&mut header.release);
    header.follows = oldest.open()?.header().follows.clone().map(|followed| follows.unwrap_or(followed));
    let mut writer = SnapshotWriter::start(to, header)?;
    chain.each_block(
        |_| true,
        |SnapshotBlock { table, content }, reader| -> Result<(), RewriteError> {
            let content = match reader.header().tables.get(table) {
                Some(saved) => change.change_content(saved, content)?,
                // The time belongs to no table, and a file may have none.
                None => content,
            };
            Ok(writer.write_content(table as u32, &content)?)
        },
    )?;
    Ok(writer.finish()?)
}

#[cfg(test)]
mod tests;
