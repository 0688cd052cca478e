//! Small files for tests.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tempfile::TempDir;

use crate::snapshot::chain::{RowMention, find_mention};
use crate::snapshot::{
    FileChain, FollowedFile, FoundRow, RowBatch, SnapshotError, SnapshotHeader, SnapshotReader, SnapshotWriter,
    TableHeader, WrittenFile,
};

/// Two tables: `user` with 4 words and no access metadata, `item` with 3 words and access metadata.
pub(crate) fn header(buckets: u32) -> SnapshotHeader {
    let table = |number, name: &str, dim, width, state: &str, access: Option<&str>| {
        let (name, element, state) = (name.to_owned(), "f32".to_owned(), state.to_owned());
        let access = access.map(str::to_owned);
        TableHeader { name, number, dim, element, width, state, access, counter: None }
    };
    let tables = vec![table(0, "user", 2, 4, "adagrad", None), table(1, "item", 3, 3, "sgd", Some("steps"))];
    SnapshotHeader {
        release: env!("CARGO_PKG_VERSION").to_owned(),
        servers: 1,
        buckets,
        tables,
        ..SnapshotHeader::default()
    }
}

/// Rows whose words count up from the id. Access metadata is the id plus 1000.
pub(crate) fn rows_of(ids: Range<u64>, width: u32, marked: bool) -> RowBatch {
    let slots = ids.clone().flat_map(|id| (0..width).map(move |word| id as u32 + word)).collect();
    let access = if marked { ids.clone().map(|id| id as u32 + 1000).collect() } else { Vec::new() };
    RowBatch { ids: ids.collect(), slots, access }
}

pub(crate) fn write_test_file(
    header: &SnapshotHeader,
    fill: impl FnOnce(&mut SnapshotWriter<&mut BufWriter<File>>) -> io::Result<()>,
) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows-0-of-1.zrows");
    let mut file = BufWriter::new(File::create(&path).unwrap());
    let mut writer = SnapshotWriter::start(&mut file, header.clone()).unwrap();
    fill(&mut writer).unwrap();
    let written = writer.finish().unwrap();
    file.flush().unwrap();
    let checked = crate::snapshot::verify_file(&crate::snapshot::SavedFile::on_disk(&path), |_| ());
    // Some tests write damaged files.
    if let Ok(checked) = checked {
        assert_eq!((checked.sha256, checked.bytes), (written.sha256, written.bytes));
    }
    (folder, path)
}

/// A file that follows another one, or none.
pub(crate) fn write_following(
    path: &Path,
    follows: Option<FollowedFile>,
    fill: impl FnOnce(&mut SnapshotWriter<&mut File>) -> io::Result<()>,
) -> WrittenFile {
    let mut file = File::create(path).unwrap();
    let mut writer = SnapshotWriter::start(&mut file, SnapshotHeader { follows, ..header(16) }).unwrap();
    fill(&mut writer).unwrap();
    writer.finish().unwrap()
}

/// Rows of one word pattern by their ids, and the removal of other ids.
pub(crate) type Changes = BTreeMap<u64, Option<u32>>;

/// The changes of so many saves to ids below 30.
pub(crate) fn saves(count: Range<usize>) -> impl Strategy<Value = Vec<Vec<(u64, Option<u32>)>>> {
    vec(vec((0_u64..30, option::of(any::<u32>())), 0..20), count)
}

/// Writes the changes to table 0. A file that follows none removes nothing. Answers what the next file follows.
pub(crate) fn write_changes(path: &Path, follows: Option<FollowedFile>, changes: &Changes) -> FollowedFile {
    let rows: Vec<_> = changes.iter().filter_map(|(id, value)| Some((*id, (*value)?))).collect();
    let removed = changes.iter().filter(|(_, value)| value.is_none() && follows.is_some());
    let removed: Vec<_> = removed.map(|(id, _)| *id).collect();
    let written = write_following(path, follows, |writer| {
        writer.write_rows(0, &patterned(&rows))?;
        writer.write_removed_ids(0, &removed)?;
        writer.write_counts(0, &[1], &[rows.len() as u32])
    });
    followed(path, &written)
}

pub(crate) fn find_row(reader: SnapshotReader, table: &str, id: u64) -> Result<Option<FoundRow>, SnapshotError> {
    Ok(match find_mention(reader, table, id)? {
        Some(RowMention::Found(found)) => Some(found),
        Some(RowMention::Removed) | None => None,
    })
}

/// The rows of ids below 30.
pub(crate) fn found(chain: &FileChain) -> BTreeMap<u64, u32> {
    (0..30).filter_map(|id| Some((id, chain.find_row("user", id).unwrap()?.0.slot[0]))).collect()
}

/// What a file that follows `path` says of it.
pub(crate) fn followed(path: &Path, written: &WrittenFile) -> FollowedFile {
    let sha256 = written.sha256.iter().map(|byte| format!("{byte:02x}")).collect();
    FollowedFile { name: path.file_name().unwrap().to_string_lossy().into_owned(), sha256 }
}

/// Rows of table 0 of one word pattern.
fn patterned(rows: &[(u64, u32)]) -> RowBatch {
    let (ids, words): (Vec<u64>, Vec<u32>) = rows.iter().copied().unzip();
    RowBatch { ids, slots: words.into_iter().flat_map(|word| [word; 4]).collect(), access: Vec::new() }
}

/// Flips a bit in the middle of a file.
pub(crate) fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).unwrap();
}
