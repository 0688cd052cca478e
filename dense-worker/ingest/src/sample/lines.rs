//! Lines of text files, compressed or not.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::{PLACES, RowSample, SampleLimits, SampledRows, spread_indices};
use crate::IngestError;
use crate::content::full_lines;
use crate::read::text::{FileText, ReadReach};

pub(super) fn sample_rows(files: &[&Path], each: SampleLimits) -> Result<RowSample, IngestError> {
    let (mut lines, mut is_whole, mut is_spread) = (Vec::new(), true, true);
    for path in files {
        let mut part = lines_of_file(path, each)?;
        if !lines.is_empty() && part.lines.first() == lines.first() {
            part.lines.remove(0);
        }
        lines.append(&mut part.lines);
        is_whole &= part.is_whole;
        is_spread &= part.is_spread;
    }
    Ok(RowSample { files: files.len(), names: Vec::new(), is_whole, is_spread, rows: SampledRows::Lines(lines) })
}

struct FileLines {
    lines: Vec<String>,
    is_whole: bool,
    is_spread: bool,
}

/// Lines of a file: all, or those of several places.
fn lines_of_file(path: &Path, limits: SampleLimits) -> Result<FileLines, IngestError> {
    let text = FileText::open(path, ReadReach::To(limits.bytes as u64), &Arc::default())?;
    let (size, is_compressed) = (text.bytes, text.compression().is_some());
    if !is_compressed && size > limits.bytes as u64 {
        return lines_at_places(path, size, limits);
    }
    let (mut bytes, is_read) = read_at_most(text, limits.bytes)?;
    if !is_read {
        drop_last_line(&mut bytes);
    }
    let (lines, has_all) = thin_lines(&bytes, limits.rows);
    Ok(FileLines { lines, is_whole: is_read && has_all, is_spread: is_read })
}

/// Lines of evenly spaced places of a file that is not compressed.
fn lines_at_places(path: &Path, size: u64, limits: SampleLimits) -> Result<FileLines, IngestError> {
    let length = (limits.bytes / PLACES) as u64;
    let mut lines = Vec::new();
    for place in 0..PLACES as u64 {
        let offset = place * (size - length) / (PLACES as u64 - 1);
        let (mut bytes, _) =
            read_at_most(FileText::open_at(path, offset, offset + length, &Arc::default())?, length as usize)?;
        if offset + length < size {
            drop_last_line(&mut bytes);
        }
        let first = if place == 0 { 0 } else { memchr::memchr(b'\n', &bytes).map_or(bytes.len(), |end| end + 1) };
        lines.append(&mut thin_lines(&bytes[first..], limits.rows / PLACES).0);
    }
    Ok(FileLines { lines, is_whole: false, is_spread: true })
}

/// At most `most` bytes, and whether these are all.
fn read_at_most(mut text: FileText, most: usize) -> Result<(Vec<u8>, bool), IngestError> {
    let mut bytes = Vec::new();
    let read = text.by_ref().take(most as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| text.explain(error))?;
    let is_all = bytes.len() <= most;
    bytes.truncate(most);
    Ok((bytes, is_all))
}

/// The last line of a part may be incomplete.
fn drop_last_line(bytes: &mut Vec<u8>) {
    bytes.truncate(memchr::memrchr(b'\n', bytes).map_or(0, |end| end + 1));
}

/// At most `most` of the lines that are not empty, evenly spaced, and whether these are all.
fn thin_lines(bytes: &[u8], most: usize) -> (Vec<String>, bool) {
    let lines: Vec<&[u8]> = full_lines(bytes).collect();
    let kept = spread_indices(lines.len(), most.max(1))
        .map(|line| String::from_utf8_lossy(lines[line]).into_owned())
        .collect();
    (kept, lines.len() <= most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    fn lines(bytes: &[u8], rows: usize, most: usize) -> FileLines {
        let (_folder, path) = fixture::file(bytes);
        lines_of_file(&path, SampleLimits { rows, bytes: most, files: 1 }).unwrap()
    }

    fn text() -> String {
        std::iter::once("head\n".to_owned()).chain((0..10_000).map(|row| format!("row {row:05}\n"))).collect()
    }

    #[test]
    fn a_large_file_is_sampled_from_start_to_end() {
        let found = lines(text().as_bytes(), 1_600, 16 << 10);
        assert_eq!((found.is_whole, found.is_spread), (false, true));
        assert_eq!(found.lines[..2], ["head", "row 00000"]);
        let numbers: Vec<usize> = found.lines[1..].iter().map(|line| line[4..].parse().unwrap()).collect();
        assert!(numbers.is_sorted() && *numbers.last().unwrap() == 9_999);
        let middle = numbers.iter().filter(|number| (4_000..6_000).contains(*number)).count();
        assert!(middle * 10 > numbers.len(), "{middle} of {}", numbers.len());
        assert!(numbers.len() <= 1_600);
    }

    #[test]
    fn a_small_file_with_many_rows_is_thinned() {
        let found = lines(text().as_bytes(), 100, 1 << 20);
        assert_eq!((found.lines.len(), found.is_whole, found.is_spread), (100, false, true));
        assert_eq!((found.lines[0].as_str(), found.lines[99].as_str()), ("head", "row 09999"));
    }

    #[test]
    fn of_a_compressed_file_the_start_is_read() {
        let zipped = fixture::gzip(text().as_bytes());
        let found = lines(&zipped, 100_000, 1 << 10);
        assert_eq!((found.is_whole, found.is_spread, found.lines[0].as_str()), (false, false, "head"));
        assert!(found.lines.len() < 200);
        let whole = lines(&zipped, 100_000, 1 << 20);
        assert_eq!((whole.is_whole, whole.is_spread, whole.lines.len()), (true, true, 10_001));
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_line() {
        assert_eq!(thin_lines(b"\xef\xbb\xbfa\r\n\r\nb", 9), (vec!["a".into(), "b".into()], true));
    }
}
