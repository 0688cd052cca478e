//! The layout of a data file: where its rows start, and which field is which column.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use zagros_job::Job;

use crate::IngestError;
use crate::columnar::ColumnFile;
use crate::columnar::groups::{RowGroups, check_shapes};
use crate::formats::{BYTE_ORDER_MARK, ColumnNames, DataContent, TextSyntax, other_format};
use crate::parse::fields::{FieldSyntax, LineFields};
use crate::read::names::{check_objects, most_similar, used_columns, usual_separators};
use crate::read::records::{RecordScanner, RecordSyntax};
use crate::read::text::{FileText, ReadReach};
use crate::source::is_stdin;

/// The layout of a file, found from its first lines.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FileLayout {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) is_compressed: bool,
    /// Offset in the text of the first line that can be a row: after a byte order mark and the header.
    pub(crate) data_start: u64,
    /// Number of that line, from 1.
    pub(crate) first_line: u64,
    pub(crate) positions: ColumnPositions,
    /// The row groups of a file that has them. The rows of any other file are lines.
    pub(crate) row_groups: Option<RowGroups>,
    /// How records are written whose quoted fields may hold line breaks. The rows of any other text are lines.
    pub(crate) records: Option<RecordSyntax>,
}

/// Which field (from 0) of a line is which column of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ColumnPositions {
    pub(crate) fields: usize,
    /// The labels, in the job's order; none if rows are predicted.
    pub(crate) labels: Vec<usize>,
    /// The sample weights, if there are some; none if rows are predicted.
    pub(crate) weight: Option<usize>,
    /// Numeric features that read numbers, in the job's order.
    pub(crate) numeric: Vec<usize>,
    /// The columns of features that are read as categories, in their order: several of a cross, two of a feature with weights.
    pub(crate) categorical: Vec<usize>,
    pub(crate) group: Option<usize>,
    /// The columns whose texts are read beside a row that is scored.
    pub(crate) keys: Vec<usize>,
    /// The column of times that divides the rows into parts.
    pub(crate) time: Option<usize>,
}

impl FileLayout {
    pub(crate) fn read(job: &Job, path: &Path, cancel: &Arc<AtomicBool>) -> Result<Self, IngestError> {
        if let Some(file) = ColumnFile::open(path, DataContent::from_format(&job.data.format)) {
            return Self::from_columns(job, path, &file?);
        }
        let mut head = FileHead::open(path, cancel, job)?;
        let names = match head.text.names.clone() {
            ColumnNames::Header(expected) => checked_header(job, path, expected, head.read_header()?)?,
            ColumnNames::Given(names) => head.without_label(job, names)?,
            ColumnNames::Keys => {
                check_objects(job, path, cancel)?;
                used_columns(job)
            }
        };
        let positions = ColumnPositions::find(job, path, &names)
            .map_err(|error| with_separator(error, head.text.fields.delimiter, &names))?;
        Ok(Self {
            row_groups: None,
            path: path.into(),
            bytes: head.file.get_ref().bytes,
            is_compressed: head.file.get_ref().compression().is_some(),
            data_start: head.offset,
            first_line: head.line,
            records: head.text.records,
            positions,
        })
    }

    fn from_columns(job: &Job, path: &Path, footer: &ColumnFile) -> Result<Self, IngestError> {
        let positions = ColumnPositions::find(job, path, footer.column_names())?;
        let ColumnPositions { labels, weight, numeric, categorical, group, keys, time, .. } = &positions;
        let learned = labels.iter().chain(weight);
        let used = learned.chain(numeric).chain(categorical).chain(group).chain(keys).chain(time).copied();
        let row_groups = footer.row_groups(path, used)?;
        check_shapes(job, path, &row_groups.columns)?;
        let row_groups = Some(row_groups);
        let bytes = footer.file_bytes();
        Ok(Self {
            path: path.into(),
            bytes,
            is_compressed: false,
            data_start: 0,
            first_line: 1,
            positions,
            row_groups,
            records: None,
        })
    }

    pub(crate) fn is_splittable(&self) -> bool {
        match &self.row_groups {
            Some(row_groups) => row_groups.groups.len() > 1,
            // Where a record starts is not known before all of the file before it is read.
            None => !self.is_compressed && self.records.is_none() && !is_stdin(&self.path),
        }
    }
}

impl ColumnPositions {
    fn find(job: &Job, path: &Path, names: &[String]) -> Result<Self, IngestError> {
        let (features, predict) = (&job.features, job.eval.predict.as_ref());
        let find = |column: &String| column_position(path, names, column);
        let categories = features.category_features();
        let categorical = categories.iter().flat_map(|feature| features.source_columns(feature));
        let targets = features.targets.iter().filter(|_| predict.is_none());
        let time = job.data.time_column().filter(|_| predict.is_none());
        Ok(Self {
            fields: names.len(),
            labels: targets.map(|target| find(&target.column)).collect::<Result<_, _>>()?,
            weight: features.weight.as_ref().filter(|_| predict.is_none()).map(find).transpose()?,
            numeric: features.number_features().map(|feature| find(&feature.column)).collect::<Result<_, _>>()?,
            categorical: categorical.map(|column| column_position(path, names, column)).collect::<Result<_, _>>()?,
            group: job.eval.group_by.as_ref().filter(|_| predict.is_none()).map(find).transpose()?,
            keys: job.eval.noted_columns().iter().map(find).collect::<Result<_, _>>()?,
            time: time.map(|column| column_position(path, names, column)).transpose()?,
        })
    }
}

pub(crate) fn column_position(path: &Path, names: &[String], column: &str) -> Result<usize, IngestError> {
    let mut places = names.iter().enumerate().filter(|(_, name)| *name == column).map(|(place, _)| place);
    match (places.next(), places.next()) {
        (Some(place), None) => Ok(place),
        (Some(_), Some(_)) => {
            Err(IngestError::BadHeader { path: path.into(), reason: format!("two columns are named \"{column}\"") })
        }
        (None, _) => Err(IngestError::MissingColumn {
            path: path.into(),
            column: column.into(),
            similar: most_similar(names, column),
            found: names.to_vec(),
        }),
    }
}

/// Names the separator of a header that is one field with the job's separator, if another one divides it into columns among
/// which the missing one is.
fn with_separator(error: IngestError, delimiter: u8, names: &[String]) -> IngestError {
    let (IngestError::MissingColumn { path, column, .. }, [header]) = (&error, names) else { return error };
    let has_column = |separator: u8| {
        let syntax = FieldSyntax { delimiter: separator, quotes: true, trim: true };
        let mut fields = LineFields::default();
        let divided = fields.tokenize(header.as_bytes(), syntax).is_ok();
        divided && (0..fields.len()).any(|field| fields.get(header.as_bytes(), field) == column.as_bytes())
    };
    let Some(separator) = usual_separators(delimiter).find(|separator| has_column(*separator)) else { return error };
    let separator = char::from(separator).to_string();
    IngestError::bad_file(
        path,
        format!(
            "no column \"{column}\", and the header is one field: is the separator {separator:?}? set data.delimiter = {separator:?}"
        ),
    )
}

/// The columns of a header, which the job may name as well.
fn checked_header(
    job: &Job,
    path: &Path,
    expected: Vec<String>,
    found: Vec<String>,
) -> Result<Vec<String>, IngestError> {
    let is_unlabelled = || job.eval.predict.is_some() && unlabelled_columns(job, &expected) == found;
    if expected.is_empty() || expected == found || is_unlabelled() {
        return Ok(found);
    }
    let (found, expected) = (found.join(", "), expected.join(", "));
    let help = "correct data.columns, or remove it to use the header";
    Err(IngestError::bad_file(path, format!("the header ({found}) differs from data.columns ({expected}); {help}")))
}

fn unlabelled_columns(job: &Job, names: &[String]) -> Vec<String> {
    names.iter().filter(|name| !job.features.learned_columns().any(|column| column == *name)).cloned().collect()
}

struct FileHead {
    path: PathBuf,
    file: BufReader<FileText>,
    max_line_bytes: usize,
    text: TextSyntax,
    offset: u64,
    line: u64,
}

impl FileHead {
    fn open(path: &Path, cancel: &Arc<AtomicBool>, job: &Job) -> Result<Self, IngestError> {
        let file = BufReader::new(FileText::open(path, ReadReach::Start, cancel)?);
        let (max_line_bytes, text) = (job.data.max_line_bytes, TextSyntax::new(&job.data.format));
        let mut head = Self { path: path.into(), file, max_line_bytes, text, offset: 0, line: 1 };
        let start = head.file.fill_buf().map(|start| (start.starts_with(BYTE_ORDER_MARK), other_format(start)));
        let (has_mark, other) = start.map_err(|error| head.file.get_ref().explain(error))?;
        if let Some(reason) = other {
            return Err(IngestError::bad_file(path, reason));
        }
        if has_mark {
            head.file.consume(BYTE_ORDER_MARK.len());
            head.offset = BYTE_ORDER_MARK.len() as u64;
        }
        Ok(head)
    }

    /// The columns of a file without header. Rows that are predicted may have no label: then the first line that is neither
    /// blank nor a comment has one field less. The line stays the next one.
    fn without_label(&mut self, job: &Job, names: Vec<String>) -> Result<Vec<String>, IngestError> {
        if job.eval.predict.is_none() {
            return Ok(names);
        }
        let (offset, line) = (self.offset, self.line);
        let first = self.first_row()?;
        (self.offset, self.line) = (offset, line);
        let mut fields = LineFields::default();
        let unlabelled = unlabelled_columns(job, &names);
        let is_divided = fields.tokenize(&first, self.text.fields).is_ok();
        Ok(if is_divided && fields.len() == unlabelled.len() { unlabelled } else { names })
    }

    /// The first line that is neither blank nor a comment.
    fn first_row(&mut self) -> Result<Vec<u8>, IngestError> {
        loop {
            let line = self.next_line()?;
            if !self.text.is_no_row(&line) {
                return Ok(line);
            }
        }
    }

    fn next_line(&mut self) -> Result<Vec<u8>, IngestError> {
        let (mut line, mut lines) = (Vec::new(), 0);
        let mut scanner = self.text.records.clone().map(RecordScanner::new);
        loop {
            let (before, room) = (line.len(), (self.max_line_bytes + 1).saturating_sub(line.len()));
            let read = self.file.by_ref().take(room as u64).read_until(b'\n', &mut line);
            let read = read.map_err(|error| self.file.get_ref().explain(error))?;
            lines += 1;
            if read == 0 || scanner.as_mut().is_none_or(|scanner| scanner.next_end(&line[before..], 0).is_some()) {
                break;
            }
        }
        let read = line.len();
        if read == 0 {
            return Err(self.bad_header("the file has no line that is neither blank nor a comment".into()));
        }
        if read > self.max_line_bytes {
            let limit = self.max_line_bytes;
            return Err(self.bad_header(format!("line {} is longer than data.max_line_bytes ({limit})", self.line)));
        }
        self.offset += read as u64;
        self.line += lines;
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        Ok(line.strip_suffix(b"\r").unwrap_or(line).to_vec())
    }

    /// The names in the first line.
    fn read_header(&mut self) -> Result<Vec<String>, IngestError> {
        let (line, syntax) = (self.first_row()?, self.text.fields);
        let mut fields = LineFields::default();
        if fields.tokenize(&line, syntax).is_err() {
            let divides =
                |delimiter: &u8| fields.tokenize(&line, FieldSyntax { delimiter: *delimiter, ..syntax }).is_ok();
            let other = usual_separators(syntax.delimiter).find(divides).map(|other| char::from(other).to_string());
            let hint = other.map(|other| format!(" with the separator of the job; set data.delimiter = {other:?}?"));
            return Err(self.bad_header(format!("its quotes do not pair up{}", hint.unwrap_or_default())));
        }
        (0..fields.len())
            .map(|field| String::from_utf8(fields.get(&line, field).to_vec()))
            .collect::<Result<_, _>>()
            .map_err(|_| self.bad_header("it is not UTF-8".into()))
    }

    fn bad_header(&self, reason: String) -> IngestError {
        IngestError::BadHeader { path: self.path.clone(), reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    fn layout(job: &Job, bytes: &[u8]) -> Result<FileLayout, IngestError> {
        let (_folder, path) = fixture::file(bytes);
        FileLayout::read(job, &path, &Arc::default())
    }

    /// A job with `click`, `age`, `city` and `tags`, found by the header.
    fn job() -> Job {
        fixture::delimited(|format| format.comment = Some("#".into()))
    }

    #[test]
    fn a_file_of_columns_is_no_text() {
        for (job, start, format) in [
            (fixture::criteo(), &b"PAR1\x15\x04"[..], "parquet"),
            (job(), b"ARROW1\0\0", "arrow"),
            (fixture::delimited(|format| format.header = false), b"ARROW1\0\0", "arrow"),
        ] {
            let error = layout(&job, start).unwrap_err().to_string();
            assert!(error.contains(&format!("set data.format = \"{format}\"")), "{error}");
        }
    }

    #[test]
    fn criteo_has_forty_columns() {
        let job = fixture::criteo();
        let layout = layout(&job, b"any text").unwrap();
        assert_eq!((layout.data_start, layout.first_line), (0, 1));
        assert_eq!(layout.positions, ColumnPositions { group: None, ..fixture::positions(&job) });
    }

    #[test]
    fn the_header_decides_where_columns_are() {
        let text = b"\xef\xbb\xbf# made by hand\r\n\ncity,\"tags\",more,age,click\r\n1,2,3,4,5\n";
        let layout = layout(&job(), text).unwrap();
        let (labels, numeric, categorical) = (vec![4], vec![3], vec![0, 1]);
        let expected =
            ColumnPositions { fields: 5, labels, numeric, categorical, group: None, ..fixture::positions(&job()) };
        assert_eq!(layout.positions, expected);
        assert_eq!(&text[layout.data_start as usize..], b"1,2,3,4,5\n");
        assert_eq!(layout.first_line, 4);
    }

    #[test]
    fn a_header_that_does_not_fit_the_job_is_refused_with_the_reason() {
        let named = fixture::delimited(|format| format.columns = vec!["click".into(), "age".into()]);
        let mut short = job();
        short.data.max_line_bytes = 100;
        for (job, header, reason) in [
            (
                &job(),
                &b"click,age,City,tags\n"[..],
                "no column \"city\", did you mean \"City\"?; its columns are: click, age, City, tags",
            ),
            (
                &job(),
                b"click;age;city;tags\n",
                "no column \"click\", and the header is one field: is the separator \";\"? set data.delimiter = \";\"",
            ),
            (
                &job(),
                b"\"click\"\t\"age\"\t\"city\"\t\"tags\"\n",
                "do not pair up with the separator of the job; set data.delimiter = \"\\t\"?",
            ),
            (&job(), b"tag\n", "its columns are: tag"),
            (&job(), b"click,age,city,tags,age\n", "two columns are named \"age\""),
            (&job(), b"# one\n# two\n", "no line that is neither blank nor a comment"),
            (&named, b"click,years\n", "the header (click, years) differs from data.columns (click, age)"),
            (&short, &b"x".repeat(10_000), "line 1 is longer than data.max_line_bytes (100)"),
        ] {
            let error = layout(job, header).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_not_part_of_the_first_field() {
        let job = fixture::delimited(|format| {
            format.header = false;
            format.columns = ["click", "age", "city", "tags"].map(String::from).to_vec();
        });
        assert_eq!(layout(&job, b"\xef\xbb\xbf1,2,x,\n").unwrap().data_start, 3);
    }
}
