//! The layout of the data: what its sample is, and the columns of its lines.

use std::path::{Path, PathBuf};

use zagros_ingest::{
    DataContent, FileStart, RowSample, SampleLimits, SampledColumn, criteo_columns, file_starts, sample_rows,
};
use zagros_zip::ZipEq;

use crate::init::InitError;
use crate::init::column::is_missing;
use crate::init::dialect::{DividedLines, TextDialect, first_fields};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DataLayout {
    Delimited(TextDialect),
    Criteo,
    Columns(DataContent),
}

impl DataLayout {
    /// The layout of a sample, whose lines become columns.
    pub(crate) fn infer(sample: &mut RowSample) -> Result<Self, InitError> {
        if sample.content != DataContent::Lines {
            return Ok(Self::Columns(sample.content));
        }
        let lines = sample.columns.pop().unwrap_or_default().texts;
        let divided = DividedLines::from_lines(&lines).map_err(|what| no_table(&sample.names, what))?;
        let DividedLines { dialect, names, rows } = divided;
        let is_criteo = is_criteo(&dialect, &rows);
        let names = if is_criteo { criteo_columns() } else { names };
        let column = |name| SampledColumn { name, ..SampledColumn::default() };
        sample.columns = names.into_iter().map(column).collect();
        for row in rows {
            for (column, text) in sample.columns.iter_mut().zip_eq(row) {
                column.texts.push(text);
            }
        }
        Ok(if is_criteo { Self::Criteo } else { Self::Delimited(dialect) })
    }
}

/// Why lines are no table, with the names of the files whose lines were put together, if there are several.
fn no_table(names: &[PathBuf], what: String) -> InitError {
    if names.len() < 2 {
        return InitError::Data(what);
    }
    let names: Vec<String> = names.iter().map(|path| path.display().to_string()).collect();
    InitError::Data(format!(
        "of the files {}, which should all have the same columns (name those that do, by a pattern such as 'FOLDER/*.csv'): {what}",
        names.join(", ")
    ))
}

/// Whether lines are Criteo's: a label, 13 integers, 26 categories of 8 hexadecimal digits; any but the label may be empty.
fn is_criteo(dialect: &TextDialect, rows: &[Vec<String>]) -> bool {
    let is_label = |text: &str| text == "0" || text == "1";
    let is_integer = |text: &String| text.is_empty() || text.parse::<i64>().is_ok();
    let is_hash =
        |text: &String| text.is_empty() || text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    dialect.separator == '\t'
        && dialect.fields == 40
        && !dialect.header
        && rows
            .iter()
            .all(|row| is_label(&row[0]) && row[1..14].iter().all(is_integer) && row[14..].iter().all(is_hash))
}

/// What is looked at: a second's work, and as many rows as tell what a column holds.
const LIMITS: SampleLimits = SampleLimits { rows: 100_000, bytes: 32 << 20, files: 8 };

/// Reads rows of a file, a folder, a pattern or objects in a store, in any format that can be trained on.
pub(crate) fn read_sample(data: &Path) -> Result<RowSample, InitError> {
    let paths = [data.to_path_buf()];
    let found = sample_rows(&paths, LIMITS)?;
    if found.content == DataContent::Lines && found.files > 1 {
        same_columns(&file_starts(&paths)?)?;
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
    let like = starts.iter().find(|start| !differs(start)).map(|start| start.path.display().to_string());
    Err(InitError::Data(format!(
        "the files have different columns: {} {} not have the {fields} fields of {}, separated by {separator:?}; name the files that belong \
         together, by a pattern such as 'FOLDER/*.csv'",
        others.join(", "),
        if others.len() > 1 { "do" } else { "does" },
        like.unwrap_or_default()
    )))
}

/// Writes the numbers of columns whose numbers have a decimal comma, `3,14`, as files with semicolons or tabs between their
/// fields often have them, with a point, and says whether there are such columns.
pub(crate) fn with_points(columns: &mut [SampledColumn]) -> bool {
    let mut has_any = false;
    for column in columns {
        if have_commas(column.texts.iter().map(String::as_str)) {
            column.texts.iter_mut().for_each(|text| *text = text.replace(',', "."));
            has_any = true;
        }
    }
    has_any
}

/// Whether texts are numbers, some of them with a decimal comma.
pub(crate) fn have_commas<'a>(texts: impl Iterator<Item = &'a str>) -> bool {
    let present: Vec<&str> = texts.filter(|text| !is_missing(text)).collect();
    present.iter().any(|text| text.contains(',')) && present.iter().all(|text| is_number(text))
}

/// Digits with at most one comma between them.
fn is_number(text: &str) -> bool {
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let text = text.strip_prefix(['-', '+']).unwrap_or(text);
    match text.split_once(',') {
        Some((whole, fraction)) => is_digits(whole) && is_digits(fraction),
        None => is_digits(text),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;

    /// A sample that is all the data.
    pub(crate) fn sample_of_lines(lines: impl IntoIterator<Item = String>) -> RowSample {
        let columns = vec![SampledColumn { texts: lines.into_iter().collect(), ..SampledColumn::default() }];
        let (names, unusable) = (Vec::new(), Vec::new());
        RowSample { content: DataContent::Lines, files: 1, names, is_whole: true, is_spread: true, columns, unusable }
    }

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

    fn column(texts: &[&str]) -> SampledColumn {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        SampledColumn { name: "x".into(), is_list: false, texts }
    }

    #[test]
    fn a_column_of_numbers_with_commas_gets_points() {
        let mut columns = [
            column(&["3,14", "-2", "", "0,5"]),
            column(&["a,b", "3,1", "", "1"]),
            column(&["1,2,3", "1,2", "", "1"]),
            column(&["3.5", "2", "", "1"]),
            column(&["", "", "", ""]),
        ];
        assert!(with_points(&mut columns));
        let texts = columns.map(|column| column.texts.join(" "));
        assert_eq!(texts, ["3.14 -2  0.5", "a,b 3,1  1", "1,2,3 1,2  1", "3.5 2  1", "   "]);
        assert!(!with_points(&mut [column(&["3.5", "2"])]));
    }
}
