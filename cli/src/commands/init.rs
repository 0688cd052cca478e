//! `zagros init`: a commented job file for data that no job file describes yet.

use std::path::{Path, PathBuf};

use crate::init::{InitError, infer_sketch, job_text, read_sample};
use zagros_plumbing::durable;
use zagros_shell::{Exit, Failure, OrFailure, err, load_job, print_answer};

use crate::args::InitArgs;

/// Ends of names of data files.
const DATA: [&str; 18] = [
    "csv", "tsv", "txt", "data", "parquet", "pq", "arrow", "feather", "ipc", "jsonl", "ndjson", "json", "gz", "zst",
    "zstd", "lz4", "bz2", "log",
];

/// Characters that make a path a pattern.
const WILDCARDS: [char; 3] = ['*', '?', '['];

pub(crate) fn run(args: &InitArgs) -> Result<Exit, Failure> {
    let Some(job) = &args.output else {
        // Where the text goes is not known, and paths in a job file start at its folder.
        let text = text(&args.data, &absolute(&args.data)?, args.label.as_deref())?;
        print_answer(text.trim_end())?;
        return Ok(Exit::Success);
    };
    write(&args.data, job, args.label.as_deref())?;
    err!("{} is written; train with it: zagros train {}", job.display(), job.display());
    Ok(Exit::Success)
}

/// The job of `zagros train DATA`: beside the working folder's other files, written at the first time. `None` if the command line names a
/// job file.
pub(crate) fn job_for(named: &Path) -> Result<Option<PathBuf>, Failure> {
    if !is_data(named) {
        return Ok(None);
    }
    not_stdin(named)?;
    let job = job_name(named);
    if job.exists() {
        is_for(&job, named)?;
    } else {
        write(named, &job, None)?;
    }
    Ok(Some(job))
}

/// Whether a name is that of data: a file whose name says so, a folder, a pattern, or a URL.
fn is_data(named: &Path) -> bool {
    let is_pattern = named.to_string_lossy().contains(WILDCARDS);
    is_url(named)
        || named == Path::new("-")
        || named.is_dir()
        || ends_as_data(named) && (named.is_file() || is_pattern)
        || is_pattern && !named.exists()
}

fn ends_as_data(name: &Path) -> bool {
    name.extension().is_some_and(|end| DATA.iter().any(|data| end.eq_ignore_ascii_case(data)))
}

fn is_url(named: &Path) -> bool {
    named.to_string_lossy().contains("://")
}

/// The name of the job of data: the last part of its path that is no pattern, without what names formats.
fn job_name(data: &Path) -> PathBuf {
    let parts = data.components().rev().map(|part| part.as_os_str().to_string_lossy().into_owned());
    let plain = |part: &String| !part.contains(WILDCARDS) && part.contains(char::is_alphanumeric);
    let mut name = PathBuf::from(parts.into_iter().find(plain).unwrap_or_else(|| "data".to_owned()));
    while ends_as_data(&name) {
        name.set_extension("");
    }
    name.as_mut_os_string().push(".toml");
    name
}

/// Refuses a job file that an earlier command wrote for other data.
fn is_for(job: &Path, data: &Path) -> Result<(), Failure> {
    // A file that is no job is reported when it is loaded.
    let Ok(found) = load_job(job, &[]) else { return Ok(()) };
    if found.data.train == [absolute(data)?] {
        return Ok(());
    }
    let names: Vec<String> = found.data.train.iter().map(|path| path.display().to_string()).collect();
    let what = format!("{} is a job for other data: {}", job.display(), names.join(", "));
    let help =
        format!("write another job: zagros init '{}' -o NAME.toml; then: zagros train NAME.toml", data.display());
    Err(Failure::usage(what, help))
}

/// The path of data from the root. A URL stays as it is.
fn absolute(data: &Path) -> Result<PathBuf, Failure> {
    if is_url(data) { Ok(data.to_owned()) } else { std::path::absolute(data).or_internal() }
}

/// Writes a job file that is not there yet.
fn write(data: &Path, job: &Path, label: Option<&str>) -> Result<(), Failure> {
    if job.exists() {
        let what = format!("{} exists", job.display());
        let help = format!("train with it: zagros train {}; or name another file with -o", job.display());
        return Err(Failure::usage(what, help));
    }
    let text = text(data, &seen_from(job, data)?, label)?;
    durable::write(job, text.as_bytes()).map_err(|error| {
        let what = format!("{} cannot be written: {error}", job.display());
        Failure::with_help(Exit::Storage, what, "name another file with -o")
    })
}

/// The path of the data as the job file names it: relative where the data lies in its folder or below.
fn seen_from(job: &Path, data: &Path) -> Result<PathBuf, Failure> {
    let (job, data) = (std::path::absolute(job).or_internal()?, absolute(data)?);
    let below = job.parent().and_then(|folder| data.strip_prefix(folder).ok());
    Ok(below.map_or(data.clone(), Path::to_owned))
}

fn text(data: &Path, named: &Path, label: Option<&str>) -> Result<String, Failure> {
    not_stdin(data)?;
    let sketch = read_sample(data).and_then(|sample| infer_sketch(sample, label)).map_err(failed)?;
    sketch.warnings().iter().for_each(|warning| err!("UNSURE: {warning}"));
    Ok(job_text(&sketch, named))
}

/// Refuses standard input: it is read once.
fn not_stdin(data: &Path) -> Result<(), Failure> {
    if data == Path::new("-") {
        let what =
            "standard input cannot be described: rows of all its parts are looked at, and the rows are then read again";
        let help = "describe the start of it: `head -n 100000 > start.csv` and `zagros init start.csv -o job.toml`; then train on all of it: \
                    `zagros train job.toml --set data.train=-`";
        return Err(Failure::usage(what, help));
    }
    Ok(())
}

fn failed(error: InitError) -> Failure {
    let exit = if let InitError::Label(_) = error { Exit::Usage } else { Exit::Data };
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
        assert_eq!(seen("job.toml", "s3://bucket/rows"), "s3://bucket/rows");
    }

    #[test]
    fn a_job_has_the_name_of_its_data() {
        let name = |data: &str| job_name(data.as_ref()).display().to_string();
        assert_eq!(name("a/rows.csv.gz"), "rows.toml");
        assert_eq!(name("logs/day=1/part-*.parquet"), "day=1.toml");
        assert_eq!(name("s3://bucket/clicks/2026/"), "2026.toml");
        assert_eq!(name("v1.2"), "v1.2.toml");
        assert_eq!(name("*.csv"), "data.toml");
    }

    #[test]
    fn a_name_says_whether_a_file_is_data_or_a_job() {
        let folder = std::env::temp_dir();
        for data in ["-", "s3://bucket/rows", "none/*.csv", "part-[0-9]", &folder.display().to_string()] {
            assert!(is_data(data.as_ref()), "{data}");
        }
        for job in ["job.toml", "none.csv", "/dev/stdin"] {
            assert!(!is_data(job.as_ref()), "{job}");
        }
    }
}
