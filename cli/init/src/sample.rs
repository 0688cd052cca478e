//! Some rows of the data, in bounded memory.

use std::path::Path;

use zagros_ingest::{FileStart, RowSample, SampleLimits, SampledRows, file_starts, sample_rows};

use crate::InitError;
use crate::dialect::{DividedLines, first_fields};

/// What is looked at: a second's work, and as many rows as tell what a column holds.
const LIMITS: SampleLimits = SampleLimits { rows: 100_000, bytes: 32 << 20, files: 8 };

/// Reads rows of a file, a folder, a pattern or objects in a store, in any format that can be trained on.
pub fn read_sample(data: &Path) -> Result<RowSample, InitError> {
    let paths = [data.to_path_buf()];
    let unreadable = |source| InitError::Unreadable { data: data.into(), source: Box::new(source) };
    let found = sample_rows(&paths, LIMITS).map_err(unreadable)?;
    if let (SampledRows::Lines(_), 2..) = (&found.rows, found.files) {
        same_columns(&file_starts(&paths).map_err(unreadable)?)?;
    }
    Ok(found)
}

/// Refuses text files whose first lines do not have the columns of most files: their lines together are no table.
fn same_columns(starts: &[FileStart]) -> Result<(), InitError> {
    let dialects = starts.iter().filter_map(|start| Some(DividedLines::from_lines(&start.lines).ok()?.dialect));
    let mut kinds: Vec<(char, usize)> = dialects.map(|dialect| (dialect.separator, dialect.fields)).collect();
    kinds.sort_unstable();
    let Some(most) = kinds.chunk_by(|one, next| one == next).max_by_key(|equal| equal.len()) else { return Ok(()) };
    let (separator, fields) = most[0];
    let differs = |start: &&FileStart| first_fields(&start.lines, separator).is_some_and(|found| found != fields);
    let others: Vec<String> = starts.iter().filter(differs).map(|start| start.path.display().to_string()).collect();
    if others.is_empty() {
        return Ok(());
    }
    let like = starts.iter().find(|start| !differs(start)).map(|start| start.path.clone()).unwrap_or_default();
    Err(InitError::OtherColumns { others: others.join(", "), like, separator, fields })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_text_file_without_the_columns_of_the_others_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("a.csv", "y,a\n1,2\n"), ("b.csv", "y,a\n0,\"x, y\"\n"), ("README.md", "Rows of a day\n")]
        {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let error = read_sample(folder.path()).unwrap_err().to_string();
        for part in ["README.md", "2 fields", "a.csv", "','"] {
            assert!(error.contains(part), "{part} in {error}");
        }
        fs::remove_file(folder.path().join("README.md")).unwrap();
        assert_eq!(read_sample(folder.path()).unwrap().files, 2);
    }
}
