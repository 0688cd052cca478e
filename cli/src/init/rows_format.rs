//! The format of rows that a saved model scores, which need not be that of the rows it was trained on.
//!
//! ```text
//! the model's format reads the first rows           no change
//! Parquet, Arrow, JSON lines, by the first bytes    that format
//! lines that another separator divides              that separator, with a header or with the job's columns
//! ```
//!
//! What the job says of missing values stays. A list has no separator, so texts in its place are divided by the one that most of them have. The other keys of its format have no meaning in another one.

use std::path::PathBuf;

use zagros_ingest::{DataContent, FileStart, can_read_file, file_starts};
use zagros_job::{DecimalMark, DelimitedFormat, Format, IdSource, Job, Values};

use crate::init::InitError;
use crate::init::dialect::{DividedLines, TextDialect};
use crate::init::table::have_commas;

/// What may separate the values of a list in a text, the likelier first.
const LIST_SEPARATORS: [char; 4] = ['|', ';', ',', ' '];

/// The job with the format of the rows of files that the job's own format does not read; `None` if it does, or if no format is known to.
pub(crate) fn rows_format(job: &Job, files: &[PathBuf]) -> Result<Option<Job>, InitError> {
    let start = file_starts(files)?.swap_remove(0);
    let own = &job.data.format;
    match start.content.job_format(own.missing_texts()) {
        Some(_) if start.content == DataContent::from_format(own) => Ok(None),
        Some(format) => Ok(Some(with_format(job, format))),
        None => in_lines(job, &start),
    }
}

/// A format in words, for one line of a message.
pub(crate) fn describe_format(format: &Format) -> String {
    let Format::Delimited(DelimitedFormat { delimiter, header, .. }) = format else {
        return match format {
            Format::Criteo => "Criteo's TSV".to_owned(),
            other => DataContent::from_format(other).to_string(),
        };
    };
    let separator = match delimiter {
        b',' => "CSV".to_owned(),
        b'\t' => "TSV".to_owned(),
        other => format!("text separated by {:?}", char::from(*other)),
    };
    format!("{separator} {} header", if *header { "with a" } else { "without" })
}

fn with_format(job: &Job, format: Format) -> Job {
    let mut job = job.clone();
    job.data.format = format;
    job
}

fn in_lines(job: &Job, start: &FileStart) -> Result<Option<Job>, InitError> {
    let own = &job.data.format;
    if DataContent::from_format(own) == DataContent::Lines && can_read_file(job, &start.path) {
        return Ok(None);
    }
    let found = divided(start);
    let named = |header: bool| {
        let mut job = with_format(job, delimited(own, &found, header)?);
        divide_lists(&mut job, &found);
        Some(job)
    };
    if let Some(fitting) =
        [named(true), named(false)].into_iter().flatten().find(|other| can_read_file(other, &start.path))
    {
        return Ok(Some(fitting));
    }
    match DataContent::from_format(own).has_columns() {
        // The errors of the job's own reader say best what is wrong.
        false => Ok(None),
        true if found.dialect.header => Ok(named(true)),
        true => Err(InitError::Data(format!(
            "{}: its first line looks like values, so its columns have no names; write a line of names first, or name them by \
             --set data.format=delimited --set data.header=false --set 'data.columns=[\"…\", …]' (and data.delimiter, if it is no comma)",
            start.path.display()
        ))),
    }
}

/// Gives features that were lists a separator: that of most of their texts.
fn divide_lists(job: &mut Job, found: &DividedLines) {
    let separator = |column: &str| {
        let place = found.names.iter().position(|name| name == column);
        let texts = || found.rows.iter().filter_map(|row| row.get(place?));
        let count = |inner: &&char| texts().filter(|text| text.contains(**inner)).count();
        let inner = LIST_SEPARATORS.iter().filter(|inner| **inner != found.dialect.separator);
        // The first of equals.
        inner.rev().max_by_key(count).unwrap_or(&LIST_SEPARATORS[0]).to_string()
    };
    for feature in &mut job.features.categorical {
        let IdSource::Column { column, .. } = &feature.source else { continue };
        match &mut feature.values {
            Values::Many { separator: of_feature, .. } | Values::Sequence { separator: of_feature, .. }
                if of_feature.is_empty() =>
            {
                *of_feature = separator(column);
            }
            _ => {}
        }
    }
    for feature in job.features.numeric.iter_mut().filter(|feature| feature.width.is_some()) {
        feature.separator.get_or_insert_with(|| separator(&feature.column));
    }
}

/// The lines of a file as fields. Those that nothing divides are fields.
fn divided(start: &FileStart) -> DividedLines {
    DividedLines::from_lines(&start.lines).unwrap_or_else(|_| {
        let dialect = TextDialect { separator: ',', fields: 1, trim: false, header: true, ..TextDialect::of_criteo() };
        DividedLines { dialect, names: start.lines.first().cloned().into_iter().collect(), rows: Vec::new() }
    })
}

/// Text of this dialect, whose columns are named by a header or by the job; `None` if the job does not name them.
fn delimited(own: &Format, found: &DividedLines, header: bool) -> Option<Format> {
    let dialect = &found.dialect;
    let columns = match own {
        _ if header => Vec::new(),
        Format::Criteo => zagros_ingest::criteo_columns(),
        Format::Delimited(own) if !own.columns.is_empty() => own.columns.clone(),
        _ => return None,
    };
    let texts = |column: usize| found.rows.iter().filter_map(move |row| row.get(column)).map(String::as_str);
    let has_commas = (0..dialect.fields).any(|column| have_commas(texts(column)));
    Some(Format::Delimited(DelimitedFormat {
        delimiter: u8::try_from(dialect.separator).ok()?,
        header,
        columns,
        comment: dialect.has_comments.then(|| "#".to_owned()),
        trim: dialect.trim,
        quoted_breaks: dialect.quoted_breaks,
        decimal: if dialect.separator != ',' && has_commas { DecimalMark::Comma } else { DecimalMark::Point },
        missing: own.missing_texts().to_vec(),
    }))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use zagros_job::{Overrides, PredictRows};

    use super::*;

    const FEATURES: &str = "[features]\nlabel = 'y'\nnumeric = ['n']\ncategorical = ['c']\n[model]\nkind = 'ffnn'\n";

    fn job(data: &str) -> Job {
        let text = format!("[data]\ntrain = 'none'\n{data}\n{FEATURES}");
        Job::parse(&text, Path::new("job.toml"), &Overrides::default()).unwrap()
    }

    fn job_for_text(job: &Job, text: &str) -> Result<Option<Job>, InitError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        fs::write(&path, text).unwrap();
        rows_format(job, &[path])
    }

    fn described(job: &Job, text: &str) -> Option<String> {
        job_for_text(job, text).unwrap().map(|job| describe_format(&job.data.format))
    }

    #[test]
    fn the_jobs_own_format_stays_where_it_reads_the_rows() {
        let csv = job("format = 'delimited'\nmissing = ['?']");
        assert_eq!(described(&csv, "y,n,c\n1,2,x\n"), None);
        // Its errors say what is wrong.
        for wrong in ["y,n\n1,2\n", "y,n,c\n1,many,x\n", "nonsense\n"] {
            assert_eq!(described(&csv, wrong), None, "{wrong}");
        }
        assert_eq!(described(&job("format = 'jsonl'"), "{\"y\":1}\n"), None);
    }

    #[test]
    fn another_separator_or_format_is_found_and_marks_of_missing_values_stay() {
        let csv = job("format = 'delimited'\nmissing = ['?']");
        let separated = described(&csv, "c;y;n\nx;1;2\n\"a;b\";0;3\n");
        assert_eq!(separated.as_deref(), Some("text separated by ';' with a header"));
        let comma = job_for_text(&csv, "c;y;n\nx;1;2,5\nz;0;3\n").unwrap().unwrap().data.format;
        assert!(
            matches!(comma, Format::Delimited(DelimitedFormat { decimal: DecimalMark::Comma, delimiter: b';', .. })),
            "{comma:?}"
        );
        let found = job_for_text(&csv, "\n {\"y\":1}\n").unwrap().unwrap().data.format;
        let Format::Jsonl(found) = found else { panic!("{found:?}") };
        assert_eq!(found.missing, ["?"]);
        let json = job("format = 'jsonl'");
        assert_eq!(described(&json, "y\tn\tc\n1\t2\tx\n").as_deref(), Some("TSV with a header"));
        assert_eq!(described(&job("format = 'parquet'"), "y,n,c\n1,2,x\n").as_deref(), Some("CSV with a header"));
    }

    #[test]
    fn lists_become_texts_with_the_separator_that_most_have() {
        let lists = FEATURES.replace("['c']", "[{ column = 'c', pooling = 'mean' }]");
        let text = format!("[data]\ntrain = 'none'\nformat = 'parquet'\n{lists}");
        let job = Job::parse(&text, Path::new("job.toml"), &Overrides::default()).unwrap();
        for (rows, separator) in [("y,n,c\n1,2,a;b\n0,3,a b;c\n", ";"), ("y;n;c\n1;2;a\n0;3;b\n", "|")] {
            let found = job_for_text(&job, rows).unwrap().unwrap();
            assert_eq!(found.features.categorical[0].values.separator(), Some(separator), "{rows}");
        }
    }

    #[test]
    fn columns_without_names_are_those_of_the_job_or_refused() {
        let named = job("format = 'delimited'\nheader = false\ncolumns = ['y', 'n', 'c']");
        assert_eq!(described(&named, "1\t2\tx\n0\t3\tx\n").as_deref(), Some("TSV without header"));
        let mut unlabelled = named.clone();
        unlabelled.eval.predict = Some(PredictRows { keys: Vec::new(), keep_bad: false });
        assert_eq!(described(&unlabelled, "2\tx\n3\tx\n").as_deref(), Some("TSV without header"));
        let error = job_for_text(&job("format = 'parquet'"), "1,2,x\n0,3,x\n").unwrap_err().to_string();
        assert!(error.contains("have no names") && error.contains("data.columns"), "{error}");
    }
}
