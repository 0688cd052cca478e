//! The job of a saved model for rows that may be in another format than those that it was trained on.
//!
//! `--set data.format` and the keys that go with it decide, otherwise the content of the files does.

use std::mem::discriminant;
use std::path::{Path, PathBuf};

use crate::init::{describe_format, rows_format};
use zagros_ingest::DataContent;
use zagros_job::{DecimalMark, DelimitedFormat, Format, Job, PredictRows};
use zagros_shell::{Exit, Failure, OrFailure, note, parse_job};

use crate::saved::SavedModel;

/// Keys that say how rows are written.
const FORMAT: &str = "data.format";
const FORMAT_KEYS: [&str; 8] = [
    FORMAT,
    "data.delimiter",
    "data.header",
    "data.columns",
    "data.comment",
    "data.trim",
    "data.decimal",
    "data.quoted_breaks",
];

/// The model's job, which reads these files. `predict` is what `zagros predict` reads of them.
pub(crate) fn job_for(
    saved: &SavedModel,
    sets: &[String],
    files: &[PathBuf],
    predict: Option<PredictRows>,
) -> Result<Job, Failure> {
    let (of_format, others): (Vec<_>, Vec<_>) = sets.iter().cloned().partition(|set| FORMAT_KEYS.contains(&key(set)));
    let mut job = saved.load_job(if of_format.is_empty() { sets } else { &others })?;
    if of_format.is_empty() {
        job.eval.predict = predict;
        return in_found_format(job, files);
    }
    let named = of_format.iter().rev().find(|set| key(set) == FORMAT).map_or("delimited", |set| value(set));
    job = match default_of(named) {
        Some(format) if discriminant(&format) != discriminant(&job.data.format) => {
            job.data.format = format;
            checked(&job, &of_format)?
        }
        // The keys that are not set stay, and a name that is none is refused.
        _ => saved.load_job(sets)?,
    };
    job.eval.predict = predict;
    Ok(job)
}

/// The job with the format of the files, and a line that says which if it is another one.
fn in_found_format(job: Job, files: &[PathBuf]) -> Result<Job, Failure> {
    let Some(mut found) = rows_format(&job, files).or_exit(Exit::Data)? else { return Ok(job) };
    let first = files.first().map(|file| file.display().to_string()).unwrap_or_default();
    let [of_rows, own] = [&found, &job].map(|job| describe_format(&job.data.format));
    note!("{first} is read as {of_rows}; the model was trained on {own}");
    let predict = found.eval.predict.take();
    let mut job = checked(&found, &[])?;
    job.eval.predict = predict;
    Ok(job)
}

/// The job as it loads again: a feature may not fit another format.
fn checked(job: &Job, sets: &[String]) -> Result<Job, Failure> {
    parse_job(&job.to_toml(), Path::new("the model's job.toml, in the format of the rows"), sets)
}

/// A format without any of its keys.
fn default_of(name: &str) -> Option<Format> {
    Some(match name {
        "criteo" => Format::Criteo,
        "delimited" => Format::Delimited(DelimitedFormat {
            delimiter: b',',
            header: true,
            columns: Vec::new(),
            comment: None,
            trim: false,
            quoted_breaks: false,
            decimal: DecimalMark::Point,
            missing: Vec::new(),
        }),
        other => return DataContent::from_name(other)?.job_format(&[]),
    })
}

fn key(set: &str) -> &str {
    set.split_once('=').map_or(set, |(key, _)| key).trim()
}

fn value(set: &str) -> &str {
    set.split_once('=').map_or("", |(_, value)| value).trim().trim_matches(['"', '\''])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_divided_into_its_key_and_its_text() {
        assert_eq!((key(" data.format = 'jsonl' "), value("data.format='jsonl'")), ("data.format", "jsonl"));
        assert_eq!((key("data.format"), value("data.format")), ("data.format", ""));
    }
}
