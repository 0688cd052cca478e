//! From a file's bytes to a [`Job`], or to all of its problems.

use std::fs;
use std::path::Path;

use crate::document::{self, TomlNode};
use crate::error::{JobErrors, JobProblem, SourceText};
use crate::overrides::Overrides;
use crate::resolve::{self, ResolveContext};
use crate::settings::Job;
use crate::threads::Machine;
use crate::{check, shape, upgrade};

/// Far above any job file. A data file that is given by mistake is refused before it is read into memory.
const MAX_BYTES: u64 = 4 << 20;
const FEW_LINES: usize = 3;

impl Job {
    /// Applies the overrides, checks everything and resolves defaults for this machine. Data files are not opened.
    /// Fails with all problems, each with its position.
    pub fn load(path: &Path, overrides: &Overrides) -> Result<Self, JobErrors> {
        Self::load_for(path, overrides, &Machine::this())
    }

    /// As [`Self::load`], but plans the threads that are not given for `machine`.
    pub fn load_for(path: &Path, overrides: &Overrides, machine: &Machine) -> Result<Self, JobErrors> {
        let name = path.display().to_string();
        let text = read(path).map_err(|problem| JobErrors::new(name.clone(), vec![problem]))?;
        parse(&text, path, overrides, machine).map_err(|problems| JobErrors::new(name, problems))
    }

    /// As [`Self::load`], from text. `path` is for messages, the default name and relative data paths.
    pub fn parse(text: &str, path: &Path, overrides: &Overrides) -> Result<Self, JobErrors> {
        let parsed = parse(text, path, overrides, &Machine::this());
        parsed.map_err(|problems| JobErrors::new(path.display().to_string(), problems))
    }
}

/// False for a file that cannot be read.
pub fn is_given(path: &Path, overrides: &Overrides, key: &str) -> bool {
    let document = overridden(path, overrides);
    document.is_some_and(|(document, _)| document.find(&document::KeyPath::from(key)).is_some())
}

/// A sentence for each key that is no more and whose value has another place now; none for a file that cannot be read.
pub fn removed_keys(path: &Path, overrides: &Overrides) -> Vec<String> {
    overridden(path, overrides).map_or_else(Vec::new, |(_, removed)| removed)
}

/// The document without keys that are no more, and a sentence for each of these.
fn overridden(path: &Path, overrides: &Overrides) -> Option<(TomlNode, Vec<String>)> {
    let text = read(path).ok()?;
    let mut document = TomlNode::parse(&SourceText::job_file(&path.display().to_string(), &text)).ok()?;
    overrides.apply(&mut document).ok()?;
    let removed = upgrade::upgrade_keys(&mut document);
    Some((document, removed))
}

/// Parse → override → take out keys that are no more → check the schema → deserialise → check across keys. Each step
/// needs the one before.
fn parse(text: &str, path: &Path, overrides: &Overrides, machine: &Machine) -> Result<Job, Vec<JobProblem>> {
    let source = SourceText::job_file(&path.display().to_string(), text);
    let mut document =
        TomlNode::parse(&source).map_err(|problems| if is_data(text) { data_file(path) } else { problems })?;
    overrides.apply(&mut document)?;
    upgrade::upgrade_keys(&mut document);
    let problems = check::check_shape(&mut document, &shape::job_shape());
    if !problems.is_empty() {
        return Err(problems);
    }
    let context = ResolveContext { document: &document, file: path, threads: machine.plan_threads() };
    resolve::resolve(&context)
}

/// Whether text that is not TOML looks like rows of data: no line has the form of a line of a job.
fn is_data(text: &str) -> bool {
    let is_key = |text: &str| text.chars().all(|c| c.is_alphanumeric() || "_-. \"'".contains(c));
    let is_of_a_job = |line: &str| match line.split_once('=') {
        Some((key, _)) => is_key(key),
        None => line.starts_with('[') && line.ends_with(']'),
    };
    let lines = || text.lines().map(str::trim_end).filter(|line| !line.is_empty());
    lines().take(FEW_LINES).count() == FEW_LINES && !lines().any(is_of_a_job)
}

fn data_file(path: &Path) -> Vec<JobProblem> {
    let path = path.display();
    let message = format!("{path} is data, not a job: none of its lines has the form `key = value`");
    let help = format!(
        "write a job file that names it (docs/job-file.md, examples/quickstart.toml): [data] format = \"delimited\", \
         train = \"{path}\""
    );
    vec![JobProblem::new(message).help(help)]
}

fn read(path: &Path) -> Result<String, JobProblem> {
    let unreadable = |error: std::io::Error| {
        JobProblem::new(format!("cannot read job file {}: {error}", path.display())).help("give the path of a job file")
    };
    let length = fs::metadata(path).map_err(unreadable)?.len();
    if length > MAX_BYTES {
        let message = format!(
            "{} is not a job file: it has {length} bytes, and a job file has at most {MAX_BYTES}",
            path.display()
        );
        return Err(JobProblem::new(message).help("data files are named in the job file, under [data]"));
    }
    let bytes = fs::read(path).map_err(unreadable)?;
    String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()].split(|byte| *byte == b'\n').count();
        JobProblem::new(format!("{}:{line}: not UTF-8", path.display())).help("save the file as UTF-8")
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::fixture::CRITEO;

    fn job_file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ads.toml");
        fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn a_file_and_its_text_make_the_same_job() {
        let (folder, path) = job_file(CRITEO);
        let overrides = Overrides::sets(["train.seed=9"]);
        let job = Job::load(&path, &overrides).unwrap();
        assert_eq!(job, Job::parse(CRITEO, &path, &overrides).unwrap());
        assert_eq!((job.train.seed, job.data.train[0].clone()), (9, folder.path().join("a.txt")));
    }

    #[test]
    fn threads_that_are_not_given_are_planned_for_the_machine() {
        let (_folder, path) = job_file(CRITEO);
        let threads = |sets: &[&str], machine: Machine| {
            let job = Job::load_for(&path, &Overrides::sets(sets.iter().copied()), &machine).unwrap();
            [job.train.threads, job.data.threads, job.cluster.server_threads]
        };
        let shared = Machine { cores: 64, workers: 4, servers: 4 };
        assert_eq!(threads(&[], shared), [12, 2, 2]);
        assert_eq!(threads(&["train.threads=3", "cluster.server_threads=7"], shared), [3, 2, 7]);
        assert_eq!(threads(&["data.threads=5"], shared), [12, 5, 2]);
        let here = Job::load_for(&path, &Overrides::none(), &Machine::this()).unwrap();
        assert_eq!(Job::parse(CRITEO, &path, &Overrides::none()).unwrap(), here);
    }

    #[test]
    fn a_key_is_given_by_the_file_or_by_an_override() {
        let (_folder, path) = job_file(&format!("{CRITEO}[cluster]\nservers = 1\n"));
        let given = |sets: &[&str], key| is_given(&path, &Overrides::sets(sets.iter().copied()), key);
        assert!(given(&[], "cluster.servers") && !given(&[], "cluster.coordinator"));
        assert!(given(&["cluster.coordinator=127.0.0.1:7700"], "cluster.coordinator"));
        assert!(!is_given(Path::new("nowhere"), &Overrides::none(), "cluster.servers"));
    }

    #[test]
    fn a_malformed_setting_stops_before_the_checks() {
        let errors = Job::parse("", Path::new("x"), &Overrides::sets(["train.seed"])).unwrap_err();
        let expected =
            "job file x has 1 problem\n--set:1:1: setting `train.seed` has no `=`; write it like train.seed=3";
        assert_eq!(errors.plain_text(), expected);
    }

    #[test]
    fn a_data_file_in_place_of_a_job_is_reported_as_one() {
        let row =
            "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, <=50K\n";
        let errors =
            |text: &str| Job::parse(text, Path::new("adult.data"), &Overrides::none()).unwrap_err().plain_text();
        let tabs = "0\t1\t\t5\t68fd1e64\t80e26c9b\n";
        for text in [row.repeat(30_000), tabs.repeat(100), format!("click,age\n{}", "1,2\n".repeat(100))] {
            let errors = errors(&text);
            assert!(errors.contains("adult.data is data, not a job") && errors.len() < 1_000, "{errors}");
        }
        let broken = format!("{CRITEO}x\ny\nz\n");
        for text in [broken.as_str(), "train = \n\n\nepochs\nx\n", "[data]\n1 2\n3 4\n", "a\nb\nc=3\n"] {
            assert!(!errors(text).contains("not a job"), "{text}");
        }
    }

    /// Checkpoints and saved models contain the job file as it was written.
    #[test]
    fn a_file_with_a_key_that_is_no_more_loads_and_says_so() {
        let (_folder, path) = job_file(&format!("{CRITEO}[cluster]\nmin_servers = 1\n"));
        let none = Overrides::none();
        assert_eq!(Job::load(&path, &none).unwrap(), Job::parse(CRITEO, &path, &none).unwrap());
        let [note] = &removed_keys(&path, &none)[..] else { panic!("one key") };
        assert!(note.starts_with("`cluster.min_servers` has no effect any more: "), "{note}");
        assert!(!is_given(&path, &none, "cluster.min_servers"));
        assert_eq!(removed_keys(&path, &Overrides::sets(["cluster.min_servers=1"])).len(), 1);
        fs::write(&path, CRITEO).unwrap();
        assert_eq!(removed_keys(&path, &none), [""; 0]);
        assert_eq!(removed_keys(&path, &Overrides::sets(["cluster.min_servers=1"])).len(), 1);
    }

    #[test]
    fn windows_line_ends_are_fine() {
        assert!(Job::parse(&CRITEO.replace('\n', "\r\n"), Path::new("x"), &Overrides::none()).is_ok());
    }
}
