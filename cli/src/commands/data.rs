//! `zagros data generate|inspect|validate`.

use std::path::Path;

use indicatif::{HumanBytes, HumanCount};
use zagros_eval::Scores;
use zagros_ingest::synthetic::{SyntheticSpec, generate as write_files};
use zagros_ingest::{ColumnSummaries, IngestError};
use zagros_plumbing::durable;
use zagros_shell::{Exit, Failure, OrInternal, load_job, note, out};

use crate::args::{GenerateArgs, InspectArgs, ValidateArgs};
use crate::report::Planted;

/// How many bad rows `validate` shows.
const SHOWN: usize = 20;

/// Marks a folder to which files are being written.
const UNFINISHED: &str = "planted.json.unfinished";

/// Writes train.txt, test.txt and, last, planted.json, which marks the set as whole.
pub(crate) fn generate(args: &GenerateArgs) -> Result<Exit, Failure> {
    let there = args.folder.join("train.txt");
    if args.keep && there.exists() {
        note!("{} exists and is left unchanged", there.display());
        return Ok(Exit::Success);
    }
    if !args.force {
        refuse_to_replace(&args.folder)?;
    }
    let spec =
        SyntheticSpec { rows: args.rows, test_rows: args.test_rows, seed: args.seed, ..SyntheticSpec::default() };
    note!(
        "generating {} training and {} test rows in Criteo's format",
        HumanCount(args.rows),
        HumanCount(args.test_rows)
    );
    let planted_file = args.folder.join(Planted::FILE);
    let unfinished = args.folder.join(UNFINISHED);
    std::fs::create_dir_all(&args.folder).map_err(|error| unwritable(&args.folder, error))?;
    std::fs::write(&unfinished, "").map_err(|error| unwritable(&unfinished, error))?;
    // An older planted.json would not describe the new files.
    match std::fs::remove_file(&planted_file) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(unwritable(&planted_file, error));
        }
        _ => {}
    }
    let planted = write_files(&spec, &args.folder).map_err(not_generated)?;
    let planted = measure(args, &planted)?;
    let text = serde_json::to_string_pretty(&planted).or_internal()?;
    durable::write(&planted_file, text.as_bytes()).map_err(|error| unwritable(&planted_file, error))?;
    std::fs::remove_file(&unfinished).map_err(|error| unwritable(&unfinished, error))?;
    note!(
        "{}: {} of data; best reachable test AUC {:.4}, logloss {:.4}",
        args.folder.display(),
        HumanBytes(size(&args.folder.join("train.txt")) + size(&args.folder.join("test.txt"))),
        planted.best_auc,
        planted.best_logloss
    );
    Ok(Exit::Success)
}

/// Refuses to replace files that `generate` has not written. Its files are beside planted.json, or beside the mark of an
/// interrupted call.
fn refuse_to_replace(folder: &Path) -> Result<(), Failure> {
    let is_ours = [Planted::FILE, UNFINISHED].iter().any(|name| folder.join(name).exists());
    let foreign = ["train.txt", "test.txt"].map(|name| folder.join(name)).into_iter().find(|path| path.exists());
    let Some(path) = foreign.filter(|_| !is_ours) else { return Ok(()) };
    let what = format!(
        "{} exists, and `zagros data generate` did not write it: there is no {} beside it",
        path.display(),
        Planted::FILE
    );
    Err(Failure::with_help(Exit::Usage, what, "give another folder, or --force to replace its train.txt and test.txt"))
}

fn unwritable(path: &Path, source: std::io::Error) -> Failure {
    not_generated(IngestError::Unwritable { path: path.to_owned(), source })
}

/// An impossible specification is a usage error. A failed write is the disk's fault.
fn not_generated(error: IngestError) -> Failure {
    let exit = if matches!(error, IngestError::BadSpec { .. }) { Exit::Usage } else { Exit::Storage };
    Failure::from_error(exit, error)
}

/// The measures of the planted probabilities.
fn measure(args: &GenerateArgs, test: &[(f32, f32)]) -> Result<Planted, Failure> {
    let mut scores = Scores::new();
    for &(label, logit) in test {
        scores.push(label, logit);
    }
    let report = scores.report();
    let (Some(best_auc), Some(best_logloss), Some(positive_rate)) = (report.auc, report.logloss, report.positive_rate)
    else {
        let what = format!("the test part of {} row(s) holds one class only", args.test_rows);
        return Err(Failure::with_help(Exit::Usage, what, "ask for more with --test-rows"));
    };
    Ok(Planted { rows: args.rows, test_rows: args.test_rows, seed: args.seed, positive_rate, best_auc, best_logloss })
}

fn size(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |data| data.len())
}

/// Shows the content of each column.
pub(crate) fn inspect(args: &InspectArgs) -> Result<Exit, Failure> {
    let job = load_job(&args.job.job, &args.job.sets())?;
    let inspection = zagros_ingest::inspect(&job, args.rows).map_err(|error| Failure::from_error(Exit::Data, error))?;
    if inspection.rows == 0 && inspection.bad_rows > 0 {
        return Err(no_good_row(&inspection));
    }
    out!("{inspection}");
    Ok(Exit::Success)
}

/// A table of nothing would look as if the columns were empty.
fn no_good_row(inspection: &ColumnSummaries) -> Failure {
    let first: Vec<String> = inspection.first_bad.iter().map(|row| format!("  {row}")).collect();
    let what = format!("all {} rows that were read are malformed:\n{}", inspection.bad_rows, first.join("\n"));
    let help =
        "correct the job: `zagros init DATA` writes one that fits a file; `zagros data validate JOB` lists more rows";
    Failure::with_help(Exit::Data, what, help)
}

/// Checks every row. Malformed rows lead to the exit code of bad data.
pub(crate) fn validate(args: &ValidateArgs) -> Result<Exit, Failure> {
    let job = load_job(&args.job.job, &args.job.sets())?;
    let validation = zagros_ingest::validate(&job, SHOWN).map_err(|error| Failure::from_error(Exit::Data, error))?;
    out!("{validation}");
    Ok(if validation.bad == 0 { Exit::Success } else { Exit::Data })
}
