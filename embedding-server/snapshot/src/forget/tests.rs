//! Copies of single files, of damaged ones, and of chains.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;

use proptest::prelude::*;
use zagros_table::RowBatch;

use super::*;
use crate::testing::{header, rows_of, write_test_file};
use crate::{FileChain, SnapshotTime, find_row, verify_file};

fn set(ids: impl IntoIterator<Item = u64>) -> BTreeSet<u64> {
    ids.into_iter().collect()
}

fn hexadecimal(sha256: &[u8]) -> String {
    sha256.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Copies a file beside itself, and returns what was written.
fn copy(from: &Path, to: &Path, table: &str, ids: &BTreeSet<u64>, follows: Option<FollowedFile>) -> WrittenFile {
    let mut file = File::create(to).unwrap();
    copy_without(&SavedFile::on_disk(from), (table, ids), follows, &mut file).unwrap().unwrap()
}

#[test]
fn a_copy_lacks_the_ids_in_rows_and_counts_and_has_all_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_test_file(folder.path(), &header(64), |writer| {
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
        let expected = row(&path, "item", id).filter(|_| !ids.contains(&id));
        assert_eq!(
            row(&target, "item", id).map(|row| (row.slot, row.access)),
            expected.map(|row| (row.slot, row.access))
        );
    }
}

#[test]
fn a_copy_without_unknown_ids_is_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_test_file(folder.path(), &header(64), |writer| writer.write_rows(0, &rows_of(0..100, 4, false)));
    let target = folder.path().join("copy.zrows");
    copy(&path, &target, "user", &set([500]), None);
    assert_eq!(fs::read(&target).unwrap(), fs::read(&path).unwrap());
    assert!(mentioned_ids(&SavedFile::on_disk(&path), "other", &set([1])).unwrap().is_empty());
}

#[test]
fn a_damaged_file_is_not_copied() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_test_file(folder.path(), &header(64), |writer| writer.write_rows(0, &rows_of(0..100, 4, false)));
    let mut bytes = fs::read(&path).unwrap();
    let place = bytes.len() / 2;
    bytes[place] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let refused = copy_without(&SavedFile::on_disk(&path), ("user", &set([1])), None, Vec::new()).unwrap();
    assert!(refused.unwrap_err().to_string().contains("is damaged"));
}

/// Rows of one word pattern and removals of table 0, as a file that follows another.
fn write(path: &Path, follows: Option<FollowedFile>, rows: &[(u64, u32)], removed: &[u64]) -> FollowedFile {
    let mut file = File::create(path).unwrap();
    let mut writer = SnapshotWriter::start(&mut file, crate::SnapshotHeader { follows, ..header(16) }).unwrap();
    let ids = rows.iter().map(|row| row.0).collect();
    let slots = rows.iter().flat_map(|row| [row.1; 4]).collect();
    writer.write_rows(0, &RowBatch { ids, slots, access: Vec::new() }).unwrap();
    writer.write_removed_ids(0, removed).unwrap();
    followed(path, &writer.finish().unwrap())
}

fn followed(path: &Path, written: &WrittenFile) -> FollowedFile {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    FollowedFile { name, sha256: hexadecimal(&written.sha256) }
}

fn content(files: &[SavedFile]) -> BTreeMap<u64, u32> {
    let chains = FileChain::group_files(files, |_| None).unwrap();
    assert_eq!(chains.len(), 1);
    (0..30).filter_map(|id| Some((id, chains[0].find_row("user", id).unwrap()?.0.slot[0]))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// A chain whose files are all copied without some ids is the table without them, and no file names them.
    #[test]
    fn a_copied_chain_is_the_table_without_the_ids(
        saves in prop::collection::vec(prop::collection::vec((0_u64..30, prop::option::of(any::<u32>())), 0..20), 1..4),
        gone in prop::collection::btree_set(0_u64..30, 0..10),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (mut files, mut copies, mut follows, mut copied) = (Vec::new(), Vec::new(), None, None);
        for (number, changes) in saves.iter().enumerate() {
            let changes: BTreeMap<u64, Option<u32>> = changes.iter().copied().collect();
            let rows: Vec<_> = changes.iter().filter_map(|(id, value)| Some((*id, (*value)?))).collect();
            let removed: Vec<_> = changes.iter().filter(|(_, value)| value.is_none()).map(|(id, _)| *id).collect();
            let path = folder.path().join(format!("f{number}.zrows"));
            follows = Some(write(&path, follows.take(), &rows, if number == 0 { &[] } else { &removed }));
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
