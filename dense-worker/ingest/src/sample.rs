//! A sample of bounded size of data that no job describes: what format it has, and the texts of some of its rows.
//!
//! ```text
//! paths ──► files ──► a few, spread over the list ──► some rows of each, spread over the file
//! ```
//!
//! Rows of all parts of the data tell more than its first ones, because files are often sorted. Of a compressed file only the
//! start can be read without reading everything.

mod columns;
mod lines;
mod objects;

use std::path::{Path, PathBuf};

use crate::IngestError;
pub use crate::columnar::texts::LIST_SEPARATOR;
use crate::content::{same_content, spread_indices};
use crate::find::expand_paths;
use crate::formats::DataContent;

/// Places of a file whose rows are read.
const PLACES: usize = 16;

/// Bytes of a text that are kept.
const MOST_TEXT: usize = 4 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleLimits {
    /// Rows of all files together.
    pub rows: usize,
    /// Bytes of text of all files together.
    pub bytes: usize,
    pub files: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSample {
    /// Files that the paths stand for.
    pub files: usize,
    pub names: Vec<PathBuf>,
    /// Whether these are all rows.
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
    /// Any number of values.
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
        DataContent::Parquet | DataContent::Arrow => columns::sample_rows(&chosen, content, each)?,
        DataContent::Jsonl => objects::sample_rows(first, lines::sample_rows(&chosen, each)?)?,
        DataContent::Lines => lines::sample_rows(&chosen, each)?,
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

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

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
}
