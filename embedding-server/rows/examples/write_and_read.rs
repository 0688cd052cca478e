//! The rows of a table as a file: writes two rows, checks the file and reads the rows back.
//!
//! `cargo run --release -p zagros-rows --example write_and_read`

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};

use zagros_rows::snapshot::{
    BlockContent, RowBatch, SavedFile, SnapshotHeader, SnapshotReader, SnapshotWriter, TableHeader, decode_part,
    slot_parts, verify_file,
};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join(zagros_rows::snapshot::file_name(0, 1));

    // The header says how a row is laid out: two weights, and Adagrad's state of one value for each weight.
    let user = TableHeader {
        name: "user".to_owned(),
        dim: 2,
        element: "f32".to_owned(),
        width: 4,
        state: "adagrad".to_owned(),
        ..TableHeader::default()
    };
    let header = SnapshotHeader { servers: 1, buckets: 64, tables: vec![user], ..SnapshotHeader::default() };

    // A slot is `[weights | state]`, as words of 32 bits.
    let slots = [0.5_f32, -0.5, 1.0, 1.0, 0.25, 0.75, 2.0, 3.0].map(f32::to_bits).to_vec();
    let rows = RowBatch { ids: vec![7, 1 << 40], slots, access: Vec::new() };

    let mut file = BufWriter::new(File::create(&path)?);
    let mut writer = SnapshotWriter::start(&mut file, header)?;
    writer.write_rows(0, &rows)?;
    let written = writer.finish()?;
    file.flush()?;
    println!("{} bytes, {} blocks", written.bytes, SnapshotReader::open(&path)?.blocks_read());

    // Every byte is checked: heads, checksums, sizes.
    let checked = verify_file(&SavedFile::on_disk(&path), |_| ())?;
    assert_eq!(checked.sha256, written.sha256);

    // The reader takes the blocks that are wanted and seeks past the others. It answers rows in the order of buckets.
    let mut reader = SnapshotReader::open(&path)?;
    let weights = slot_parts(&reader.header().tables[0]).swap_remove(0);
    let mut found = Vec::new();
    while let Some(block) = reader.next_block(|head| head.table == 0)? {
        let BlockContent::Rows(rows) = block.content else { continue };
        for (row, id) in rows.ids.iter().enumerate() {
            let mut values = Vec::new();
            decode_part(&weights, &rows.slots[row * 4..][..4], &mut values);
            println!("row {id}: weights {values:?}");
            found.push((*id, values));
        }
    }
    found.sort_by_key(|(id, _)| *id);
    assert_eq!(found, [(7, vec![0.5, -0.5]), (1 << 40, vec![0.25, 0.75])]);
    Ok(())
}
