//! Checks every checksum of every file, and compares the files with the manifest.

use indicatif::{HumanBytes, HumanCount, ProgressBar};
use owo_colors::OwoColorize;
use serde::Serialize;
use zagros_rows::snapshot::{SavedFile, VerifiedFile, verify_file};
use zagros_scoring::{FileRecord, Manifest};
use zagros_shell::{Exit, Failure, out, print_report};

use super::model::InspectedModel;
use super::{file_name, progress};
use crate::saved::snapshot_failure;

#[derive(Serialize)]
struct FileReport {
    file: String,
    blocks: u64,
    rows: u64,
    bytes: u64,
    problem: Option<String>,
}

/// Checks all files, also after a damaged one: files of rows block by block, and all files by the manifest.
pub(super) fn verify(model: &InspectedModel, json: bool) -> Result<Exit, Failure> {
    let bar = progress(model);
    let mut files: Vec<FileReport> = model.files.iter().map(|saved| verify_rows(model, saved, &bar)).collect();
    bar.finish_and_clear();
    let problem = missing_rows(model, &files)?;
    let others = model.manifest.iter().flat_map(|manifest| verify_others(model, manifest));
    files.extend(others);
    print_report(&files, json, |files| files.iter().for_each(print))?;
    conclude(&files, problem, json)
}

fn verify_rows(model: &InspectedModel, saved: &SavedFile, bar: &ProgressBar) -> FileReport {
    let passed = |bytes| bar.inc(bytes);
    let checked = match &model.manifest {
        Some(manifest) => manifest.check_rows(&model.folder, saved, passed).map_err(|error| error.to_string()),
        None => verify_file(saved, passed).map_err(|error| error.to_string()),
    };
    FileReport::new(file_name(saved.path()), checked)
}

/// Checks the files without rows: weights, job, and in a checkpoint the state of the run.
fn verify_others(model: &InspectedModel, manifest: &Manifest) -> Vec<FileReport> {
    let others = manifest.files.iter().filter(|file| !manifest.row_files.contains(&file.name));
    let verify = |file: &FileRecord| {
        let checked = manifest.check_file(&model.folder, &file.name, &|_| ());
        let (problem, bytes) = (checked.err().map(|error| error.to_string()), file.bytes);
        FileReport { file: file.name.clone(), blocks: 0, rows: 0, bytes, problem }
    };
    others.map(verify).collect()
}

fn missing_rows(model: &InspectedModel, files: &[FileReport]) -> Result<Option<String>, Failure> {
    let Some(manifest) = model.manifest.as_ref().filter(|_| files.iter().all(|file| file.problem.is_none())) else {
        return Ok(None);
    };
    let rows = rows(model, files)?;
    let differs = || format!("the manifest says {} rows, but the files have {rows}", manifest.rows);
    Ok((rows != manifest.rows).then(differs))
}

/// Rows of all files. A row that is in a delta too counts once.
fn rows(model: &InspectedModel, files: &[FileReport]) -> Result<u64, Failure> {
    let chains = model.file_chains()?;
    if chains.len() == model.files.len() {
        return Ok(files.iter().map(|file| file.rows).sum());
    }
    chains.iter().map(|chain| chain.count_rows(|_| true)).sum::<Result<u64, _>>().map_err(snapshot_failure)
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
    fn new(file: String, checked: Result<VerifiedFile, String>) -> Self {
        match checked {
            Ok(VerifiedFile { blocks, rows, bytes, .. }) => Self { file, blocks, rows, bytes, problem: None },
            Err(problem) => Self { file, blocks: 0, rows: 0, bytes: 0, problem: Some(problem) },
        }
    }
}

fn print(report: &FileReport) {
    let FileReport { file, blocks, rows, bytes, problem } = report;
    match problem {
        Some(problem) => out!("{} {problem}", "✗".red()),
        None if *blocks == 0 => out!("{} {file}  {}", "✓".green(), HumanBytes(*bytes)),
        None => out!(
            "{} {file}  {} row(s) in {} block(s), {}",
            "✓".green(),
            HumanCount(*rows),
            HumanCount(*blocks),
            HumanBytes(*bytes)
        ),
    }
}
