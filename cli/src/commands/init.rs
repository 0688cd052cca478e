//! `zagros init`: a commented job file for a data file that nobody has described.

use std::path::{Path, PathBuf};

use zagros_init::{InitError, job_text, read_sample, sketch};
use zagros_plumbing::durable;
use zagros_shell::{Exit, Failure, OrInternal, answer, err};

use crate::args::InitArgs;

/// Ends of names of data files.
const DATA: [&str; 5] = ["csv", "tsv", "txt", "data", "gz"];

/// Prints the job file, or writes it.
pub(crate) fn run(args: &InitArgs) -> Result<Exit, Failure> {
    let Some(job) = &args.output else {
        // Where the text goes is not known, and paths in a job file start at its folder.
        let text = text(&args.data, &std::path::absolute(&args.data).or_internal()?, args.label.as_deref())?;
        answer(text.trim_end())?;
        return Ok(Exit::Success);
    };
    write(&args.data, job, args.label.as_deref())?;
    err!("{} is written; train with it: zagros train {}", job.display(), job.display());
    Ok(Exit::Success)
}

/// The job of `zagros train DATA`: beside the working folder's other files, written at the first time. `None` if the command line names a
/// job file.
///
/// # Errors
/// As [`write`].
pub(crate) fn job_for(named: &Path) -> Result<Option<PathBuf>, Failure> {
    let is_data = named.extension().is_some_and(|end| DATA.iter().any(|data| end.eq_ignore_ascii_case(data)));
    if !is_data || !named.is_file() {
        return Ok(None);
    }
    let job = PathBuf::from(named.file_name().unwrap_or_default()).with_extension("toml");
    if !job.exists() {
        write(named, &job, None)?;
    }
    Ok(Some(job))
}

/// Writes a job file that is not there yet.
///
/// # Errors
/// When it is there, the data cannot be understood, or the disk refuses.
fn write(data: &Path, job: &Path, label: Option<&str>) -> Result<(), Failure> {
    if job.exists() {
        let what = format!("{} exists", job.display());
        let help = format!("train with it: zagros train {}; or name another file with -o", job.display());
        return Err(Failure::with_help(Exit::Usage, what, help));
    }
    let text = text(data, &seen_from(job, data)?, label)?;
    durable::write(job, text.as_bytes()).map_err(|error| {
        let what = format!("{} cannot be written: {error}", job.display());
        Failure::with_help(Exit::Storage, what, "name another file with -o")
    })
}

/// The path of the data as the job file names it: relative where the data lies in its folder or below.
fn seen_from(job: &Path, data: &Path) -> Result<PathBuf, Failure> {
    let (job, data) = (std::path::absolute(job).or_internal()?, std::path::absolute(data).or_internal()?);
    let below = job.parent().and_then(|folder| data.strip_prefix(folder).ok());
    Ok(below.map_or(data.clone(), Path::to_owned))
}

fn text(data: &Path, named: &Path, label: Option<&str>) -> Result<String, Failure> {
    let sketch = read_sample(data).and_then(|sample| sketch(&sample, label));
    Ok(job_text(&sketch.map_err(failed)?, named))
}

fn failed(error: InitError) -> Failure {
    let exit = match error {
        InitError::NoSuchColumn { .. } | InitError::NotALabel { .. } | InitError::NoLabel { .. } => Exit::Usage,
        _ => Exit::Data,
    };
    Failure::from_error(exit, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_below_the_jobs_folder_is_named_from_there() {
        let seen = |job: &str, data: &str| seen_from(job.as_ref(), data.as_ref()).unwrap().display().to_string();
        assert_eq!(seen("/a/job.toml", "/a/data/rows.csv"), "data/rows.csv");
        assert_eq!(seen("/a/jobs/job.toml", "/a/rows.csv"), "/a/rows.csv");
        assert_eq!(seen("job.toml", "rows.csv"), "rows.csv");
    }
}
