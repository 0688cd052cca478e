//! Finds one row of a file by its id. Reads only the blocks that may contain it.

use zagros_protocol::{RowKey, TableId, bucket_of};

use crate::snapshot::format::{BlockContent, BlockHeader, BlockKind, SnapshotHeader, TableHeader};
use crate::snapshot::{SnapshotError, SnapshotReader};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRow {
    pub slot: Vec<u32>,
    /// Access metadata of the row, if the table has it.
    pub access: Option<u32>,
    pub block: u64,
}

/// The bucket of a row. `None` if the file does not state the number of buckets.
#[must_use]
pub fn row_bucket(header: &SnapshotHeader, table: &TableHeader, id: u64) -> Option<u32> {
    let key = RowKey { table: TableId(table.number), id };
    (header.buckets > 0).then(|| bucket_of(key, header.buckets))
}

/// Whether rows of a bucket can be in this file. `true` if the file does not state its buckets.
#[must_use]
pub fn may_hold_bucket(header: &SnapshotHeader, bucket: Option<u32>) -> bool {
    let Some(bucket) = bucket else { return true };
    header.owned.is_empty() || header.owned.iter().any(|[first, end]| (*first..*end).contains(&bucket))
}

/// What a file says of a row.
pub(crate) enum RowMention {
    Found(FoundRow),
    /// A delta says that it is gone.
    Removed,
}

/// Finds a row of a table. `None` if the file does not mention it.
pub(crate) fn find_mention(
    mut reader: SnapshotReader,
    table: &str,
    id: u64,
) -> Result<Option<RowMention>, SnapshotError> {
    let (number, header) = reader.find_table(table)?;
    let (width, bucket) = (header.width, row_bucket(reader.header(), header, id));
    let may_mention = |head: &BlockHeader| {
        matches!(head.kind, BlockKind::Rows | BlockKind::Removed)
            && head.table as usize == number
            && bucket.is_none_or(|bucket| head.has_bucket(bucket))
    };
    while let Some(block) = reader.next_block(may_mention)? {
        match block.content {
            BlockContent::Rows(rows) => {
                let Some(position) = rows.ids.iter().position(|other| *other == id) else { continue };
                let slot = rows.slots[position * width..][..width].to_vec();
                let access = rows.access.get(position).copied();
                return Ok(Some(RowMention::Found(FoundRow { slot, access, block: reader.blocks_read() - 1 })));
            }
            BlockContent::Removed(ids) if ids.contains(&id) => return Ok(Some(RowMention::Removed)),
            _ => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::testing::{find_row, header, rows_of, write_test_file};

    #[test]
    fn a_row_is_found_with_its_access_metadata_and_block() {
        let (_folder, path) = write_test_file(&header(64), |writer| {
            writer.write_rows(0, &rows_of(0..100, 4, false))?;
            writer.write_rows(1, &rows_of(50..90, 3, true))
        });
        let find = |table, id| find_row(SnapshotReader::open(&path).unwrap(), table, id).unwrap();
        let found = find("item", 60).unwrap();
        assert_eq!((found.slot, found.access), (vec![60, 61, 62], Some(1060)));
        assert_eq!(found.block, 1);
        assert_eq!(find("user", 60).unwrap().access, None);
        assert_eq!(find("item", 49), None);
    }

    #[test]
    fn blocks_of_other_buckets_are_not_read() {
        let (_folder, path) = write_test_file(&header(64), |writer| {
            (0..20).try_for_each(|id| writer.write_rows(0, &rows_of(id..id + 1, 4, false)))
        });
        let bucket_7 = row_bucket(&header(64), &header(64).tables[0], 7).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        // Damages every row in other buckets. The first word of a row follows its id.
        for id in (0..20_u64).filter(|id| row_bucket(&header(64), &header(64).tables[0], *id) != Some(bucket_7)) {
            let pattern = [&id.to_le_bytes()[..], &(id as u32).to_le_bytes()].concat();
            let position = bytes.windows(12).position(|window| window == pattern).unwrap();
            bytes[position + 8] ^= 0x80;
        }
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(find_row(SnapshotReader::open(&path).unwrap(), "user", 7).unwrap().unwrap().slot, [7, 8, 9, 10]);
        assert!(find_row(SnapshotReader::open(&path).unwrap(), "user", 8).is_err());
    }

    #[test]
    fn a_file_states_its_buckets() {
        let mut header = header(64);
        assert!(may_hold_bucket(&header, Some(3)) && may_hold_bucket(&header, None));
        header.owned = vec![[0, 3], [9, 12]];
        assert_eq!([2, 3, 9, 12].map(|bucket| may_hold_bucket(&header, Some(bucket))), [true, false, true, false]);
    }
}
