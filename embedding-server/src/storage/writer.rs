//! Writes a file of rows.

use std::io::{self, Write};

use zagros_protocol::datapath::Encoding;
use zagros_protocol::packed::{encode_ids, encode_values};
use zagros_table::Rows;

use super::format::{BLOCK_BYTES, BlockHead, END, Header, MAGIC, VERSION};

/// A file in the making.
pub(crate) struct Writer<'a, W> {
    to: &'a mut W,
    blocks: u64,
    rows: u64,
}

impl<'a, W: Write> Writer<'a, W> {
    /// Writes the header.
    pub(crate) fn start(to: &'a mut W, header: &Header) -> io::Result<Self> {
        let json = serde_json::to_vec(header)?;
        let length = u32::try_from(json.len()).map_err(io::Error::other)?;
        let preamble = [&MAGIC[..], &VERSION.to_le_bytes(), &length.to_le_bytes()].concat();
        write_with_crc(to, &[&preamble, &json])?;
        Ok(Self { to, blocks: 0, rows: 0 })
    }

    /// Writes rows of one table, in blocks of [`BLOCK_BYTES`].
    pub(crate) fn rows(&mut self, table: u32, stride: usize, rows: &Rows) -> io::Result<()> {
        let per_block = (BLOCK_BYTES / (8 + 4 * stride)).max(1);
        let slots = rows.slots.chunks(per_block * stride);
        // A slot for each id, by construction of `Rows`: the chunks come in pairs.
        for (ids, slots) in rows.ids.chunks(per_block).zip(slots) {
            self.block(table, stride, ids, slots)?;
        }
        Ok(())
    }

    /// Writes the end and answers how many rows there are.
    pub(crate) fn finish(self) -> io::Result<u64> {
        let counts = [self.blocks.to_le_bytes(), self.rows.to_le_bytes()].concat();
        write_with_crc(self.to, &[&END.to_le_bytes(), &counts])?;
        Ok(self.rows)
    }

    fn block(&mut self, table: u32, stride: usize, ids: &[u64], slots: &[u32]) -> io::Result<()> {
        let head = BlockHead { table, buckets: [0, 0], rows: ids.len() as u32, stride: stride as u32 };
        let values: Vec<f32> = slots.iter().copied().map(f32::from_bits).collect();
        let slots = encode_values(&values, Encoding::F32 as i32).map_err(io::Error::other)?;
        write_with_crc(self.to, &[&head.to_bytes(), &encode_ids(ids), &slots])?;
        self.blocks += 1;
        self.rows += ids.len() as u64;
        Ok(())
    }
}

fn write_with_crc(to: &mut impl Write, parts: &[&[u8]]) -> io::Result<()> {
    let mut crc = crc32fast::Hasher::new();
    for part in parts {
        crc.update(part);
        to.write_all(part)?;
    }
    to.write_all(&crc.finalize().to_le_bytes())
}
