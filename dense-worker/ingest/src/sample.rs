//! A sample of bounded size of data that no job describes: what format it has, and the texts of some of its rows.
//!
//! ```text
//! paths ──► files ──► a few, spread over the list ──► some rows of each, spread over the file
//! ```
//!
//! Rows of all parts of the data tell more than its first ones, because files are often sorted. Of a compressed file only the
//! start can be read without reading everything.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::IngestError;
use crate::columnar::ColumnFile;
use crate::columnar::groups::{RowGroups, RowSlice, UsedColumn};
use crate::columnar::kind::ValueKind;
use crate::columnar::texts::column_texts;
use crate::content::{full_lines, same_content, spread_indices};
use crate::files::expand_paths;
use crate::formats::DataContent;
use crate::read::layout::column_position;
use crate::read::text::{FileText, ReadReach};

mod objects;

pub use crate::columnar::texts::LIST_SEPARATOR;

const PLACES: usize = 16;

/// Bytes of a text that are kept.
const MOST_TEXT: usize = 4 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleLimits {
    pub rows: usize,
    pub bytes: usize,
    pub files: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSample {
    pub files: usize,
    pub names: Vec<PathBuf>,
    pub is_whole: bool,
    /// Whether the rows come from all parts of the data, not from its start alone.
    pub is_spread: bool,
    pub rows: SampledRows,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SampledRows {
    /// Lines of text, without their ends and without empty ones. The first one is the first line of the first file. A first line
    /// of another file that is the same is not there.
    Lines(Vec<String>),
    Columns {
        format: DataContent,
        /// The columns, each with as many texts as there are rows.
        columns: Vec<SampledColumn>,
        /// Columns that the trainer cannot read, and why.
        unusable: Vec<(String, String)>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledColumn {
    pub name: String,
    pub form: ValueForm,
    /// The text of each row, as it would stand in a CSV file; empty where there is no value. Those of a list are separated by
    /// [`LIST_SEPARATOR`].
    pub texts: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueForm {
    Text,
    Number,
    Bool,
    /// Dates, times of day or moments.
    Time,
    List,
}

/// Samples the data that `paths` name: files, folders, patterns, objects in stores. The format is found by the content.
///
/// # Errors
/// When a path stands for no file, a file cannot be read, or the files have several formats.
pub fn sample_rows(paths: &[PathBuf], limits: SampleLimits) -> Result<RowSample, IngestError> {
    let found = expand_paths(paths)?;
    let chosen: Vec<&Path> =
        spread_indices(found.len(), limits.files.max(1)).map(|index| found[index].as_path()).collect();
    let Some(first) = chosen.first() else { return Err(IngestError::NoFiles { key: "train" }) };
    let each = SampleLimits {
        rows: (limits.rows / chosen.len()).max(PLACES),
        bytes: (limits.bytes / chosen.len()).max(64 << 10),
        files: 1,
    };
    let content = same_content(&found)?[0].content;
    let mut sample = match content {
        content if content.has_columns() => sample_columns(&chosen, content, each)?,
        DataContent::Jsonl => objects::sample_rows(first, sample_lines(&chosen, each)?)?,
        _ => sample_lines(&chosen, each)?,
    };
    sample.files = found.len();
    sample.names = chosen.iter().map(|path| path.to_path_buf()).collect();
    sample.is_whole &= found.len() == chosen.len();
    Ok(sample)
}

/// The start of a text, at most [`MOST_TEXT`] bytes of it.
fn shortened(text: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(&text[..text.len().min(MOST_TEXT)]).into_owned();
    if text.ends_with('\u{fffd}') && text.len() >= MOST_TEXT {
        text.pop();
    }
    text
}

/// Columns of all files. The first file says which there are.
fn sample_columns(files: &[&Path], format: DataContent, each: SampleLimits) -> Result<RowSample, IngestError> {
    let (mut columns, mut unusable, mut is_whole) = (Vec::new(), Vec::new(), true);
    for (index, path) in files.iter().enumerate() {
        let Some(footer) = ColumnFile::open(path, format).transpose()? else { continue };
        if index == 0 {
            (columns, unusable) = usable_columns(&footer, path);
        }
        let position = |column: &SampledColumn| column_position(path, footer.column_names(), &column.name);
        let positions = columns.iter().map(position).collect::<Result<Vec<_>, _>>()?;
        let row_groups = footer.row_groups(path, positions)?;
        let slices = sampled_slices(&row_groups, each.rows);
        let rows: u64 = row_groups.groups.iter().map(|group| group.rows).sum();
        is_whole &= slices.iter().map(|slice| slice.rows as u64).sum::<u64>() == rows;
        for (index, column) in columns.iter_mut().enumerate() {
            column_texts(path, &row_groups, index, &slices, |text| column.texts.push(shortened(text)))?;
        }
    }
    let rows = SampledRows::Columns { format, columns, unusable };
    Ok(RowSample { files: files.len(), names: Vec::new(), is_whole, is_spread: true, rows })
}

/// The columns that the trainer can read, without rows, and the others with the reason.
fn usable_columns(footer: &ColumnFile, path: &Path) -> (Vec<SampledColumn>, Vec<(String, String)>) {
    let (mut columns, mut unusable) = (Vec::new(), Vec::new());
    let names = footer.column_names();
    for (position, name) in names.iter().enumerate() {
        if names.iter().filter(|other| *other == name).count() > 1 {
            unusable.push((name.clone(), "two columns have this name".to_owned()));
            continue;
        }
        match footer.row_groups(path, [position]) {
            Ok(found) => {
                let form = found.columns.first().map_or(ValueForm::Text, value_form);
                columns.push(SampledColumn { name: name.clone(), form, texts: Vec::new() });
            }
            Err(IngestError::UnusableColumn { reason, .. } | IngestError::DamagedColumn { reason, .. }) => {
                unusable.push((name.clone(), reason));
            }
            Err(error) => unusable.push((name.clone(), error.to_string())),
        }
    }
    (columns, unusable)
}

fn value_form(column: &UsedColumn) -> ValueForm {
    if column.is_list() {
        return ValueForm::List;
    }
    match column.kind {
        ValueKind::Bool => ValueForm::Bool,
        ValueKind::Integer
        | ValueKind::Unsigned(_)
        | ValueKind::Half
        | ValueKind::Single
        | ValueKind::Double
        | ValueKind::Decimal(_) => ValueForm::Number,
        ValueKind::Text | ValueKind::Uuid | ValueKind::Nothing => ValueForm::Text,
        ValueKind::Date | ValueKind::Time(_) | ValueKind::Timestamp(_) => ValueForm::Time,
    }
}

/// At most so many rows in slices: all rows, or those of evenly spaced places.
fn sampled_slices(row_groups: &RowGroups, most: usize) -> Vec<RowSlice> {
    let groups = || row_groups.groups.iter().enumerate();
    let all: u64 = row_groups.groups.iter().map(|group| group.rows).sum();
    if all <= most as u64 {
        return groups().map(|(group, of)| RowSlice { group, start: 0, rows: of.rows as usize }).collect();
    }
    let length = (most / PLACES).max(1) as u64;
    let mut found: Vec<RowSlice> = Vec::with_capacity(PLACES);
    for place in spread_indices((all - length) as usize + 1, PLACES) {
        let row = place as u64;
        let holder = groups().find(|(_, group)| (group.first_row..group.first_row + group.rows).contains(&row));
        let Some((group, of)) = holder else { continue };
        let start = row - of.first_row;
        found.push(RowSlice { group, start, rows: length.min(of.rows - start) as usize });
    }
    found
}

fn sample_lines(files: &[&Path], each: SampleLimits) -> Result<RowSample, IngestError> {
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
    let (mut bytes, is_read) = text.read_at_most(limits.bytes)?;
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
        let text = FileText::open_at(path, offset, offset + length, &Arc::default())?;
        let (mut bytes, _) = text.read_at_most(length as usize)?;
        if offset + length < size {
            drop_last_line(&mut bytes);
        }
        let first = if place == 0 { 0 } else { memchr::memchr(b'\n', &bytes).map_or(bytes.len(), |end| end + 1) };
        lines.append(&mut thin_lines(&bytes[first..], limits.rows / PLACES).0);
    }
    Ok(FileLines { lines, is_whole: false, is_spread: true })
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
    use std::fs;

    use tempfile::TempDir;

    use super::*;
    use crate::fixture;

    const LIMITS: SampleLimits = SampleLimits { rows: 1_000, bytes: 1 << 20, files: 4 };

    #[test]
    fn files_of_a_folder_are_one_sample_with_one_header() {
        let folder = TempDir::new().unwrap();
        for part in 0..9 {
            fs::write(folder.path().join(format!("part-{part}.csv")), format!("y,a\n0,p{part}\n\n1,q\n")).unwrap();
        }
        let sample = sample_rows(&[folder.path().into()], LIMITS).unwrap();
        assert_eq!((sample.files, sample.is_whole, sample.is_spread), (9, false, true));
        let SampledRows::Lines(lines) = sample.rows else { panic!("columns") };
        assert_eq!(lines, ["y,a", "0,p0", "1,q", "0,p2", "1,q", "0,p5", "1,q", "0,p8", "1,q"]);
    }

    #[test]
    fn a_folder_without_files_or_of_two_formats_is_refused() {
        let folder = TempDir::new().unwrap();
        let refused = || sample_rows(&[folder.path().into()], LIMITS).unwrap_err().to_string();
        assert!(refused().contains("is a folder without data files"), "{}", refused());
        fs::write(folder.path().join("a.jsonl"), "{\"y\":1}\n").unwrap();
        fs::write(folder.path().join("b.csv"), "y,a\n1,2\n").unwrap();
        let text = refused();
        assert!(text.contains("1 JSON lines (") && text.contains("1 text with separators ("), "{text}");
    }

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
