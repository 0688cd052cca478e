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

use zagros_zip::ZipEq;

use crate::snapshot::chain::row_bucket;
use crate::snapshot::format::{BlockContent, BlockHeader, TableHeader};
use crate::snapshot::rewrite::RowChange;
use crate::snapshot::{RowConversionError, SavedFile, SnapshotError, SnapshotReader};

/// Ids of a table whose rows are to go.
#[derive(Clone, Debug)]
pub struct ForgottenIds {
    pub table: String,
    pub ids: BTreeSet<u64>,
}

/// What a file says of the ids that were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MentionedIds {
    pub rows: BTreeSet<u64>,
    pub counts: BTreeSet<u64>,
    /// Ids whose rows are gone, by a delta.
    pub removed: BTreeSet<u64>,
}

impl MentionedIds {
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.counts.is_empty() && self.removed.is_empty()
    }
}

impl ForgottenIds {
    /// Looks for the ids in a file. A file that does not have the table says nothing of them.
    pub fn find_mentions(&self, file: &SavedFile) -> Result<MentionedIds, SnapshotError> {
        let mut reader = file.open()?;
        let mut found = MentionedIds::default();
        let Some(wanted) = self.may_mention(&reader) else { return Ok(found) };
        while let Some(block) = reader.next_block(&wanted)? {
            let (mentioned, to) = match &block.content {
                BlockContent::Rows(rows) => (&rows.ids, &mut found.rows),
                BlockContent::Counts { ids, .. } => (ids, &mut found.counts),
                BlockContent::Removed(ids) => (ids, &mut found.removed),
                BlockContent::Sketch { .. } | BlockContent::Clock(_) => continue,
            };
            to.extend(mentioned.iter().filter(|id| self.ids.contains(id)));
        }
        Ok(found)
    }

    /// Tells which blocks can have the ids. Blocks of other buckets are skipped.
    fn may_mention(&self, reader: &SnapshotReader) -> Option<impl Fn(&BlockHeader) -> bool + use<>> {
        let header = reader.header();
        let (number, saved) = reader.find_table(&self.table).ok()?;
        let buckets: BTreeSet<u32> = self.ids.iter().map(|id| row_bucket(header, saved, *id)).collect();
        Some(move |head: &BlockHeader| {
            let is_covered = buckets.range(head.from..head.until.max(head.from)).next().is_some();
            head.kind.is_keyed() && head.table as usize == number && is_covered
        })
    }
}

impl RowChange for ForgottenIds {
    fn change_table(&self, saved: &TableHeader) -> TableHeader {
        saved.clone()
    }

    fn change_content(&self, saved: &TableHeader, content: BlockContent) -> Result<BlockContent, RowConversionError> {
        if saved.name != self.table {
            return Ok(content);
        }
        let stays = |id: &u64| !self.ids.contains(id);
        Ok(match content {
            BlockContent::Rows(mut rows) => {
                rows.retain(saved.width, |id| stays(&id));
                BlockContent::Rows(rows)
            }
            BlockContent::Counts { ids, counts } => {
                let (ids, counts) = ids.into_iter().zip_eq(counts).filter(|(id, _)| stays(id)).unzip();
                BlockContent::Counts { ids, counts }
            }
            BlockContent::Removed(mut ids) => {
                ids.retain(stays);
                BlockContent::Removed(ids)
            }
            content => content,
        })
    }

    fn is_applied(&self, copy: &SavedFile) -> Result<bool, SnapshotError> {
        Ok(self.find_mentions(copy)?.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs::{self, File};
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::snapshot::testing::{
        damage, find_row, followed, found, header, rows_of, saves, write_changes, write_test_file,
    };
    use crate::snapshot::{FileChain, FollowedFile, TableTime, WrittenFile, rewrite_rows, verify_file};

    fn forgotten(table: &str, ids: impl IntoIterator<Item = u64>) -> ForgottenIds {
        ForgottenIds { table: table.to_owned(), ids: ids.into_iter().collect() }
    }

    fn chain(path: &Path) -> FileChain {
        FileChain::new(vec![SavedFile::on_disk(path)])
    }

    /// Copies a file beside itself, and returns what was written.
    fn copy(from: &Path, to: &Path, gone: &ForgottenIds, follows: Option<FollowedFile>) -> WrittenFile {
        rewrite_rows(&chain(from), gone, follows, File::create(to).unwrap()).unwrap()
    }

    #[test]
    fn a_copy_lacks_the_ids_in_rows_and_counts_and_has_all_else() {
        let (folder, path) = write_test_file(&header(64), |writer| {
            writer.write_rows(0, &rows_of(0..100, 4, false))?;
            writer.write_rows(1, &rows_of(0..100, 3, true))?;
            writer.write_counts(1, &[7, 200, 300], &[1, 2, 3])?;
            writer.write_sketch(1, 0, &[9, 9, 9])?;
            writer.write_clock(TableTime { steps: 5, seconds: 6 })
        });
        let gone = forgotten("item", [7, 50, 200, 999]);
        let mentioned = gone.find_mentions(&SavedFile::on_disk(&path)).unwrap();
        assert_eq!((mentioned.rows, mentioned.counts), (BTreeSet::from([7, 50]), BTreeSet::from([7, 200])));
        assert!(!gone.is_applied(&SavedFile::on_disk(&path)).unwrap());
        let target = folder.path().join("copy.zrows");
        let copied = copy(&path, &target, &gone, None);
        let checked = verify_file(&SavedFile::on_disk(&target), |_| ()).unwrap();
        assert_eq!((checked.sha256, checked.rows), (copied.sha256, 198));
        assert_eq!(checked.clock, TableTime { steps: 5, seconds: 6 });
        assert!(gone.is_applied(&SavedFile::on_disk(&target)).unwrap());
        let row = |path: &Path, table, id| find_row(SnapshotReader::open(path).unwrap(), table, id).unwrap();
        for id in 0..100 {
            // Another table keeps its row of the same id.
            assert_eq!(row(&target, "user", id).map(|row| row.slot), row(&path, "user", id).map(|row| row.slot));
            let item = |path: &Path| row(path, "item", id).map(|row| (row.slot, row.access));
            assert_eq!(item(&target), item(&path).filter(|_| !gone.ids.contains(&id)));
        }
    }

    #[test]
    fn a_copy_without_unknown_ids_is_the_same_file() {
        let (folder, path) = write_test_file(&header(64), |writer| writer.write_rows(0, &rows_of(0..100, 4, false)));
        let target = folder.path().join("copy.zrows");
        copy(&path, &target, &forgotten("user", [500]), None);
        assert_eq!(fs::read(&target).unwrap(), fs::read(&path).unwrap());
        assert!(forgotten("other", [1]).is_applied(&SavedFile::on_disk(&path)).unwrap());
    }

    #[test]
    fn a_damaged_file_is_not_copied() {
        let (_folder, path) = write_test_file(&header(64), |writer| writer.write_rows(0, &rows_of(0..100, 4, false)));
        damage(&path);
        let refused = rewrite_rows(&chain(&path), &forgotten("user", [1]), None, Vec::new()).unwrap_err();
        assert!(refused.to_string().contains("is damaged"), "{refused}");
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
            ids in prop::collection::btree_set(0_u64..30, 0..10),
        ) {
            let gone = forgotten("user", ids);
            let folder = tempfile::tempdir().unwrap();
            let (mut files, mut copies, mut follows, mut copied) = (Vec::new(), Vec::new(), None, None);
            for (number, changes) in saves.iter().enumerate() {
                let path = folder.path().join(format!("f{number}.zrows"));
                follows = Some(write_changes(&path, follows.take(), &changes.iter().copied().collect()));
                let target = folder.path().join(format!("c{number}.zrows"));
                let written = copy(&path, &target, &gone, copied.take());
                copied = Some(followed(&target, &written));
                files.push(SavedFile::on_disk(path));
                copies.push(SavedFile::on_disk(target));
            }
            for copy in &copies {
                prop_assert!(gone.is_applied(copy).unwrap());
            }
            let mut expected = content(&files);
            expected.retain(|id, _| !gone.ids.contains(id));
            prop_assert_eq!(content(&copies), expected);
        }
    }
}
