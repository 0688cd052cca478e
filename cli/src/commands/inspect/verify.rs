//! Every checksum of every file, and that the files are those of the manifest.

use indicatif::{HumanBytes, HumanCount};
use owo_colors::OwoColorize;
use serde::Serialize;
use zagros_dense_worker::Manifest;
use zagros_shell::{Exit, Failure, OrInternal, answer, out};
use zagros_snapshot::{Checked, SavedFile, file_crc};

use super::model::Model;
use super::{file_name, progress};

/// A file, and what is wrong with it.
#[derive(Serialize)]
struct FileReport {
    file: String,
    blocks: u64,
    rows: u64,
    bytes: u64,
    problem: Option<String>,
}

/// Checks all files, also after a damaged one.
pub(super) fn verify(model: &Model, json: bool) -> Result<Exit, Failure> {
    let bar = progress(model);
    let check = |(number, saved): (usize, &SavedFile)| {
        let expected = model.manifest.as_ref().and_then(|manifest| manifest.row_crcs.get(number).copied());
        let checked = zagros_snapshot::verify(saved, |bytes| bar.inc(bytes)).map_err(|error| error.to_string());
        let checked = checked.and_then(|checked| compare(saved, expected).map(|()| checked));
        FileReport::of(file_name(saved.path()), checked)
    };
    let files: Vec<FileReport> = model.files.iter().enumerate().map(check).collect();
    bar.finish_and_clear();
    let problem = model.manifest.as_ref().and_then(|manifest| missing_rows(manifest, &files));
    if json {
        answer(&serde_json::to_string_pretty(&files).or_internal()?)?;
    } else {
        files.iter().for_each(print);
    }
    conclude(&files, problem, json)
}

/// That the file is the one that the model was saved with.
fn compare(file: &SavedFile, expected: Option<u32>) -> Result<(), String> {
    let Some(expected) = expected else { return Ok(()) };
    let found = file_crc(file).map_err(|error| error.to_string())?;
    let told = || {
        format!(
            "{} is of another save: the manifest says CRC-32 {expected:08x}, it has {found:08x}",
            file.path().display()
        )
    };
    if found == expected { Ok(()) } else { Err(told()) }
}

fn missing_rows(manifest: &Manifest, files: &[FileReport]) -> Option<String> {
    let rows: u64 = files.iter().map(|file| file.rows).sum();
    let is_whole = files.iter().all(|file| file.problem.is_none());
    (is_whole && rows != manifest.rows)
        .then(|| format!("the manifest says {} rows, the files have {rows}", manifest.rows))
}

fn conclude(files: &[FileReport], problem: Option<String>, json: bool) -> Result<Exit, Failure> {
    let damaged = files.iter().filter(|file| file.problem.is_some()).count();
    let what = (damaged > 0).then(|| format!("{damaged} of {} file(s) cannot be used", files.len()));
    if let Some(what) = what.or(problem) {
        return Err(Failure::with_help(Exit::Data, what, "use another save, or the files as they were written"));
    }
    if !json {
        out!("every checksum agrees");
    }
    Ok(Exit::Success)
}

impl FileReport {
    fn of(file: String, checked: Result<Checked, String>) -> Self {
        match checked {
            Ok(Checked { blocks, rows, bytes, .. }) => Self { file, blocks, rows, bytes, problem: None },
            Err(problem) => Self { file, blocks: 0, rows: 0, bytes: 0, problem: Some(problem) },
        }
    }
}

fn print(report: &FileReport) {
    let FileReport { file, blocks, rows, bytes, problem } = report;
    match problem {
        Some(problem) => out!("{} {problem}", "✗".red()),
        None => out!(
            "{} {file}  {} row(s) in {} block(s), {}",
            "✓".green(),
            HumanCount(*rows),
            HumanCount(*blocks),
            HumanBytes(*bytes)
        ),
    }
}
