//! The start of a data file, in bounded memory.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use crate::InitError;

/// Text that is read at most.
const SAMPLE_BYTES: u64 = 32 << 20;

/// Lines that are kept at most.
const SAMPLE_LINES: usize = 100_000;

/// What a comment starts with.
const COMMENT: char = '#';

/// Whole lines from the start of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The lines, without their ends and without empty ones.
    pub lines: Vec<String>,
    /// Whether these are all lines of the file.
    pub is_whole: bool,
    /// Whether lines that start with `#` are comments. They are not kept.
    pub has_comments: bool,
}

impl Sample {
    /// Divides text into lines. `is_whole` says whether the text is the whole file; the last line of a part is dropped,
    /// because it may be incomplete.
    #[must_use]
    pub fn of(text: &str, is_whole: bool) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let complete = if is_whole { text } else { text.rsplit_once('\n').map_or("", |(lines, _)| lines) };
        // A header or a first row does not start so.
        let has_comments = complete.lines().find(|line| !line.is_empty()).is_some_and(|line| line.starts_with(COMMENT));
        let is_kept = |line: &&str| !(line.is_empty() || has_comments && line.starts_with(COMMENT));
        let mut lines = complete.lines().filter(is_kept).map(str::to_owned);
        let kept: Vec<String> = lines.by_ref().take(SAMPLE_LINES).collect();
        Self { lines: kept, is_whole: is_whole && lines.next().is_none(), has_comments }
    }
}

/// Reads the start of a file, unpacked if it is gzip.
///
/// # Errors
/// When the file cannot be read, or is no text file.
pub fn read_sample(path: &Path) -> Result<Sample, InitError> {
    let unreadable = |source| InitError::Unreadable { path: path.into(), source };
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(InitError::NotAFile { path: path.into() });
    }
    let mut magic = Vec::new();
    File::open(path).and_then(|file| file.take(4).read_to_end(&mut magic)).map_err(unreadable)?;
    if magic == b"PAR1" {
        return Err(InitError::Parquet { path: path.into() });
    }
    let file = BufReader::new(File::open(path).map_err(unreadable)?);
    let source: Box<dyn Read> =
        if magic.starts_with(&[0x1f, 0x8b]) { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    let mut bytes = Vec::new();
    source.take(SAMPLE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    let is_whole = bytes.len() as u64 <= SAMPLE_BYTES;
    Ok(Sample::of(&String::from_utf8_lossy(&bytes), is_whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_file_loses_its_last_line() {
        assert_eq!(Sample::of("a,1\nb,2\nc", false).lines, ["a,1", "b,2"]);
        assert_eq!(Sample::of("a,1\nb,2\nc", true).lines, ["a,1", "b,2", "c"]);
    }

    #[test]
    fn comments_are_no_rows_where_the_file_starts_with_one() {
        let sample = Sample::of("# from a log\na,1\n#b,2\n", true);
        assert_eq!((sample.lines, sample.has_comments), (vec!["a,1".to_owned()], true));
        assert!(!Sample::of("a,1\n#b,2\n", true).has_comments);
    }

    #[test]
    fn folders_missing_files_and_parquet_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(read_sample(folder.path()), Err(InitError::NotAFile { .. })));
        assert!(matches!(read_sample(&folder.path().join("none")), Err(InitError::Unreadable { .. })));
        let parquet = folder.path().join("rows");
        std::fs::write(&parquet, b"PAR1....").unwrap();
        assert!(matches!(read_sample(&parquet), Err(InitError::Parquet { .. })));
    }
}
