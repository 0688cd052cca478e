//! A fingerprint of rows that does not depend on how the rows are divided among files.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use zagros_snapshot::{BlockContent, BlockKind, SnapshotReader};

/// The sum over all rows of a hash of table, id, slot and access metadata.
pub(crate) fn fingerprint(folder: &Path, files: &[String]) -> u64 {
    files.iter().map(|file| of_file(&folder.join(file))).fold(0, u64::wrapping_add)
}

fn of_file(path: &Path) -> u64 {
    let mut reader = SnapshotReader::open(path).expect("a file of rows");
    let mut sum = 0_u64;
    while let Some(block) = reader.next_block(|head| head.kind == BlockKind::Rows).expect("a whole file") {
        let BlockContent::Rows(rows) = block.content else { continue };
        let width = reader.header().tables[block.table].width;
        for (row, id) in rows.ids.iter().enumerate() {
            let mut hasher = DefaultHasher::new();
            (block.table, id, &rows.slots[row * width..][..width], rows.access.get(row)).hash(&mut hasher);
            sum = sum.wrapping_add(hasher.finish());
        }
    }
    sum
}
