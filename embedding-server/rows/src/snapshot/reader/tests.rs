//! Written files are read back. Every later change of a file is reported with its place.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;
use crate::snapshot::testing::{header, rows_of, write_test_file};
use crate::snapshot::{RowBatch, SavedFile, SnapshotWriter, TableTime, verify_file};

fn all(path: &Path) -> Result<Vec<SnapshotBlock>, SnapshotError> {
    let mut reader = SnapshotReader::open(path)?;
    let mut blocks = Vec::new();
    while let Some(block) = reader.next_block(|_| true)? {
        blocks.push(block);
    }
    Ok(blocks)
}

/// A file with one block of each kind.
fn one_of_each() -> (tempfile::TempDir, PathBuf) {
    write_test_file(&header(8), |writer| {
        writer.write_clock(TableTime { steps: 1 << 40, seconds: 7 })?;
        writer.write_rows(0, &rows_of(0..3, 4, false))?;
        writer.write_counts(0, &[u64::MAX, 5], &[2, 1])?;
        writer.write_sketch(1, 63, &[9, 0, u32::MAX])
    })
}

#[test]
fn every_kind_comes_back() {
    let (_folder, path) = one_of_each();
    let blocks = all(&path).unwrap();
    assert_eq!(blocks[0].content, BlockContent::Clock(TableTime { steps: 1 << 40, seconds: 7 }));
    assert_eq!(blocks[2].content, BlockContent::Counts { ids: vec![5, u64::MAX], counts: vec![1, 2] });
    let content = BlockContent::Sketch { stripe: 63, cells: vec![9, 0, u32::MAX] };
    assert_eq!(blocks[3], SnapshotBlock { table: 1, content });
    assert_eq!(blocks.len(), 4);
}

#[test]
fn unwanted_blocks_are_skipped_and_still_counted() {
    let (_folder, path) = one_of_each();
    let mut reader = SnapshotReader::open(&path).unwrap();
    let block = reader.next_block(|head| head.kind == BlockKind::Sketch).unwrap();
    assert!(matches!(block.unwrap().content, BlockContent::Sketch { .. }));
    assert_eq!(reader.next_block(|_| false).unwrap(), None);
    assert_eq!((reader.blocks_read(), reader.rows_read()), (4, 3));
    assert_eq!(reader.bytes_read(), fs::metadata(&path).unwrap().len());
}

/// Ten blocks of one run. The owner of a fifth of the buckets reads two of them, or three with the borders.
#[test]
fn a_fifth_of_the_buckets_is_in_about_a_fifth_of_the_blocks() {
    let mut header = header(1024);
    (header.tables[0].dim, header.tables[0].width) = (1024, 1024);
    let ids: Vec<u64> = (0..10_000).collect();
    let rows = RowBatch { slots: vec![0; 1024 * ids.len()], ids, access: Vec::new() };
    let (_folder, path) = write_test_file(&header, |writer| writer.write_rows(0, &rows));
    for first in (0..1024).step_by(205) {
        let mut reader = SnapshotReader::open(&path).unwrap();
        let ours = |head: &BlockHeader| head.from < first + 205 && first < head.until;
        let mut read = 0;
        while reader.next_block(ours).unwrap().is_some() {
            read += 1;
        }
        assert_eq!(reader.blocks_read(), 10);
        assert!((2..=3).contains(&read), "{read} blocks of buckets {first}…");
    }
}

#[test]
fn a_file_without_tables_is_a_file() {
    let empty = SnapshotHeader { tables: Vec::new(), ..header(8) };
    let (_folder, path) = write_test_file(&empty, |writer| writer.write_clock(TableTime::default()));
    assert_eq!(verify_file(&SavedFile::on_disk(&path), |_| ()).unwrap().blocks, 1);
}

#[test]
fn columns_of_another_length_are_not_written() {
    let mut writer = SnapshotWriter::start(Vec::new(), header(8)).unwrap();
    let mut short = rows_of(0..3, 3, true);
    short.slots.pop();
    let unmarked = rows_of(0..3, 3, false);
    let refusals = [
        (writer.write_rows(1, &short), "8 slots to write, expected 9"),
        (writer.write_rows(1, &unmarked), "0 values of access metadata to write, expected 3"),
        (writer.write_rows(2, &unmarked), "table 2 in a file of 2"),
        (writer.write_counts(0, &[1], &[]), "0 counts to write, expected 1"),
    ];
    for (refused, expected) in refusals {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Invariant CK-1, from the reader's side.
#[test]
fn any_flipped_bit_and_any_truncation_is_reported() {
    let (_folder, path) = one_of_each();
    let good = fs::read(&path).unwrap();
    let refused = |bytes: &[u8], what: String| {
        fs::write(&path, bytes).unwrap();
        let error = verify_file(&SavedFile::on_disk(&path), |_| ()).expect_err(&what).to_string();
        assert!(error.contains("rows-0-of-1.zrows"), "{what}: {error}");
    };
    for position in 0..good.len() {
        let mut bytes = good.clone();
        bytes[position] ^= 1 << (position % 8);
        refused(&bytes, format!("bit flipped in byte {position}"));
        refused(&good[..position], format!("cut to {position} bytes"));
    }
    refused(&[&good[..], &[0]].concat(), "a byte too many".to_owned());
    fs::write(&path, &good).unwrap();
    let mut passed = 0;
    let checked = verify_file(&SavedFile::on_disk(&path), |bytes| passed += bytes).unwrap();
    assert_eq!((checked.blocks, checked.rows, checked.bytes, checked.version), (4, 3, good.len() as u64, 2));
    assert_eq!(passed, checked.bytes);
}

#[test]
fn damage_is_reported_with_block_place_and_both_checksums() {
    let (_folder, path) = write_test_file(&header(1), |writer| {
        writer.write_rows(0, &rows_of(0..3, 4, false))?;
        writer.write_rows(1, &rows_of(0..3, 3, true))
    });
    let mut bytes = fs::read(&path).unwrap();
    // The last word of access metadata is before its CRC and before the end of 28 + 16 + 4 bytes.
    let last = bytes.len() - 48 - 4 - 1;
    bytes[last] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let offset = bytes.len() - 48 - 4 - 3 * (8 + 16) - 28;
    let refused = verify_file(&SavedFile::on_disk(&path), |_| ()).unwrap_err();
    let SnapshotError::Corrupt { expected, found, .. } = &refused else { panic!("{refused}") };
    assert_ne!(expected, found);
    let checksums = format!("should have CRC-32 {expected:08x}, but has {found:08x}");
    let place = format!("block 1 (rows of table `item`) at byte {offset} {checksums}");
    assert!(refused.to_string().contains(&place), "{refused}\n{place}");
}

/// A file with this JSON header, version and the right CRC.
fn headed(folder: &Path, version: u32, json: &str) -> PathBuf {
    let path = folder.join("rows-0-of-1.zrows");
    let preamble = [&MAGIC[..], &version.to_le_bytes(), &(json.len() as u32).to_le_bytes(), json.as_bytes()].concat();
    fs::write(&path, [&preamble[..], &crc32fast::hash(&preamble).to_le_bytes()].concat()).unwrap();
    path
}

fn opened(path: &Path) -> String {
    SnapshotReader::open(path).err().map_or_else(String::new, |error| error.to_string())
}

#[test]
fn headers_of_later_releases_and_contradictory_ones_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let with_table = |table: &str| format!(r#"{{"release":"","server":0,"servers":1,"tables":[{table}]}}"#);
    let table = r#"{"name":"user","number":0,"dim":4,"element":"f32","width":4,"state":"sgd"}"#;
    let later = r#"{"release":"2.5.0","all":"new"}"#.to_owned();
    let cases = [
        // Its rows could not be placed.
        (2, with_table(""), "states no buckets"),
        (4, later.clone(), "format version 4, this release reads versions 2 to 3"),
        (4, later, "written by release 2.5.0: use that release or a later one"),
        (2, with_table(&table.replace("f32", "f8")), "table `user` of f8, which this release does not know"),
        (2, with_table(&table.replace("\"width\":4", "\"width\":3")), "in slots of 3"),
        (2, with_table("7"), "the header of"),
    ];
    for (version, json, expected) in cases {
        let reported = opened(&headed(folder.path(), version, &json));
        assert!(reported.contains(expected), "{json}: {reported}");
    }
}

#[test]
fn other_files_are_distinguished() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    let short = "is cut off: the header at byte 0 needs 8 bytes, but only 0 are left";
    for (content, expected) in [
        (&b"these are notes about the run"[..], "is not a file of rows"),
        (b"", "is not a file of rows"),
        (&MAGIC[..], short),
    ] {
        fs::write(&path, content).unwrap();
        assert!(opened(&path).contains(expected), "{}", opened(&path));
    }
    assert!(opened(&folder.path().join("none.zrows")).contains("cannot read"));
    assert!(opened(folder.path()).contains("cannot read"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Words keep every bit, also in NaNs.
    #[test]
    fn rows_come_back_word_for_word(ids in prop::collection::btree_set(any::<u64>(), 0..60), words: [u32; 8], buckets in 1_u32..2000) {
        let ids: Vec<u64> = ids.into_iter().collect();
        let word = |index: usize| words[index % 8].rotate_left(index as u32);
        let rows = RowBatch {
            slots: (0..3 * ids.len()).map(word).collect(),
            access: (0..ids.len()).map(|index| !word(index)).collect(),
            ids,
        };
        let (_folder, path) = write_test_file(&header(buckets), |writer| writer.write_rows(1, &rows));
        let mut found = std::collections::BTreeMap::new();
        for block in all(&path).unwrap() {
            let BlockContent::Rows(rows) = block.content else { panic!("rows") };
            for (row, id) in rows.ids.iter().enumerate() {
                prop_assert!(found.insert(*id, (rows.slots[3 * row..][..3].to_vec(), rows.access[row])).is_none());
            }
        }
        prop_assert_eq!(found.len(), rows.ids.len());
        for (row, id) in rows.ids.iter().enumerate() {
            prop_assert_eq!(&found[id], &(rows.slots[3 * row..][..3].to_vec(), rows.access[row]));
        }
    }

    /// Arbitrary bytes never cause a panic or a large allocation.
    #[test]
    fn any_bytes_after_a_good_header_are_refused(junk: Vec<u8>, kind in 0_u32..6, entries: u32, words in 0_u32..4) {
        let (_folder, path) = write_test_file(&header(8), |_| Ok(()));
        let mut bytes = fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - 48);
        let head: Vec<u8> = [kind, 0, 0, 8, entries, words].into_iter().flat_map(u32::to_le_bytes).collect();
        bytes.extend(&head);
        bytes.extend(crc32fast::hash(&head).to_le_bytes());
        bytes.extend(junk);
        fs::write(&path, &bytes).unwrap();
        prop_assert!(verify_file(&SavedFile::on_disk(&path), |_| ()).is_err());
    }
}
