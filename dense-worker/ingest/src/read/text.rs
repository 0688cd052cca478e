//! The text of a data file, compressed or not.

use std::fmt;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::IngestError;
use crate::read::compression::{FileCompression, MAGIC_BYTES, ends_early};
use crate::source::{InputFile, unreadable};

/// Compressed bytes read at a time.
const COMPRESSED_BUFFER: usize = 256 << 10;

/// The first bytes of a file that are read for its header.
const START: u64 = 64 << 10;

/// How much of a file is probably read. A store fetches little more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadReach {
    Start,
    /// Up to this byte of the text, or all of it if it is compressed.
    To(u64),
}

/// An open data file, read as text. A read fails once `cancel` is set.
#[derive(Debug)]
pub(crate) struct FileText {
    path: PathBuf,
    pub(crate) bytes: u64,
    source: TextSource,
    /// Bytes of text returned so far.
    given: u64,
    cancel: Arc<AtomicBool>,
}

enum TextSource {
    Plain(InputFile),
    Compressed { compression: FileCompression, decoder: Box<dyn Read + Send>, progress: Arc<ReadProgress> },
}

#[derive(Debug, Default)]
struct ReadProgress {
    bytes: AtomicU64,
    failed: AtomicBool,
}

/// A file that notes how much of it was read.
struct CountedSource {
    file: InputFile,
    progress: Arc<ReadProgress>,
}

impl FileText {
    /// Opens a file. Compression is recognised by the first bytes, not by the name.
    pub(crate) fn open(path: &Path, reach: ReadReach, cancel: &Arc<AtomicBool>) -> Result<Self, IngestError> {
        let (file, bytes) = InputFile::open(path)?;
        let source = detect_compression(file, reach).map_err(|source| unreadable(path, source))?;
        Ok(Self { path: path.into(), bytes, source, given: 0, cancel: Arc::clone(cancel) })
    }

    /// Opens a file that is known not to be compressed, at a byte.
    pub(crate) fn open_at(path: &Path, at: u64, end: u64, cancel: &Arc<AtomicBool>) -> Result<Self, IngestError> {
        let (mut file, bytes) = InputFile::open(path)?;
        file.expect_end(end);
        file.seek(SeekFrom::Start(at)).map_err(|source| unreadable(path, source))?;
        let source = TextSource::Plain(file);
        Ok(Self { path: path.into(), bytes, source, given: 0, cancel: Arc::clone(cancel) })
    }

    /// How the file is compressed, if it is. A compressed file can only be read from its start.
    pub(crate) fn compression(&self) -> Option<FileCompression> {
        match self.source {
            TextSource::Plain(_) => None,
            TextSource::Compressed { compression, .. } => Some(compression),
        }
    }

    pub(crate) fn compressed_bytes(&self) -> u64 {
        match &self.source {
            TextSource::Plain(_) => 0,
            TextSource::Compressed { progress, .. } => progress.bytes.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn skip_to(&mut self, offset: u64) -> Result<(), IngestError> {
        let moved = match &mut self.source {
            TextSource::Plain(file) => file.seek(SeekFrom::Start(offset)).map(drop),
            TextSource::Compressed { .. } => io::copy(&mut self.by_ref().take(offset), &mut io::sink()).map(drop),
        };
        moved.map_err(|error| self.explain(error))
    }

    /// The first bytes from here on, at most so many, and whether these are all.
    pub(crate) fn read_at_most(mut self, most: usize) -> Result<(Vec<u8>, bool), IngestError> {
        let mut bytes = Vec::new();
        let read = self.by_ref().take(most as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.explain(error))?;
        let is_all = bytes.len() <= most;
        bytes.truncate(most);
        Ok((bytes, is_all))
    }

    /// Turns a failed read into an error of this crate.
    pub(crate) fn explain(&self, source: io::Error) -> IngestError {
        if self.cancel.load(Ordering::Relaxed) {
            return IngestError::Cancelled;
        }
        let (compressed, text) = (self.compressed_bytes(), self.given);
        match &self.source {
            TextSource::Compressed { compression, progress, .. } if !progress.failed.load(Ordering::Relaxed) => {
                let format = compression.name();
                let reason = if ends_early(&source) {
                    format!(
                        "the {format} data ends early, after {compressed} compressed bytes ({text} bytes of text); the file was cut off, \
                         fetch it again"
                    )
                } else {
                    format!(
                        "damaged {format} data near compressed byte {compressed} ({text} bytes of text read): {source}; fetch the file again"
                    )
                };
                IngestError::bad_file(&self.path, reason)
            }
            _ => unreadable(&self.path, source),
        }
    }
}

impl Read for FileText {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(io::Error::other("cancelled"));
        }
        let read = match &mut self.source {
            TextSource::Plain(file) => file.read(buffer),
            TextSource::Compressed { decoder, .. } => decoder.read(buffer),
        }?;
        self.given += read as u64;
        Ok(read)
    }
}

impl Read for CountedSource {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer).inspect_err(|_| self.progress.failed.store(true, Ordering::Relaxed))?;
        self.progress.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

fn detect_compression(mut file: InputFile, reach: ReadReach) -> io::Result<TextSource> {
    let mut start = Vec::new();
    file.expect_end(match reach {
        ReadReach::Start => START,
        ReadReach::To(end) => end,
    });
    file.by_ref().take(MAGIC_BYTES as u64).read_to_end(&mut start)?;
    file.seek(SeekFrom::Start(0))?;
    let Some(compression) = FileCompression::detect(&start) else { return Ok(TextSource::Plain(file)) };
    if matches!(reach, ReadReach::To(_)) {
        file.expect_end(u64::MAX);
    }
    let progress = Arc::new(ReadProgress::default());
    let compressed = CountedSource { file, progress: Arc::clone(&progress) };
    let decoder = compression.decode(BufReader::with_capacity(COMPRESSED_BUFFER, compressed));
    Ok(TextSource::Compressed { compression, decoder, progress })
}

impl fmt::Debug for TextSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(_) => f.write_str("Plain"),
            Self::Compressed { compression, .. } => f.debug_tuple("Compressed").field(compression).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{file, gzip, long_text};

    fn read(bytes: &[u8]) -> Result<Vec<u8>, IngestError> {
        let (_folder, path) = file(bytes);
        let mut text = FileText::open(&path, ReadReach::To(u64::MAX), &Arc::default())?;
        let mut all = Vec::new();
        text.read_to_end(&mut all).map_err(|error| text.explain(error))?;
        Ok(all)
    }

    #[test]
    fn a_cut_off_gzip_file_is_named_with_its_position_and_a_damaged_one() {
        let whole = gzip(&long_text());
        let half = whole.len() / 2;
        let error = read(&whole[..half]).unwrap_err().to_string();
        let expected = format!("data.txt: the gzip data ends early, after {half} compressed bytes");
        assert!(error.contains(&expected), "{error}");
        let mut damaged = whole.clone();
        damaged[whole.len() - 6] ^= 0xff;
        let error = read(&damaged).unwrap_err().to_string();
        assert!(error.contains("damaged gzip data near compressed byte"), "{error}");
    }

    #[test]
    fn skipping_ends_at_the_same_byte_compressed_or_not() {
        for bytes in [b"0123456789".to_vec(), gzip(b"0123456789")] {
            let (_folder, path) = file(bytes);
            let mut text = FileText::open(&path, ReadReach::To(u64::MAX), &Arc::default()).unwrap();
            text.skip_to(7).unwrap();
            let mut rest = String::new();
            text.read_to_string(&mut rest).unwrap();
            assert_eq!(rest, "789");
        }
    }

    #[test]
    fn a_pipe_or_folder_in_place_of_the_file_is_refused_at_once() {
        let (folder, _) = file("");
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        for path in [pipe.as_path(), folder.path()] {
            let error = FileText::open(path, ReadReach::Start, &Arc::default()).unwrap_err();
            assert!(error.to_string().contains("neither a file nor a folder"), "{error}");
        }
    }

    #[test]
    fn a_cancelled_read_says_so() {
        let (_folder, path) = file("a\n");
        let cancel = Arc::new(AtomicBool::new(false));
        let mut text = FileText::open(&path, ReadReach::Start, &cancel).unwrap();
        cancel.store(true, Ordering::Relaxed);
        let error = text.read(&mut [0; 4]).unwrap_err();
        assert!(matches!(text.explain(error), IngestError::Cancelled));
    }
}
