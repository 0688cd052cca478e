//! `zagros data generate|inspect|validate`.

use std::path::Path;

use indicatif::{HumanBytes, HumanCount};
use zagros_eval::ClickScores;
use zagros_ingest::synthetic::{
    FactorSpec, SyntheticSpec, factor_columns, generate_criteo as write_files, generate_factors,
};
use zagros_ingest::{ColumnSummaries, IngestError};
use zagros_shell::{Exit, Failure, OrFailure, load_job, note, out, write_file};

use crate::args::{GenerateArgs, InspectArgs, TeacherChoice, ValidateArgs};
use crate::report::PlantedMeasures;

const SHOWN: usize = 20;

/// Marks a folder to which files are being written.
const UNFINISHED: &str = "planted.json.unfinished";

/// The job that is written beside the data of the teacher `factors`.
const JOB: &str = "job.toml";

/// Names of the files of a teacher: training and test part first.
fn names(teacher: TeacherChoice) -> &'static [&'static str] {
    match teacher {
        TeacherChoice::Linear => &["train.txt", "test.txt"],
        TeacherChoice::Factors => &["train.csv", "test.csv", JOB],
    }
}

/// Writes training and test part and, last, planted.json, which marks the set as whole.
pub(crate) fn generate(args: &GenerateArgs) -> Result<Exit, Failure> {
    if let Some(option) = args.foreign_option() {
        let what = format!("`{option}` is of the teacher `factors`");
        return Err(Failure::usage(what, "add --teacher factors, or leave the option out"));
    }
    let names = names(args.teacher);
    let there = args.folder.join(names[0]);
    if args.keep && there.exists() {
        note!("{} exists and is left unchanged", there.display());
        return Ok(Exit::Success);
    }
    if !args.force {
        refuse_to_replace(&args.folder, names)?;
    }
    note!("generating {} training and {} test rows", HumanCount(args.rows), HumanCount(args.test_rows));
    let planted_file = args.folder.join(PlantedMeasures::FILE);
    let unfinished = args.folder.join(UNFINISHED);
    std::fs::create_dir_all(&args.folder).map_err(|error| Failure::unwritable(&args.folder, &error))?;
    std::fs::write(&unfinished, "").map_err(|error| Failure::unwritable(&unfinished, &error))?;
    // An older planted.json would not describe the new files.
    if let Err(error) = std::fs::remove_file(&planted_file)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(Failure::unwritable(&planted_file, &error));
    }
    let truth = write(args)?;
    let planted = measure(args, &truth)?;
    write_file(&planted_file, serde_json::to_string_pretty(&planted).or_internal()?)?;
    std::fs::remove_file(&unfinished).map_err(|error| Failure::unwritable(&unfinished, &error))?;
    note!(
        "{}: {} of data; best reachable test AUC {:.4}, logloss {:.4}",
        args.folder.display(),
        HumanBytes(names[..2].iter().map(|name| size(&args.folder.join(name))).sum()),
        planted.best_auc,
        planted.best_logloss
    );
    Ok(Exit::Success)
}

fn write(args: &GenerateArgs) -> Result<Vec<(f32, f32)>, Failure> {
    let (rows, test_rows, seed) = (args.rows, args.test_rows, args.seed);
    match args.teacher {
        TeacherChoice::Linear => {
            let spec = SyntheticSpec { rows, test_rows, seed };
            write_files(&spec, &args.folder).map_err(not_generated)
        }
        TeacherChoice::Factors => {
            let spec = args.factor_spec();
            let truth = generate_factors(&spec, &args.folder).map_err(not_generated)?;
            write_file(&args.folder.join(JOB), factor_job(&spec))?;
            Ok(truth)
        }
    }
}

fn factor_job(spec: &FactorSpec) -> String {
    let columns = factor_columns(spec);
    let numeric = columns.numeric.iter().map(|column| {
        // A factor is uniform in [0, 1).
        format!("  {{ column = \"{column}\", standardise = {{ mean = 0.5, deviation = 0.288675 }} }},\n")
    });
    format!(
        "# Generated data: a click depends on products of functions of latent factors (teacher `factors`, decay {}, {} terms,\n\
         # seed {}). planted.json has the best reachable measures.\n\
         name = \"factors\"\n\n[data]\nformat = \"delimited\"\ntrain = \"train.csv\"\ntest = \"test.csv\"\n\n\
         [features]\nlabel = \"label\"\nnumeric = [\n{}]\ncategorical = {:?}\n\n\
         [embedding]\ndim = 8\n\n[model]\nkind = \"ffnn\"\n\n[train]\nbatch_size = 1024\n",
        spec.decay,
        spec.terms,
        spec.seed,
        numeric.collect::<String>(),
        columns.categories,
    )
}

/// Refuses to replace files that `generate` has not written. Its files are beside planted.json, or beside the mark of an
/// interrupted call.
fn refuse_to_replace(folder: &Path, names: &[&str]) -> Result<(), Failure> {
    let is_ours = [PlantedMeasures::FILE, UNFINISHED].iter().any(|name| folder.join(name).exists());
    let foreign = names.iter().map(|name| folder.join(name)).find(|path| path.exists());
    let Some(path) = foreign.filter(|_| !is_ours) else { return Ok(()) };
    let what = format!(
        "{} exists, and `zagros data generate` did not write it: there is no {} beside it",
        path.display(),
        PlantedMeasures::FILE
    );
    let help = format!("give another folder, or --force to replace its {}", names.join(", "));
    Err(Failure::usage(what, help))
}

/// An impossible specification is a usage error. A failed write is the disk's fault.
fn not_generated(error: IngestError) -> Failure {
    let exit = if matches!(error, IngestError::BadSpec { .. }) { Exit::Usage } else { Exit::Storage };
    Failure::from_error(exit, error)
}

fn measure(args: &GenerateArgs, test: &[(f32, f32)]) -> Result<PlantedMeasures, Failure> {
    let mut scores = ClickScores::new();
    for &(label, logit) in test {
        scores.push(label, logit);
    }
    let report = scores.compute_measures();
    let (Some(best_auc), Some(best_logloss), Some(positive_rate)) = (report.auc, report.logloss, report.positive_rate)
    else {
        let what = format!("the test part of {} row(s) holds one class only", args.test_rows);
        return Err(Failure::usage(what, "ask for more with --test-rows"));
    };
    let entropies = test.iter().map(|(_, logit)| entropy(f64::from(*logit)));
    let irreducible_logloss = Some(entropies.sum::<f64>() / test.len() as f64);
    let (rows, test_rows, seed) = (args.rows, args.test_rows, args.seed);
    Ok(PlantedMeasures { rows, test_rows, seed, positive_rate, best_auc, best_logloss, irreducible_logloss })
}

/// Entropy of a click of these log-odds, nats.
fn entropy(logit: f64) -> f64 {
    let size = logit.abs();
    // With p = 1 / (1 + e^−|x|): −p·ln p − (1 − p)·ln(1 − p) = ln(1 + e^−|x|) + |x| / (1 + e^|x|)
    (-size).exp().ln_1p() + size / (1.0 + size.exp())
}

fn size(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |data| data.len())
}

pub(crate) fn inspect(args: &InspectArgs) -> Result<Exit, Failure> {
    let job = load_job(&args.job.job, &args.job.sets())?;
    let inspection = zagros_ingest::inspect_columns(&job, args.rows).or_exit(Exit::Data)?;
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
    let validation = zagros_ingest::validate_rows(&job, SHOWN).or_exit(Exit::Data)?;
    out!("{validation}");
    Ok(if validation.bad == 0 { Exit::Success } else { Exit::Data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_is_that_of_a_click() {
        for logit in [-3.0_f64, -0.5, 0.0, 2.0, 700.0, 800.0] {
            let p = 1.0 / (1.0 + (-logit.abs()).exp());
            let rest = if p < 1.0 { -(1.0 - p) * (1.0 - p).ln() } else { 0.0 };
            assert!((entropy(logit) - (-p * p.ln() + rest)).abs() < 1e-12, "{logit}");
        }
        assert!((entropy(0.0) - 2.0_f64.ln()).abs() < 1e-15);
    }

    #[test]
    fn the_job_of_the_factors_is_a_job_with_all_columns() {
        let spec = FactorSpec { factors: 5, ..FactorSpec::default() };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(JOB);
        std::fs::write(&path, factor_job(&spec)).unwrap();
        let job = load_job(&path, &[]).unwrap();
        assert_eq!((job.features.numeric.len(), job.features.categorical.len()), (3, 2));
    }
}
