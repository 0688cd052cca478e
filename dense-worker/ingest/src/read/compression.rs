//! Compressed text: recognised by the first bytes of a file, and decompressed as it is read.
//!
//! Every format may hold several compressed parts one after another, as they are made by `cat a.zst b.zst` and by programs
//! that compress in parallel.

use std::io::{self, BufRead, Read};

use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::MultiGzDecoder;
use lz4_flex::frame::FrameDecoder as Lz4Decoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder as ZstdDecoder};

/// The most bytes from which a format is known.
pub(crate) const MAGIC_BYTES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileCompression {
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
    Lz4,
    Bzip2,
}

impl FileCompression {
    /// The format of a file that starts so, if it is a compressed one.
    pub(crate) fn detect(start: &[u8]) -> Option<Self> {
        match start {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            // A frame, or a frame to skip, with which some programs begin.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Self::Zstd),
            [0x04, 0x22, 0x4d, 0x18, ..] => Some(Self::Lz4),
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Some(Self::Bzip2),
            _ => None,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Lz4 => "lz4",
            Self::Bzip2 => "bzip2",
        }
    }

    pub(crate) fn decode(self, file: impl BufRead + Send + 'static) -> Box<dyn Read + Send> {
        match self {
            Self::Gzip => Box::new(MultiGzDecoder::new(file)),
            Self::Zstd => Box::new(ZstdFrames { file, decoder: ZstdDecoder::new(), is_within: false }),
            Self::Lz4 => Box::new(Lz4Frames(Lz4Decoder::new(file))),
            Self::Bzip2 => Box::new(MultiBzDecoder::new(file)),
        }
    }
}

/// Whether a decoder failed because the file ends too early.
pub(crate) fn ends_early(error: &io::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::UnexpectedEof) {
            return true;
        }
        // The source of an error that wraps another one skips that one.
        let wrapped = io.and_then(io::Error::get_ref).map(|inner| inner as &(dyn std::error::Error + 'static));
        cause = wrapped.or_else(|| error.source());
    }
    false
}

/// Frames of LZ4. The decoder says "the end" after each frame.
struct Lz4Frames<R: Read>(Lz4Decoder<R>);

impl<R: BufRead> Read for Lz4Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.0.read(buffer)?;
            if read > 0 || buffer.is_empty() || self.0.get_mut().fill_buf()?.is_empty() {
                return Ok(read);
            }
        }
    }
}

/// Frames of zstd, and frames between them that are to be skipped.
struct ZstdFrames<R> {
    file: R,
    decoder: ZstdDecoder,
    is_within: bool,
}

impl<R: BufRead> ZstdFrames<R> {
    /// Begins the next frame that has text; false at the end of the file.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.file.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.file) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let length = u64::from(length);
                    if io::copy(&mut self.file.by_ref().take(length), &mut io::sink())? < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }

    fn check(&self) -> io::Result<()> {
        match (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum()) {
            (Some(expected), Some(found)) if expected != found => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum of a zstd frame is wrong"))
            }
            _ => Ok(()),
        }
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if buffer.is_empty() || (!self.is_within && !self.begin()?) {
                return Ok(0);
            }
            self.is_within = true;
            while !self.decoder.is_finished() && self.decoder.can_collect() < buffer.len() {
                let wanted = BlockDecodingStrategy::UptoBytes(buffer.len() - self.decoder.can_collect());
                self.decoder.decode_blocks(&mut self.file, wanted).map_err(io::Error::other)?;
            }
            let read = self.decoder.read(buffer)?;
            if self.decoder.is_finished() && self.decoder.can_collect() == 0 {
                self.check()?;
                self.is_within = false;
            }
            if read > 0 {
                return Ok(read);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use proptest::prelude::*;

    use super::*;
    use crate::fixture::long_text;

    const ALL: [FileCompression; 4] =
        [FileCompression::Gzip, FileCompression::Zstd, FileCompression::Lz4, FileCompression::Bzip2];

    fn compress(compression: FileCompression, text: &[u8]) -> Vec<u8> {
        match compression {
            FileCompression::Gzip => crate::fixture::gzip(text),
            FileCompression::Zstd => {
                ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest)
            }
            FileCompression::Lz4 => {
                let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
                encoder.write_all(text).unwrap();
                encoder.finish().unwrap()
            }
            FileCompression::Bzip2 => {
                let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
                encoder.write_all(text).unwrap();
                encoder.finish().unwrap()
            }
        }
    }

    fn read(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        let compression = FileCompression::detect(&bytes).expect("a known start");
        let mut text = Vec::new();
        compression.decode(Cursor::new(bytes)).read_to_end(&mut text)?;
        Ok(text)
    }

    #[test]
    fn each_format_is_known_by_its_first_bytes() {
        for compression in ALL {
            let bytes = compress(compression, b"some text");
            assert_eq!(FileCompression::detect(&bytes[..MAGIC_BYTES]), Some(compression));
        }
        for text in [&b""[..], b"B", b"BZ", b"BZh,1,2", b"1\t2", b"click,age", b"PAR1"] {
            assert_eq!(FileCompression::detect(text), None, "{text:?}");
        }
    }

    #[test]
    fn several_parts_are_one_text_even_empty_ones() {
        for compression in ALL {
            let parts = [&long_text()[..], b"", b"a\nb", b"c\n"].map(|part| compress(compression, part)).concat();
            assert_eq!(read(parts).unwrap(), [long_text(), b"a\nbc\n".to_vec()].concat(), "{compression:?}");
        }
    }

    #[test]
    fn frames_to_skip_are_skipped() {
        let skip = |bytes: &[u8]| [&[0x5a, 0x2a, 0x4d, 0x18][..], &(bytes.len() as u32).to_le_bytes(), bytes].concat();
        let (first, last) = (compress(FileCompression::Zstd, b"a\n"), compress(FileCompression::Zstd, b"b\n"));
        let file = [skip(b"index"), first, skip(b""), last, skip(b"more")].concat();
        assert_eq!(read(file.clone()).unwrap(), b"a\nb\n");
        assert!(ends_early(&read(file[..file.len() - 1].to_vec()).unwrap_err()));
    }

    #[test]
    fn a_file_that_was_cut_off_ends_early_and_a_changed_byte_is_noticed() {
        for compression in ALL {
            let mut bytes = compress(compression, &long_text());
            let middle = bytes.len() / 2;
            let error = read(bytes[..middle].to_vec()).unwrap_err();
            assert!(ends_early(&error), "{compression:?}: {error}");
            bytes[middle] ^= 0x10;
            // The frames of `compress` have no checksum with LZ4: there, text may change unnoticed.
            if compression != FileCompression::Lz4 {
                let error = read(bytes).map(|text| text.len()).unwrap_err();
                assert!(!ends_early(&error), "{compression:?}: {error}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_comes_back(text in prop::collection::vec(any::<u8>(), 0..3_000)) {
            for compression in ALL {
                prop_assert_eq!(read(compress(compression, &text)).unwrap(), text.clone());
            }
        }

        /// Damaged files end with an error or with some text, in bounded time, never with a panic.
        #[test]
        fn any_damage_is_survived(at in 0_usize..2_000, byte: u8, cut in 0_usize..2_000) {
            for compression in ALL {
                let mut bytes = compress(compression, &long_text()[..4_000]);
                let (at, cut) = (MAGIC_BYTES + at % (bytes.len() - MAGIC_BYTES), bytes.len() - cut % (bytes.len() - MAGIC_BYTES));
                bytes[at] = byte;
                bytes.truncate(cut);
                let _ = read(bytes);
            }
        }
    }
}
