//! What is known of a Parquet file before its rows are read.
//!
//! A split `[start, end)` owns the row groups whose middle is in it: neighbours agree on the border, so each row group has
//! one owner, whatever the borders are.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::codec::Codec;
use super::fault::{Fault, Result, fail};
use super::footer::{Chunk, Footer, Group};
use super::kind::{Kind, Physical};
use super::pages::ChunkPlace;
use super::schema::{self, Leaf, Levels};
use crate::IngestError;
use crate::source::open_file;

/// The first and the last bytes of every file.
pub(crate) const MAGIC: &[u8; 4] = b"PAR1";
/// The last bytes of a file whose footer is encrypted.
const ENCRYPTED: &[u8; 4] = b"PARE";
/// Bytes behind the footer: its length and the magic.
const TAIL: u64 = 8;

/// The columns and row groups of a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RowGroups {
    /// The columns that are read, in the order in which they were asked for.
    pub(crate) columns: Vec<UsedColumn>,
    /// The row groups, in order.
    pub(crate) groups: Vec<RowGroup>,
}

/// A column that is read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UsedColumn {
    /// Its name.
    pub(crate) name: String,
    /// Its place among the columns of the file, from 0.
    pub(crate) position: usize,
    pub(super) physical: Physical,
    pub(crate) kind: Kind,
    pub(super) levels: Levels,
}

/// A row group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowGroup {
    /// Its first row in the file, from 0.
    pub(crate) first_row: u64,
    /// Its rows.
    pub(crate) rows: u64,
    /// The byte that decides which split owns it.
    middle: u64,
    /// The pages of each used column.
    pub(super) chunks: Vec<ChunkPlace>,
}

/// Some rows of a row group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowSlice {
    /// The row group, from 0.
    pub(crate) group: usize,
    /// The first row, from 0 in the row group.
    pub(crate) start: u64,
    /// How many.
    pub(crate) rows: usize,
}

/// An opened file.
#[derive(Debug)]
pub(crate) struct ParquetFooter {
    footer: Footer,
    leaves: Vec<Leaf>,
    /// Size of the file.
    pub(crate) bytes: u64,
}

impl UsedColumn {
    /// Whether a row can have several values.
    pub(crate) fn is_list(&self) -> bool {
        self.levels.repetition > 0
    }
}

impl RowGroups {
    /// The row groups that the split `[start, end)` owns.
    pub(crate) fn owned(&self, start: u64, end: u64) -> std::ops::Range<usize> {
        let before = |byte: u64| self.groups.partition_point(|group| group.middle < byte);
        before(start)..before(end)
    }
}

impl ParquetFooter {
    /// Reads the footer of a file.
    pub(crate) fn open(path: &Path) -> std::result::Result<Self, IngestError> {
        let unreadable = |source| IngestError::Unreadable { path: path.into(), source };
        let file = open_file(path).map_err(unreadable)?.ok_or_else(|| IngestError::NotAFile { path: path.into() })?;
        let bytes = file.metadata().map_err(unreadable)?.len();
        let read = Self::read(&file, bytes);
        read.map_err(|Fault(reason)| IngestError::DamagedFooter { path: path.into(), reason })
    }

    fn read(file: &File, bytes: u64) -> Result<Self> {
        let read = |at: u64, length: usize| {
            let mut part = vec![0; length];
            let read = file.read_exact_at(&mut part, at);
            read.map(|()| part).or_else(|error| fail(format!("cannot read at byte {at}: {error}")))
        };
        if bytes < MAGIC.len() as u64 + TAIL || read(0, 4)? != MAGIC {
            return fail("it does not start with PAR1, so it is no Parquet file; check data.format");
        }
        let tail = read(bytes - TAIL, TAIL as usize)?;
        if tail[4..] == *ENCRYPTED {
            return fail("it is encrypted; write it without encryption");
        }
        if tail[4..] != *MAGIC {
            return fail("it does not end with PAR1: it was cut off, or its writer did not finish; write it again");
        }
        let length = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
        let room = bytes - TAIL - MAGIC.len() as u64;
        if length > room {
            return fail(format!("its footer claims {length} bytes, the file has room for {room}"));
        }
        let footer = Footer::parse(&read(bytes - TAIL - length, length as usize)?)?;
        let leaves = schema::leaves(&footer.schema)?;
        Ok(Self { footer, leaves, bytes })
    }

    /// The names of the columns, in their order.
    pub(crate) fn names(&self) -> Vec<String> {
        self.leaves.iter().map(|leaf| leaf.name.clone()).collect()
    }

    /// The row groups with the columns at `positions`.
    pub(crate) fn row_groups(
        &self,
        path: &Path,
        positions: impl IntoIterator<Item = usize>,
    ) -> std::result::Result<RowGroups, IngestError> {
        let columns: Vec<UsedColumn> =
            positions.into_iter().map(|position| self.used(path, position)).collect::<std::result::Result<_, _>>()?;
        let (mut groups, mut first_row, mut last_middle) = (Vec::new(), 0_u64, 0);
        for (number, group) in self.footer.groups.iter().enumerate() {
            let chunks = columns.iter().map(|column| {
                self.place(group, column).map_err(|Fault(reason)| IngestError::DamagedColumn {
                    path: path.into(),
                    row_group: number,
                    column: column.name.clone(),
                    reason,
                })
            });
            let chunks = chunks.collect::<std::result::Result<_, _>>()?;
            // Never before an earlier one, also where a writer sorted them otherwise: owners are found by bisection.
            last_middle = self.middle(group).max(last_middle);
            groups.push(RowGroup { first_row, rows: group.rows, middle: last_middle, chunks });
            first_row = first_row.saturating_add(group.rows);
        }
        Ok(RowGroups { columns, groups })
    }

    fn used(&self, path: &Path, position: usize) -> std::result::Result<UsedColumn, IngestError> {
        let Leaf { name, values, levels } = &self.leaves[position];
        let (physical, kind) = values.clone().map_err(|Fault(reason)| IngestError::UnusableColumn {
            path: path.into(),
            column: name.clone(),
            reason,
        })?;
        Ok(UsedColumn { name: name.clone(), position, physical, kind, levels: *levels })
    }

    fn place(&self, group: &Group, column: &UsedColumn) -> Result<ChunkPlace> {
        let Some(chunk) = group.chunks.get(column.position) else {
            return fail(format!(
                "the row group has {} columns, the schema has {}",
                group.chunks.len(),
                self.leaves.len()
            ));
        };
        if chunk.elsewhere {
            return fail("its pages are encrypted or in another file; write the file in one piece without encryption");
        }
        let (start, end) = (chunk.start(), chunk.start().saturating_add(chunk.bytes));
        if start < MAGIC.len() as u64 || end > self.bytes - TAIL {
            return fail(format!("its pages are said to be at bytes {start} to {end} of {}", self.bytes));
        }
        if chunk.physical != column.physical.number() {
            return fail(format!("it has the type {} here, the schema says {:?}", chunk.physical, column.physical));
        }
        if column.levels.repetition == 0 && chunk.values != group.rows {
            return fail(format!("it has {} values in a row group of {} rows", chunk.values, group.rows));
        }
        Ok(ChunkPlace { start, end, codec: Codec::new(chunk.codec)? })
    }

    /// The middle of all pages of a row group, inside the file.
    fn middle(&self, group: &Group) -> u64 {
        let start = group.chunks.iter().map(Chunk::start).min().unwrap_or(0);
        let bytes = group.chunks.iter().fold(0_u64, |sum, chunk| sum.saturating_add(chunk.bytes));
        start.saturating_add(bytes / 2).min(self.bytes - 1)
    }
}
