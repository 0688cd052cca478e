//! What files are by their content, whatever a job says of them. Of a compressed file the decompressed start is looked at.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use zagros_job::Job;

use crate::formats::{BYTE_ORDER_MARK, DataContent};
use crate::read::text::{FileText, ReadReach};
use crate::{DataPart, IngestError, check_first_rows, find_files};

/// Bytes of text that are looked at. A stream keeps them for its reader.
const START: usize = 64 << 10;

/// Files of one command that are looked at. Each costs a request if it is in a store.
const MOST_FILES: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStart {
    pub path: PathBuf,
    pub content: DataContent,
    /// Its first lines, if it holds lines, without their ends and without empty ones.
    pub lines: Vec<String>,
}

impl FileStart {
    pub(crate) fn read(path: &Path) -> Result<Self, IngestError> {
        let text = FileText::open(path, ReadReach::Start, &Arc::default())?;
        // With the byte that tells whether these are all, not more than a store fetches for the start.
        let (mut start, is_all) = text.read_at_most(START - 1)?;
        let content = DataContent::from_start(&start);
        if !is_all && let Some(end) = memchr::memrchr(b'\n', &start) {
            start.truncate(end);
        }
        let text = if content == DataContent::Lines { &start[..] } else { &[] };
        let lines = full_lines(text).map(|line| String::from_utf8_lossy(line).into_owned()).collect();
        Ok(Self { path: path.into(), content, lines })
    }
}

/// The lines of a text that are not empty, without their ends.
pub(crate) fn full_lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let lines = text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines.filter(|line| !line.is_empty())
}

/// The starts of these files, which all hold the same: of the first one, and of many some others.
pub fn file_starts(paths: &[PathBuf]) -> Result<Vec<FileStart>, IngestError> {
    same_content(&crate::files::expand_paths(paths)?)
}

/// As [`file_starts`], of files that were found. There is at least one.
pub(crate) fn same_content(found: &[PathBuf]) -> Result<Vec<FileStart>, IngestError> {
    let chosen = spread_indices(found.len(), MOST_FILES).map(|index| FileStart::read(&found[index]));
    let starts = chosen.collect::<Result<Vec<_>, _>>()?;
    let Some(first) = starts.first() else { return Err(IngestError::NoFiles { key: "train" }) };
    if starts.iter().any(|start| start.content != first.content) {
        return Err(IngestError::SeveralFormats { found: describe_contents(&starts) });
    }
    Ok(starts)
}

/// At most `most` of `0..count`, evenly spaced, with both ends.
pub(crate) fn spread_indices(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let taken = count.min(most);
    let gaps = taken.saturating_sub(1).max(1);
    (0..taken).map(move |index| if taken == count { index } else { index * (count - 1) / gaps })
}

fn describe_contents(starts: &[FileStart]) -> String {
    let mut contents: Vec<DataContent> = starts.iter().map(|start| start.content).collect();
    contents.sort_unstable();
    contents.dedup();
    let description = |content: &DataContent| {
        let named = starts.iter().filter(|start| start.content == *content).map(|start| start.path.as_path());
        let named: Vec<&Path> = named.collect();
        let first = named.first().map(|path| path.display().to_string()).unwrap_or_default();
        let pattern = common_pattern(&named).map(|pattern| format!(", '{pattern}'")).unwrap_or_default();
        format!("{} {content} ({first}{}{pattern})", named.len(), if named.len() > 1 { ", …" } else { "" })
    };
    contents.iter().map(description).collect::<Vec<_>>().join("; ")
}

/// A pattern for files of one folder whose names end alike.
fn common_pattern(paths: &[&Path]) -> Option<String> {
    let (first, rest) = paths.split_first()?;
    let end = first.extension()?.to_str()?;
    let is_alike = |path: &&Path| path.parent() == first.parent() && path.extension() == first.extension();
    (!rest.is_empty() && rest.iter().all(is_alike))
        .then(|| first.with_file_name(format!("*.{end}")).display().to_string())
}

/// Whether a job reads the first rows of a file: the file has its columns, and no row is malformed.
pub fn can_read_file(job: &Job, path: &Path) -> bool {
    let mut job = job.clone();
    (job.data.max_bad_rows, job.data.max_bad_share) = (0, 0.0);
    find_files(&job, &[path.to_path_buf()]).and_then(|files| check_first_rows(&job, &files, DataPart::All)).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn chosen_files_are_spread_over_the_list() {
        assert_eq!(spread_indices(3, 8).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(spread_indices(100, 4).collect::<Vec<_>>(), [0, 33, 66, 99]);
        assert_eq!(spread_indices(5, 1).collect::<Vec<_>>(), [0]);
        assert_eq!(spread_indices(0, 4).count(), 0);
    }

    #[test]
    fn files_of_several_formats_are_named_with_a_pattern() {
        let folder = TempDir::new().unwrap();
        for (name, text) in [("a.csv", "y,a\n1,2\n"), ("b.jsonl", "{\"y\":1}\n"), ("c.csv", "y,a\n1,3\n")] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let error = file_starts(&[folder.path().into()]).unwrap_err().to_string();
        let pattern = folder.path().join("*.csv").display().to_string();
        for part in ["2 text with separators", "a.csv, …", &pattern, "1 JSON lines", "b.jsonl"] {
            assert!(error.contains(part), "{part} in {error}");
        }
        let start = &file_starts(&[folder.path().join("*.csv")]).unwrap()[0];
        assert_eq!(
            (start.content, start.lines.clone()),
            (DataContent::Lines, vec!["y,a".to_owned(), "1,2".to_owned()])
        );
    }
}
