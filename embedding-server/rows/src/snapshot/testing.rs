//! Small files for tests.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::snapshot::{FollowedFile, RowBatch, SnapshotHeader, SnapshotWriter, TableHeader, WrittenFile};

/// Two tables: `user` with 4 words and no access metadata, `item` with 3 words and access metadata.
pub(crate) fn header(buckets: u32) -> SnapshotHeader {
    let table = |number, name: &str, dim, width, state: &str, access: Option<&str>| {
        let (name, element, state) = (name.to_owned(), "f32".to_owned(), state.to_owned());
        let access = access.map(str::to_owned);
        TableHeader { name, number, dim, element, width, state, access, counter: None }
    };
    let tables = vec![table(0, "user", 2, 4, "adagrad", None), table(1, "item", 3, 3, "sgd", Some("steps"))];
    SnapshotHeader { release: "0.1.0".to_owned(), servers: 1, buckets, tables, ..SnapshotHeader::default() }
}

/// Rows whose words count up from the id. Access metadata is the id plus 1000.
pub(crate) fn rows_of(ids: Range<u64>, width: u32, marked: bool) -> RowBatch {
    let slots = ids.clone().flat_map(|id| (0..width).map(move |word| id as u32 + word)).collect();
    let access = if marked { ids.clone().map(|id| id as u32 + 1000).collect() } else { Vec::new() };
    RowBatch { ids: ids.collect(), slots, access }
}

pub(crate) fn write_test_file(
    folder: &Path,
    header: &SnapshotHeader,
    fill: impl FnOnce(&mut SnapshotWriter<&mut BufWriter<File>>) -> io::Result<()>,
) -> PathBuf {
    let path = folder.join("rows-0-of-1.zrows");
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
    path
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

/// What a file that follows `path` says of it.
pub(crate) fn followed(path: &Path, written: &WrittenFile) -> FollowedFile {
    let sha256 = written.sha256.iter().map(|byte| format!("{byte:02x}")).collect();
    FollowedFile { name: path.file_name().unwrap().to_string_lossy().into_owned(), sha256 }
}

/// Rows of table 0 of one word pattern.
pub(crate) fn patterned(rows: &[(u64, u32)]) -> RowBatch {
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
