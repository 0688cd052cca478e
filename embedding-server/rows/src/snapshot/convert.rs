//! Rows of one number format become rows of another: weights are rounded to the nearest number, optimiser state keeps every bit.
//!
//! ```text
//! f32, dim 4, Adagrad    w w w w       │ a a a a
//! int8                   scale · codes │ a a a a     the scale is the largest |w| / 127
//! ```
//!
//! Training rounds stochastically, because a later step must find what an earlier one could not store. Nothing follows a
//! conversion, so the nearest number has the smallest error, and equal rows become equal rows.

use std::io::{self, Write};

use zagros_table::{RowBatch, WeightType};

use crate::snapshot::format::{BlockContent, SnapshotHeader, TableHeader};
use crate::snapshot::{FileChain, SnapshotError, SnapshotWriter, WrittenFile};

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
    width: usize,
    header: TableHeader,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "row {id:#018x} of table `{table}` has the weight {weight}, which {} cannot hold; take another element, or remove the row \
     (zagros forget MODEL --table {table} --id {id:#x})",
    element.name()
)]
pub struct RowConversionError {
    pub table: String,
    pub id: u64,
    /// The first weight that is not finite, or beyond the format's largest number.
    pub weight: f32,
    pub element: WeightType,
}

#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error(transparent)]
    Read(#[from] SnapshotError),
    #[error(transparent)]
    Row(#[from] RowConversionError),
    #[error("cannot write rows: {0}")]
    Write(#[from] io::Error),
}

impl RowConversion {
    /// Rows of a saved table with weights in the format `to`.
    #[must_use]
    pub fn new(saved: &TableHeader, to: WeightType, state: StateConversion) -> Self {
        // The reader refuses a header with an unknown number format, and slots without room for the weights.
        let from = saved.weight_type().unwrap_or_default();
        let state_words = match state {
            StateConversion::Keep => saved.width.saturating_sub(from.words(saved.dim)),
            StateConversion::LeaveOut => 0,
        };
        let mut header = saved.clone();
        to.name().clone_into(&mut header.element);
        header.width = to.words(saved.dim) + state_words;
        if state == StateConversion::LeaveOut {
            NO_STATE.clone_into(&mut header.state);
        }
        Self { from, to, width: saved.width, header }
    }

    /// Rows of a saved table stay as they are.
    #[must_use]
    pub fn unchanged(saved: &TableHeader) -> Self {
        Self::new(saved, saved.weight_type().unwrap_or_default(), StateConversion::Keep)
    }

    /// Rows of a saved table without the state of their optimiser: weights alone.
    #[must_use]
    pub fn without_state(saved: &TableHeader) -> Self {
        Self::new(saved, saved.weight_type().unwrap_or_default(), StateConversion::LeaveOut)
    }

    #[must_use]
    pub fn converted_header(&self) -> &TableHeader {
        &self.header
    }

    #[must_use]
    pub fn changes_rows(&self) -> bool {
        (self.from, self.width) != (self.to, self.header.width)
    }

    /// Converts rows, in their order. Needs the memory of both. Fails at the first weight that is not finite, or beyond the
    /// format's largest number.
    pub fn convert_rows(&self, rows: RowBatch) -> Result<RowBatch, RowConversionError> {
        if !self.changes_rows() {
            return Ok(rows);
        }
        let (dim, width) = (self.header.dim, self.header.width);
        let (read, written) = (self.from.words(dim), self.to.words(dim));
        let (mut weights, mut slots) = (vec![0.0; dim], vec![0; rows.ids.len() * width]);
        for (row, id) in rows.ids.iter().enumerate() {
            let (before, after) = (&rows.slots[row * self.width..][..self.width], &mut slots[row * width..][..width]);
            self.from.decode(before, &mut weights);
            if let Some(weight) = weights.iter().find(|weight| self.from != self.to && !self.to.can_store(**weight)) {
                let (table, id, weight) = (self.header.name.clone(), *id, *weight);
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

/// Copies a file of rows, with its deltas, to one file of all rows. `conversion` says how the rows of a table are converted. Every block
/// is read, so every checksum is checked. Needs the memory of a block and its converted copy, and of the ids of deltas.
pub fn copy_converted(
    chain: &FileChain,
    conversion: impl Fn(&TableHeader) -> RowConversion,
    to: impl Write,
) -> Result<WrittenFile, CopyError> {
    let saved = chain.newest_header()?;
    let conversions: Vec<RowConversion> = saved.tables.iter().map(conversion).collect();
    let tables = conversions.iter().map(|conversion| conversion.converted_header().clone()).collect();
    let release = env!("CARGO_PKG_VERSION").to_owned();
    let mut writer = SnapshotWriter::start(to, SnapshotHeader { release, tables, follows: None, ..saved })?;
    let mut is_timed = false;
    chain.each_block(
        |_| true,
        |block, _| -> Result<(), CopyError> {
            let table = block.table as u32;
            match block.content {
                BlockContent::Rows(rows) => writer.write_rows(table, &conversions[block.table].convert_rows(rows)?)?,
                BlockContent::Counts { ids, counts } => writer.write_counts(table, &ids, &counts)?,
                BlockContent::Sketch { stripe, cells } => writer.write_sketch(table, stripe, &cells)?,
                // The newest file comes first, and its time is that of all.
                BlockContent::Clock(clock) if !is_timed => {
                    is_timed = true;
                    writer.write_clock(clock)?;
                }
                BlockContent::Clock(_) | BlockContent::Removed(_) => {}
            }
            Ok(())
        },
    )?;
    Ok(writer.finish()?)
}

#[cfg(test)]
mod tests;
