//! Small files for tests.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::snapshot::{RowBatch, SnapshotHeader, SnapshotWriter, TableHeader};

/// Two tables: `user` with 4 words and no access metadata, `item` with 3 words and access metadata.
pub(crate) fn header(buckets: u32) -> SnapshotHeader {
    let table = |number, name: &str, dim, width, state: &str, access: Option<&str>| TableHeader {
        name: name.to_owned(),
        number,
        dim,
        element: "f32".to_owned(),
        width,
        state: state.to_owned(),
        access: access.map(str::to_owned),
        counter: None,
    };
    let tables = vec![table(0, "user", 2, 4, "adagrad", None), table(1, "item", 3, 3, "sgd", Some("steps"))];
    SnapshotHeader {
        release: "0.1.0".to_owned(),
        server: 0,
        servers: 1,
        buckets,
        owned: Vec::new(),
        tables,
        follows: None,
    }
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
