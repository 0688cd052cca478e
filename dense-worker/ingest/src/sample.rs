//! A sample of bounded size of data that no job describes: what format it has, and the texts of some of its rows.
//!
//! ```text
//! paths ──► files ──► a few, spread over the list ──► some rows of each, spread over the file
//! ```
//!
//! Rows of all parts of the data tell more than its first ones, because files are often sorted. Of a compressed file only the
//! start can be read without reading everything.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use zagros_zip::number_from;

use crate::IngestError;
use crate::columnar::ColumnFile;
use crate::columnar::groups::{RowGroups, RowSlice, UsedColumn};
use crate::columnar::texts::column_texts;
use crate::content::{full_lines, same_content, spread_indices};
use crate::files::expand_paths;
use crate::formats::DataContent;
use crate::parse::bad::quoted_text;
use crate::read::layout::column_position;
use crate::read::names::{ONE_ARRAY, visit_values};
use crate::read::text::{FileText, ReadReach};

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

/// Some rows of the data as columns of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSample {
    pub content: DataContent,
    pub files: usize,
    pub names: Vec<PathBuf>,
    pub is_whole: bool,
    /// Whether the rows come from all parts of the data, not from its start alone.
    pub is_spread: bool,
    /// The columns, each with as many texts as there are rows. Lines of fields are one column, whose texts are the lines, without
    /// their ends and without empty ones. The first one is the first line of the first file. A first line of another file that is
    /// the same is not there.
    pub columns: Vec<SampledColumn>,
    /// Columns that the trainer cannot read, and why.
    pub unusable: Vec<(String, String)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampledColumn {
    pub name: String,
    pub is_list: bool,
    /// The text of each row, as it would stand in a CSV file; empty where there is no value. Those of a list are separated by
    /// [`LIST_SEPARATOR`].
    pub texts: Vec<String>,
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
    let mut sample = RowSample {
        content,
        files: found.len(),
        names: chosen.iter().map(|path| path.to_path_buf()).collect(),
        is_whole: found.len() == chosen.len(),
        is_spread: true,
        columns: Vec::new(),
        unusable: Vec::new(),
    };
    if content.has_columns() {
        sample.read_columns(&chosen, each)?;
        return Ok(sample);
    }
    let mut lines = Vec::new();
    for path in &chosen {
        sample.read_lines(path, each, &mut lines)?;
    }
    if content == DataContent::Jsonl {
        sample.read_objects(first, &lines)?;
    } else {
        sample.columns = vec![SampledColumn { texts: lines, ..SampledColumn::default() }];
    }
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

impl RowSample {
    pub fn row_count(&self) -> usize {
        self.columns.first().map_or(0, |column| column.texts.len())
    }

    /// Reads rows of all files of columns. The first file says which columns there are.
    fn read_columns(&mut self, files: &[&Path], each: SampleLimits) -> Result<(), IngestError> {
        for (index, path) in files.iter().enumerate() {
            let Some(footer) = ColumnFile::open(path, self.content).transpose()? else { continue };
            if index == 0 {
                (self.columns, self.unusable) = usable_columns(&footer, path);
            }
            let position = |column: &SampledColumn| column_position(path, footer.column_names(), &column.name);
            let positions = self.columns.iter().map(position).collect::<Result<Vec<_>, _>>()?;
            let row_groups = footer.row_groups(path, positions)?;
            let slices = sampled_slices(&row_groups, each.rows);
            let rows: u64 = row_groups.groups.iter().map(|group| group.rows).sum();
            self.is_whole &= slices.iter().map(|slice| slice.rows as u64).sum::<u64>() == rows;
            for (index, column) in self.columns.iter_mut().enumerate() {
                column_texts(path, &row_groups, index, &slices, |text| column.texts.push(shortened(text)))?;
            }
        }
        Ok(())
    }

    /// Adds lines of a file: all, or those of several places if it is large and not compressed.
    fn read_lines(&mut self, path: &Path, limits: SampleLimits, lines: &mut Vec<String>) -> Result<(), IngestError> {
        let text = FileText::open(path, ReadReach::To(limits.bytes as u64), &Arc::default())?;
        let (size, is_compressed) = (text.bytes, text.compression().is_some());
        let (mut found, has_all) = if !is_compressed && size > limits.bytes as u64 {
            (lines_at_places(path, size, limits)?, false)
        } else {
            let (mut bytes, is_read) = text.read_at_most(limits.bytes)?;
            if !is_read {
                drop_last_line(&mut bytes);
            }
            self.is_spread &= is_read;
            let (found, has_all) = thin_lines(&bytes, limits.rows);
            (found, is_read && has_all)
        };
        self.is_whole &= has_all;
        if !lines.is_empty() && found.first() == lines.first() {
            found.remove(0);
        }
        lines.append(&mut found);
        Ok(())
    }

    /// Puts the values of lines that are JSON objects into columns. `path` is named in errors.
    fn read_objects(&mut self, path: &Path, lines: &[String]) -> Result<(), IngestError> {
        let Self { columns, unusable, .. } = self;
        let mut places: HashMap<String, usize> = HashMap::new();
        for (row, line) in number_from(0, lines) {
            let Ok(Value::Object(object)) = serde_json::from_str(line) else { return Err(no_object(path, line)) };
            visit_values("", &object, &mut |name: String, value: &Value| {
                if value.is_object() {
                    return;
                }
                if is_nested(value) && unusable.iter().all(|(other, _)| *other != name) {
                    unusable.push((name.clone(), "it is an array of objects or arrays".to_owned()));
                }
                let place = *places.entry(name).or_insert_with_key(|name| {
                    columns.push(SampledColumn { name: name.clone(), ..SampledColumn::default() });
                    columns.len() - 1
                });
                let column = &mut columns[place];
                column.is_list |= value.is_array();
                // Earlier rows may lack the key. Of a key that occurs twice in an object, the last value is kept.
                column.texts.resize(row, String::new());
                column.texts.push(value_text(value));
            });
        }
        columns.retain(|column| unusable.iter().all(|(name, _)| *name != column.name));
        columns.iter_mut().for_each(|column| column.texts.resize(lines.len(), String::new()));
        Ok(())
    }
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
                let is_list = found.columns.first().is_some_and(UsedColumn::is_list);
                columns.push(SampledColumn { name: name.clone(), is_list, texts: Vec::new() });
            }
            Err(IngestError::UnusableColumn { reason, .. } | IngestError::DamagedColumn { reason, .. }) => {
                unusable.push((name.clone(), reason));
            }
            Err(error) => unusable.push((name.clone(), error.to_string())),
        }
    }
    (columns, unusable)
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

/// Lines of evenly spaced places of a file that is not compressed.
fn lines_at_places(path: &Path, size: u64, limits: SampleLimits) -> Result<Vec<String>, IngestError> {
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
    Ok(lines)
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

fn is_nested(value: &Value) -> bool {
    value.as_array().is_some_and(|items| items.iter().any(|item| item.is_object() || item.is_array()))
}

fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => shortened(text.as_bytes()),
        Value::Number(_) | Value::Bool(_) => value.to_string(),
        Value::Array(items) => {
            let texts: Vec<String> = items.iter().filter(|item| !item.is_null()).map(value_text).collect();
            shortened(texts.join(&LIST_SEPARATOR.to_string()).as_bytes())
        }
        Value::Null | Value::Object(_) => String::new(),
    }
}

fn no_object(path: &Path, line: &str) -> IngestError {
    if line.trim_start().starts_with('[') {
        return IngestError::bad_file(path, ONE_ARRAY);
    }
    let line = quoted_text(line.as_bytes());
    let reason =
        format!("its first line is a JSON object, and a line here or in a file beside it is no JSON object: {line}");
    IngestError::bad_file(path, reason)
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
        assert_eq!(sample.columns[0].texts, ["y,a", "0,p0", "1,q", "0,p2", "1,q", "0,p5", "1,q", "0,p8", "1,q"]);
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

    /// A sample of one file. Its lines are the only column.
    fn sampled(bytes: &[u8], rows: usize, most: usize) -> (RowSample, Vec<String>) {
        let (_folder, path) = fixture::file(bytes);
        let mut sample = sample_rows(&[path], SampleLimits { rows, bytes: most, files: 1 }).unwrap();
        let lines = std::mem::take(&mut sample.columns[0].texts);
        (sample, lines)
    }

    fn text() -> String {
        std::iter::once("head\n".to_owned()).chain((0..10_000).map(|row| format!("row {row:05}\n"))).collect()
    }

    #[test]
    fn a_large_file_is_sampled_from_start_to_end() {
        let (found, lines) = sampled(text().as_bytes(), 1_600, 64 << 10);
        assert_eq!((found.is_whole, found.is_spread), (false, true));
        assert_eq!(lines[0], "head");
        let numbers: Vec<usize> = lines[1..].iter().map(|line| line[4..].parse().unwrap()).collect();
        assert!(numbers.is_sorted() && numbers[0] < 10 && *numbers.last().unwrap() == 9_999);
        let middle = numbers.iter().filter(|number| (4_000..6_000).contains(*number)).count();
        assert!(middle * 10 > numbers.len(), "{middle} of {}", numbers.len());
        assert!(numbers.len() <= 1_600);
    }

    #[test]
    fn a_small_file_with_many_rows_is_thinned() {
        let (found, lines) = sampled(text().as_bytes(), 100, 1 << 20);
        assert_eq!((lines.len(), found.is_whole, found.is_spread), (100, false, true));
        assert_eq!((lines[0].as_str(), lines[99].as_str()), ("head", "row 09999"));
    }

    #[test]
    fn of_a_compressed_file_the_start_is_read() {
        let zipped = fixture::gzip(text().as_bytes());
        let (found, lines) = sampled(&zipped, 100_000, 64 << 10);
        assert_eq!((found.is_whole, found.is_spread, lines[0].as_str()), (false, false, "head"));
        assert!(lines.len() < 7_000);
        let (whole, lines) = sampled(&zipped, 100_000, 1 << 20);
        assert_eq!((whole.is_whole, whole.is_spread, lines.len()), (true, true, 10_001));
    }

    fn objects(lines: &[&str]) -> Result<RowSample, IngestError> {
        let (_folder, path) = fixture::file(lines.join("\n"));
        sample_rows(&[path], LIMITS)
    }

    #[test]
    fn keys_become_columns_and_objects_inside_become_paths() {
        let found = objects(&[
            r#"{"y":1,"user":{"id":"u1","age":30},"tags":["a","b"],"paid":true}"#,
            r#"{"y":0,"user":{"id":"u2"},"tags":[],"items":[{"id":1}]}"#,
            r#"{"user":{"age":1.5},"tags":null,"paid":false,"y":1}"#,
        ]);
        let RowSample { content, columns, unusable, .. } = found.unwrap();
        assert_eq!((content, unusable[0].0.as_str()), (DataContent::Jsonl, "items"));
        let found: Vec<_> = columns.iter().map(|of| (of.name.as_str(), of.is_list, of.texts.join(";"))).collect();
        let expected = [
            ("y", false, "1;0;1"),
            ("user.id", false, "u1;u2;"),
            ("user.age", false, "30;;1.5"),
            ("tags", true, "a\u{1f}b;;"),
            ("paid", false, "true;;false"),
        ];
        assert_eq!(found, expected.map(|(name, is_list, texts)| (name, is_list, texts.to_owned())));
    }

    #[test]
    fn one_array_and_lines_that_are_no_objects_are_refused() {
        assert!(objects(&["[{\"y\":1},"]).unwrap_err().to_string().contains("it is one JSON array"));
        assert!(objects(&["{\"y\":1}", "1,2"]).unwrap_err().to_string().contains("is no JSON object: \"1,2\""));
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_line() {
        assert_eq!(thin_lines(b"\xef\xbb\xbfa\r\n\r\nb", 9), (vec!["a".into(), "b".into()], true));
    }
}
