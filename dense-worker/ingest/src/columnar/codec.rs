//! Compressed pages.

use std::io::Read;

use flate2::read::MultiGzDecoder;

use super::fault::{Fault, Result, fail};

/// How the pages of a column are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    None,
    Snappy,
    Gzip,
}

impl Codec {
    /// The codec with this number in the format.
    pub(super) fn new(number: i64) -> Result<Self> {
        Ok(match number {
            0 => Self::None,
            1 => Self::Snappy,
            2 => Self::Gzip,
            3 => return unsupported("LZO"),
            4 => return unsupported("Brotli"),
            _ => return unsupported(&format!("codec number {number}")),
        })
    }

    /// Appends the `size` bytes of a page to `out`. Never takes much more memory than a page of that size whose bytes are
    /// really there.
    pub(super) fn decompress(self, input: &[u8], size: usize, out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        match self {
            Self::None => out.extend_from_slice(input),
            Self::Snappy => snappy(input, size, out)?,
            Self::Gzip => inflate(MultiGzDecoder::new(input), size, out)?,
        }
        match out.len() - start {
            found if found == size => Ok(()),
            found => fail(format!("a page has {found} bytes, its header says {size}")),
        }
    }
}

fn unsupported<T>(codec: &str) -> Result<T> {
    fail(format!(
        "it is compressed with {codec}, which is not supported; write the file with snappy, zstd, gzip or lz4"
    ))
}

fn snappy(input: &[u8], size: usize, out: &mut Vec<u8>) -> Result<()> {
    // A copy of 64 bytes takes 2: no input becomes more than 32 times as long.
    let claimed = snap::raw::decompress_len(input).map_err(damaged)?;
    if claimed != size || size / 32 > input.len() {
        return fail(format!("{} compressed bytes that claim to be {claimed}, in a page of {size}", input.len()));
    }
    let start = out.len();
    out.resize(start + size, 0);
    snap::raw::Decoder::new().decompress(input, &mut out[start..]).map(drop).map_err(damaged)
}

fn inflate(decoder: impl Read, size: usize, out: &mut Vec<u8>) -> Result<()> {
    decoder.take(size as u64 + 1).read_to_end(out).map(drop).map_err(damaged)
}

fn damaged(error: impl std::fmt::Display) -> Fault {
    Fault::new(format!("a page cannot be decompressed: {error}"))
}
