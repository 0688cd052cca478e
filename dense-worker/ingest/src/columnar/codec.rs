//! Compressed pages.

use std::io::Read;

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

use super::fault::{Fault, Result, fail};

/// How the pages of a column are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    None,
    Snappy,
    Gzip,
    Zstd,
    Lz4,
    /// LZ4 in the framing of Hadoop, or without any: the format never said which.
    OldLz4,
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
            5 => Self::OldLz4,
            6 => Self::Zstd,
            7 => Self::Lz4,
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
            Self::Zstd => zstd(input, size, out)?,
            Self::Lz4 => lz4(input, size, out)?,
            Self::OldLz4 => old_lz4(input, size, out)?,
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

/// Frames, one after another.
fn zstd(mut input: &[u8], size: usize, out: &mut Vec<u8>) -> Result<()> {
    let start = out.len();
    while !input.is_empty() {
        let frame = StreamingDecoder::new(&mut input).map_err(damaged)?;
        let left = (start + size).saturating_sub(out.len());
        inflate(frame, left, out)?;
        if out.len() > start + size {
            break;
        }
    }
    Ok(())
}

fn lz4(input: &[u8], size: usize, out: &mut Vec<u8>) -> Result<()> {
    // A byte of a length stands for at most 255 bytes.
    if size / 255 > input.len() {
        return fail(format!("{} compressed bytes in a page of {size}", input.len()));
    }
    let start = out.len();
    out.resize(start + size, 0);
    let written = lz4_flex::block::decompress_into(input, &mut out[start..]).map_err(damaged)?;
    out.truncate(start + written);
    Ok(())
}

/// Parts, each with its sizes before it, or the block alone.
fn old_lz4(input: &[u8], size: usize, out: &mut Vec<u8>) -> Result<()> {
    let (start, mut rest) = (out.len(), input);
    while let Some((sizes, more)) = rest.split_first_chunk::<8>() {
        let [plain, packed] =
            [0, 4].map(|at| u32::from_be_bytes([sizes[at], sizes[at + 1], sizes[at + 2], sizes[at + 3]]));
        let room = (start + size).saturating_sub(out.len());
        let Some((part, after)) = more.split_at_checked(packed as usize).filter(|_| plain as usize <= room) else {
            break;
        };
        if lz4(part, plain as usize, out).is_err() {
            break;
        }
        rest = after;
    }
    if rest.is_empty() && out.len() == start + size {
        return Ok(());
    }
    out.truncate(start);
    lz4(input, size, out)
}

fn inflate(decoder: impl Read, size: usize, out: &mut Vec<u8>) -> Result<()> {
    decoder.take(size as u64 + 1).read_to_end(out).map(drop).map_err(damaged)
}

fn damaged(error: impl std::fmt::Display) -> Fault {
    Fault::new(format!("a page cannot be decompressed: {error}"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    const ALL: [Codec; 6] = [Codec::None, Codec::Snappy, Codec::Gzip, Codec::Zstd, Codec::Lz4, Codec::OldLz4];

    fn compress(codec: Codec, bytes: &[u8]) -> Vec<u8> {
        match codec {
            Codec::None => bytes.to_vec(),
            Codec::Snappy => snap::raw::Encoder::new().compress_vec(bytes).unwrap(),
            Codec::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
                encoder.write_all(bytes).unwrap();
                encoder.finish().unwrap()
            }
            Codec::Zstd => compress_to_vec(bytes, CompressionLevel::Fastest),
            Codec::Lz4 => lz4_flex::block::compress(bytes),
            Codec::OldLz4 => {
                let part = |bytes: &[u8]| {
                    let packed = lz4_flex::block::compress(bytes);
                    let sizes = [bytes.len() as u32, packed.len() as u32].map(u32::to_be_bytes).concat();
                    [sizes, packed].concat()
                };
                let (first, second) = bytes.split_at(bytes.len() / 2);
                [part(first), part(second)].concat()
            }
        }
    }

    #[test]
    fn a_page_is_as_long_as_its_header_says() {
        let text = b"the same text again, the same text again".repeat(20);
        for codec in ALL {
            let packed = compress(codec, &text);
            let mut out = b"before".to_vec();
            codec.decompress(&packed, text.len(), &mut out).unwrap();
            assert_eq!(out[6..], text);
            for size in [0, text.len() - 1, text.len() + 1, 100 << 20] {
                let mut out = Vec::new();
                assert!(codec.decompress(&packed, size, &mut out).is_err(), "{codec:?} {size}");
                assert!(out.capacity() < 1 << 20, "{codec:?} {size}: {}", out.capacity());
            }
        }
    }

    #[test]
    fn old_pages_without_framing_are_read_too() {
        let (text, mut out) = (b"abcdefgh".repeat(9), Vec::new());
        Codec::OldLz4.decompress(&compress(Codec::Lz4, &text), text.len(), &mut out).unwrap();
        assert_eq!(out, text);
    }

    #[test]
    fn a_codec_that_is_not_supported_is_named() {
        assert!(Codec::new(4).unwrap_err().to_string().starts_with("it is compressed with Brotli, which is not"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_page_or_refused(bytes: Vec<u8>, size in 0_usize..5_000) {
            for codec in ALL {
                let mut out = Vec::new();
                if codec.decompress(&bytes, size, &mut out).is_ok() {
                    prop_assert_eq!(out.len(), size);
                }
            }
        }

        #[test]
        fn bytes_are_read_back(bytes: Vec<u8>) {
            for codec in ALL {
                let mut out = Vec::new();
                codec.decompress(&compress(codec, &bytes), bytes.len(), &mut out).unwrap();
                prop_assert_eq!(&out, &bytes);
            }
        }
    }
}
