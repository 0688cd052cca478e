//! A file of every released version is kept. Each loads to the rows that it was written with.

use std::fs;
use std::path::PathBuf;

use zagros_rows::snapshot::{
    BlockContent, FollowedFile, RowBatch, SavedFile, SnapshotBlock, SnapshotError, SnapshotHeader, SnapshotReader,
    SnapshotWriter, TableHeader, TableTime, verify_file,
};
use zagros_zip::ZipEq;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn read(name: &str) -> Result<(SnapshotHeader, Vec<SnapshotBlock>), SnapshotError> {
    let mut reader = SnapshotReader::open(&fixture(name))?;
    let mut blocks = Vec::new();
    while let Some(block) = reader.next_block(|_| true)? {
        blocks.push(block);
    }
    Ok((reader.header().clone(), blocks))
}

fn table(number: u32, name: &str, dim: usize, element: &str, width: usize, state: &str) -> TableHeader {
    let (name, element, state) = (name.to_owned(), element.to_owned(), state.to_owned());
    TableHeader { name, number, dim, element, width, state, access: None, counter: None }
}

fn rows(ids: &[u64], slots: &[u32], access: &[u32]) -> BlockContent {
    BlockContent::Rows(RowBatch { ids: ids.to_vec(), slots: slots.to_vec(), access: access.to_vec() })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// A file with every kind of block, narrow weights, access metadata, a NaN, and the largest id.
fn version_2() -> (SnapshotHeader, Vec<u8>) {
    let clock = TableTime { steps: 1 << 33, seconds: 1_700_000_000 };
    let item = TableHeader {
        access: Some("steps".to_owned()),
        counter: Some("exact".to_owned()),
        ..table(1, "item", 3, "bf16", 3, "adagrad-row")
    };
    let tag = TableHeader { counter: Some("sketch 2 x 3".to_owned()), ..table(2, "tag", 2, "f16", 1, "sgd") };
    let tables = vec![table(0, "user", 2, "f32", 4, "adagrad"), item, tag];
    let (release, owned) = ("0.1.0".to_owned(), vec![[0, 8], [12, 16]]);
    let header = SnapshotHeader { release, server: 1, servers: 3, buckets: 16, owned, tables, follows: None };
    let mut bytes = Vec::new();
    let mut writer = SnapshotWriter::start(&mut bytes, header.clone()).unwrap();
    let mut put = || -> std::io::Result<()> {
        writer.write_clock(clock)?;
        let users = RowBatch { ids: vec![3, 1 << 40, u64::MAX], slots: user_words(), access: vec![] };
        writer.write_rows(0, &users)?;
        writer.write_rows(1, &RowBatch { ids: vec![0, 7], slots: (1..7).collect(), access: vec![40, u32::MAX] })?;
        writer.write_counts(1, &[9, 8], &[1, 2])?;
        writer.write_rows(2, &RowBatch { ids: vec![11], slots: vec![0x3c00_c000], access: vec![] })?;
        writer.write_sketch(2, 5, &[0, 1, 2, 3, 4, 5])
    };
    put().unwrap();
    writer.finish().unwrap();
    (header, bytes)
}

fn user_words() -> Vec<u32> {
    let mut words = bits(&[0.5, -0.25, 1.0, 2.0, 1e-30, f32::NAN, 0.0, 0.0, -0.0, 3.5, 0.125, 4.0]);
    words[5] = 0x7fc0_1234;
    words
}

/// The fixture of a version, which is what is written today. `UPDATE_FIXTURES=1` writes it. Do this right before a release, never
/// after it.
fn read_fixture(name: &str, (expected, bytes): (SnapshotHeader, Vec<u8>)) -> Vec<SnapshotBlock> {
    if std::env::var_os("UPDATE_FIXTURES").is_some() {
        fs::write(fixture(name), &bytes).unwrap();
    }
    assert_eq!(fs::read(fixture(name)).unwrap(), bytes);
    let (header, blocks) = read(name).unwrap();
    assert_eq!(header, expected);
    blocks
}

#[test]
fn version_2_loads_and_is_what_is_written_today() {
    let blocks = read_fixture("v2.zrows", version_2());
    let contents: Vec<BlockContent> = blocks.into_iter().map(|block| block.content).collect();
    assert_eq!(contents[0], BlockContent::Clock(TableTime { steps: 1 << 33, seconds: 1_700_000_000 }));
    assert_eq!(sorted(&contents[1], 4), sorted(&rows(&[3, 1 << 40, u64::MAX], &user_words(), &[]), 4));
    assert_eq!(sorted(&contents[2], 3), sorted(&rows(&[0, 7], &[1, 2, 3, 4, 5, 6], &[40, u32::MAX]), 3));
    let BlockContent::Counts { ids, counts } = &contents[3] else { panic!("{:?}", contents[3]) };
    let mut pairs: Vec<_> = ids.iter().zip_eq(counts).collect();
    pairs.sort_unstable();
    assert_eq!(pairs, [(&8, &2), (&9, &1)]);
    assert_eq!(contents[4], rows(&[11], &[0x3c00_c000], &[]));
    assert_eq!(contents[5], BlockContent::Sketch { stripe: 5, cells: vec![0, 1, 2, 3, 4, 5] });
    assert_eq!(contents.len(), 6);
}

/// A delta: changed rows, and the ids of rows that are gone.
fn version_3() -> (SnapshotHeader, Vec<u8>) {
    let (mut header, _) = version_2();
    header.follows = Some(FollowedFile { name: "rows-1-of-3.zrows".to_owned(), sha256: "5a".repeat(32) });
    let mut bytes = Vec::new();
    let mut writer = SnapshotWriter::start(&mut bytes, header.clone()).unwrap();
    let mut put = || -> std::io::Result<()> {
        writer.write_clock(TableTime { steps: 9, seconds: 10 })?;
        writer.write_rows(0, &RowBatch { ids: vec![7], slots: vec![1, 2, 3, 4], access: vec![] })?;
        writer.write_removed_ids(0, &[u64::MAX, 3])?;
        writer.write_removed_ids(1, &[0])
    };
    put().unwrap();
    writer.finish().unwrap();
    (header, bytes)
}

#[test]
fn version_3_loads_and_is_what_is_written_today() {
    let blocks = read_fixture("v3.zrows", version_3());
    assert_eq!(verify_file(&SavedFile::on_disk(fixture("v3.zrows")), |_| ()).unwrap().version, 3);
    assert_eq!(blocks[1], SnapshotBlock { table: 0, content: rows(&[7], &[1, 2, 3, 4], &[]) });
    let BlockContent::Removed(ids) = &blocks[2].content else { panic!("{:?}", blocks[2]) };
    assert_eq!(ids.iter().copied().collect::<std::collections::BTreeSet<_>>(), [3, u64::MAX].into());
    assert_eq!(blocks[3], SnapshotBlock { table: 1, content: BlockContent::Removed(vec![0]) });
    assert_eq!(blocks.len(), 4);
}

/// The rows in the order of their ids. The order in the file is by bucket.
fn sorted(content: &BlockContent, width: usize) -> Vec<(u64, Vec<u32>, Option<u32>)> {
    let BlockContent::Rows(rows) = content else { panic!("{content:?}") };
    let row =
        |(row, id): (usize, &u64)| (*id, rows.slots[row * width..][..width].to_vec(), rows.access.get(row).copied());
    let mut sorted: Vec<_> = rows.ids.iter().enumerate().map(row).collect();
    sorted.sort_unstable();
    sorted
}
