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

use crate::snapshot::find_row::row_bucket;
use crate::snapshot::format::{BlockContent, BlockHeader, FollowedFile};
use crate::snapshot::reader::SnapshotReader;
use crate::snapshot::writer::{SnapshotWriter, WrittenFile};
use crate::snapshot::{SavedFile, SnapshotError};

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
mod tests {
    use std::collections::BTreeMap;
    use std::fs::{self, File};
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::snapshot::testing::{damage, followed, found, header, rows_of, saves, write_changes, write_test_file};
    use crate::snapshot::{FileChain, SnapshotTime, find_row, verify_file};

    fn set(ids: impl IntoIterator<Item = u64>) -> BTreeSet<u64> {
        ids.into_iter().collect()
    }

    /// Copies a file beside itself, and returns what was written.
    fn copy(from: &Path, to: &Path, table: &str, ids: &BTreeSet<u64>, follows: Option<FollowedFile>) -> WrittenFile {
        let mut file = File::create(to).unwrap();
        copy_without(&SavedFile::on_disk(from), (table, ids), follows, &mut file).unwrap().unwrap()
    }

    #[test]
    fn a_copy_lacks_the_ids_in_rows_and_counts_and_has_all_else() {
        let (folder, path) = write_test_file(&header(64), |writer| {
            writer.write_rows(0, &rows_of(0..100, 4, false))?;
            writer.write_rows(1, &rows_of(0..100, 3, true))?;
            writer.write_counts(1, &[7, 200, 300], &[1, 2, 3])?;
            writer.write_sketch(1, 0, &[9, 9, 9])?;
            writer.write_clock(SnapshotTime { steps: 5, seconds: 6 })
        });
        let ids = set([7, 50, 200, 999]);
        let mentioned = mentioned_ids(&SavedFile::on_disk(&path), "item", &ids).unwrap();
        assert_eq!((mentioned.rows, mentioned.counts), (set([7, 50]), set([7, 200])));
        let target = folder.path().join("copy.zrows");
        let copied = copy(&path, &target, "item", &ids, None);
        let checked = verify_file(&SavedFile::on_disk(&target), |_| ()).unwrap();
        assert_eq!((checked.sha256, checked.rows), (copied.sha256, 198));
        assert_eq!(checked.clock, SnapshotTime { steps: 5, seconds: 6 });
        assert!(mentioned_ids(&SavedFile::on_disk(&target), "item", &ids).unwrap().is_empty());
        let row = |path: &Path, table, id| find_row(SnapshotReader::open(path).unwrap(), table, id).unwrap();
        for id in 0..100 {
            // Another table keeps its row of the same id.
            assert_eq!(row(&target, "user", id).map(|row| row.slot), row(&path, "user", id).map(|row| row.slot));
            let item = |path: &Path| row(path, "item", id).map(|row| (row.slot, row.access));
            assert_eq!(item(&target), item(&path).filter(|_| !ids.contains(&id)));
        }
    }

    #[test]
    fn a_copy_without_unknown_ids_is_the_same_file() {
        let (folder, path) = write_test_file(&header(64), |writer| writer.write_rows(0, &rows_of(0..100, 4, false)));
        let target = folder.path().join("copy.zrows");
        copy(&path, &target, "user", &set([500]), None);
        assert_eq!(fs::read(&target).unwrap(), fs::read(&path).unwrap());
        assert!(mentioned_ids(&SavedFile::on_disk(&path), "other", &set([1])).unwrap().is_empty());
    }

    #[test]
    fn a_damaged_file_is_not_copied() {
        let (_folder, path) = write_test_file(&header(64), |writer| writer.write_rows(0, &rows_of(0..100, 4, false)));
        damage(&path);
        let refused = copy_without(&SavedFile::on_disk(&path), ("user", &set([1])), None, Vec::new()).unwrap();
        assert!(refused.unwrap_err().to_string().contains("is damaged"));
    }

    fn content(files: &[SavedFile]) -> BTreeMap<u64, u32> {
        let chains = FileChain::group_files(files, |_| None).unwrap();
        assert_eq!(chains.len(), 1);
        found(&chains[0])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// A chain whose files are all copied without some ids is the table without them, and no file names them.
        #[test]
        fn a_copied_chain_is_the_table_without_the_ids(
            saves in saves(1..4),
            gone in prop::collection::btree_set(0_u64..30, 0..10),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let (mut files, mut copies, mut follows, mut copied) = (Vec::new(), Vec::new(), None, None);
            for (number, changes) in saves.iter().enumerate() {
                let path = folder.path().join(format!("f{number}.zrows"));
                follows = Some(write_changes(&path, follows.take(), &changes.iter().copied().collect()));
                let target = folder.path().join(format!("c{number}.zrows"));
                let written = copy(&path, &target, "user", &gone, copied.take());
                copied = Some(followed(&target, &written));
                files.push(SavedFile::on_disk(path));
                copies.push(SavedFile::on_disk(target));
            }
            for copy in &copies {
                prop_assert!(mentioned_ids(copy, "user", &gone).unwrap().is_empty());
            }
            let mut expected = content(&files);
            expected.retain(|id, _| !gone.contains(id));
            prop_assert_eq!(content(&copies), expected);
        }
    }
}
