//! Removes rows from saved files: what a file says of some ids, and a copy of a file without them.
//!
//! A file and its deltas are copied one by one. Each copy lacks the ids in its rows, in its frequency counts and in its list
//! of rows that are gone. So no file of the chain names the ids, and every other row stays bit for bit.
//!
//! ```text
//! a.zrows            1 2 3         a copy without 2    1 3
//!   ▲ follows                        ▲ follows
//! a.delta-1.zrows    2 4, 3 gone   a copy without 2    4, 3 gone
//! ```

use std::collections::BTreeSet;
use std::io::{self, Write};

use zagros_zip::ZipEq;

use crate::find_row::row_bucket;
use crate::format::{BlockContent, BlockHeader, FollowedFile};
use crate::reader::SnapshotReader;
use crate::writer::{SnapshotWriter, WrittenFile};
use crate::{SavedFile, SnapshotError};

/// What a file says of the ids that were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MentionedIds {
    pub rows: BTreeSet<u64>,
    pub counts: BTreeSet<u64>,
    /// Ids whose rows are gone, by a delta.
    pub removed: BTreeSet<u64>,
}

impl MentionedIds {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.counts.is_empty() && self.removed.is_empty()
    }
}

/// Whether the ids of table `table` can be in a block. Blocks of other buckets are skipped.
fn may_mention(
    reader: &SnapshotReader,
    table: &str,
    ids: &BTreeSet<u64>,
) -> Option<impl Fn(&BlockHeader) -> bool + use<>> {
    let header = reader.header();
    let (number, saved) = reader.find_table(table).ok()?;
    let buckets: Option<BTreeSet<u32>> = ids.iter().map(|id| row_bucket(header, saved, *id)).collect();
    Some(move |head: &BlockHeader| {
        let is_covered = |buckets: &BTreeSet<u32>| buckets.range(head.from..head.until.max(head.from)).next().is_some();
        head.kind.is_keyed() && head.table as usize == number && buckets.as_ref().is_none_or(is_covered)
    })
}

/// Looks for ids of a table. A file that does not have the table says nothing of them.
pub fn mentioned_ids(file: &SavedFile, table: &str, ids: &BTreeSet<u64>) -> Result<MentionedIds, SnapshotError> {
    let mut reader = file.open()?;
    let mut found = MentionedIds::default();
    let Some(wanted) = may_mention(&reader, table, ids) else { return Ok(found) };
    while let Some(block) = reader.next_block(&wanted)? {
        let (mentioned, to) = match &block.content {
            BlockContent::Rows(rows) => (&rows.ids, &mut found.rows),
            BlockContent::Counts { ids, .. } => (ids, &mut found.counts),
            BlockContent::Removed(ids) => (ids, &mut found.removed),
            BlockContent::Sketch { .. } | BlockContent::Clock(_) => continue,
        };
        to.extend(mentioned.iter().filter(|id| ids.contains(id)));
    }
    Ok(found)
}

/// Copies a file without ids of a table. `follows` names the copy of the file before, if that was copied too. Every block is
/// read, so every checksum is checked. Needs the memory of one block.
/// The outer error is of `to`, the inner error says that the file is damaged.
pub fn copy_without(
    file: &SavedFile,
    (table, ids): (&str, &BTreeSet<u64>),
    follows: Option<FollowedFile>,
    to: impl Write,
) -> io::Result<Result<WrittenFile, SnapshotError>> {
    let reader = match file.open() {
        Ok(reader) => reader,
        Err(error) => return Ok(Err(error)),
    };
    let number = reader.find_table(table).ok().map(|(number, _)| number);
    let mut header = reader.header().clone();
    if let (Some(before), Some(copied)) = (&mut header.follows, follows) {
        *before = copied;
    }
    let writer = SnapshotWriter::start(to, header)?;
    copy_blocks(reader, writer, number, ids)
}

fn copy_blocks<W: Write>(
    mut reader: SnapshotReader,
    mut writer: SnapshotWriter<W>,
    number: Option<usize>,
    gone: &BTreeSet<u64>,
) -> io::Result<Result<WrittenFile, SnapshotError>> {
    loop {
        let block = match reader.next_block(|_| true) {
            Ok(Some(block)) => block,
            Ok(None) => return writer.finish().map(Ok),
            Err(error) => return Ok(Err(error)),
        };
        let table = block.table as u32;
        let stays = |id: &u64| number != Some(block.table) || !gone.contains(id);
        match block.content {
            BlockContent::Rows(mut rows) => {
                let width = reader.header().tables.get(block.table).map_or(0, |table| table.width);
                rows.retain(width, |id| stays(&id));
                writer.write_rows(table, &rows)?;
            }
            BlockContent::Counts { ids, counts } => {
                let kept = ids.into_iter().zip_eq(counts).filter(|(id, _)| stays(id));
                let (ids, counts): (Vec<u64>, Vec<u32>) = kept.unzip();
                writer.write_counts(table, &ids, &counts)?;
            }
            BlockContent::Removed(mut ids) => {
                ids.retain(stays);
                writer.write_removed_ids(table, &ids)?;
            }
            BlockContent::Sketch { stripe, cells } => writer.write_sketch(table, stripe, &cells)?,
            BlockContent::Clock(clock) => writer.write_clock(clock)?,
        }
    }
}

#[cfg(test)]
mod tests;
