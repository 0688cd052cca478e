//! A saved model that the command line names: by its own folder or its run's, on a disk or in a store.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use zagros_dense_worker::{PartMeasures, ScoringCommand, WorkerError};
use zagros_job::{Job, Model};
use zagros_plumbing::lifecycle::Shutdown;
use zagros_rows::snapshot::SnapshotError;
use zagros_scoring::{JOB, MANIFEST, Manifest};
use zagros_shell::{Exit, Failure, parse_job};
use zagros_store::{Folder, StoreError};

use crate::backend::backend;
use crate::resume::failed;
use crate::terminal::Terminal;

const SUMMARY: &str = "summary.json";
/// The folder of a run's model, relative to the run folder.
const MODEL: &str = "model";

#[derive(Debug)]
pub(crate) struct SavedModel {
    pub(crate) folder: Folder,
}

impl SavedModel {
    /// Finds a model by its own folder or its run's: a path, or `s3://bucket/prefix`. Requests to a store take at most
    /// `timeout`. Where there is no model, the error says what is there instead.
    pub(crate) fn find(named: &Path, timeout: Duration) -> Result<Self, Failure> {
        let place = open(named, timeout)?;
        if has_manifest(&place)? {
            return Ok(Self { folder: place });
        }
        Self::of_run(&place, timeout)?.ok_or_else(|| no_model(&place))
    }

    /// The model of a run, by the run's folder. `None` if there is none. A model that the run names and that is gone is an
    /// error.
    pub(crate) fn of_run(place: &Folder, timeout: Duration) -> Result<Option<Self>, Failure> {
        if let Some(folder) = reported_by_run(place, timeout)? {
            if !has_manifest(&folder)? {
                let what = format!("the model of {place} was saved in {folder}, but there is no {MANIFEST} any more");
                return Err(Failure::with_help(Exit::Data, what, "name the folder that it was moved to"));
            }
            return Ok(Some(Self { folder }));
        }
        let inside = place.join(MODEL);
        Ok(has_manifest(&inside)?.then(|| Self { folder: inside }))
    }

    /// The job of the model's training, with overrides.
    pub(crate) fn load_job(&self, sets: &[String]) -> Result<Job, Failure> {
        let manifest = Manifest::read(&self.folder).map_err(failed)?;
        let text = manifest.read_file(&self.folder, JOB).map_err(failed)?;
        parse_job(&String::from_utf8_lossy(&text), &PathBuf::from(format!("{}/{JOB}", self.folder)), sets)
    }

    /// Scores files, or the test part of the job, with a live line.
    pub(crate) async fn evaluate(
        self,
        job: Job,
        files: Option<Vec<PathBuf>>,
        importance: Option<u32>,
        shutdown: Shutdown,
    ) -> Result<PartMeasures, WorkerError> {
        let terminal = Arc::new(Terminal::new(false));
        let (model, observer) = (self.folder, terminal.clone());
        let scoring = ScoringCommand { job, model, files, backend: backend(), observer, shutdown };
        let measured = scoring.evaluate(importance).await;
        terminal.finish();
        measured
    }
}

/// Checks that the user trusts the module that the model's own job names. That job comes with the model, so it cannot vouch
/// for the module.
pub(crate) fn check_trust(job: &Job, trusted: Option<&str>) -> Result<(), Failure> {
    let Model::TorchScript { file, sha256, .. } = &job.model else { return Ok(()) };
    if trusted.is_some_and(|trusted| trusted.eq_ignore_ascii_case(sha256)) {
        return Ok(());
    }
    let what = match trusted {
        Some(trusted) => {
            format!("the model's job names a module with SHA-256 {sha256}, but the trusted one is {trusted}")
        }
        None => "the model has a TorchScript module, which can run code of its author when it is opened".to_owned(),
    };
    let help = format!("if you trust {}, add --trust-module {sha256}", file.display());
    Err(Failure::usage(what, help))
}

/// Adds the setting that `--from MODEL` stands for.
pub(crate) fn start_from(model: Option<&Path>, sets: &mut Vec<String>) -> Result<(), Failure> {
    let Some(model) = model else { return Ok(()) };
    SavedModel::find(model, Duration::from_secs(60))?;
    let text = model
        .to_str()
        .ok_or_else(|| Failure::usage(format!("{} is no Unicode text", model.display()), "rename the folder"))?;
    // A JSON text is a TOML text.
    sets.push(format!("train.start_from={}", serde_json::Value::from(text)));
    Ok(())
}

/// Where a run on this disk saved its model, if not in its own folder.
fn reported_by_run(run: &Folder, timeout: Duration) -> Result<Option<Folder>, Failure> {
    #[derive(Deserialize)]
    struct ModelPlace {
        model: Option<PathBuf>,
    }
    let text = run.path().and_then(|path| std::fs::read(path.join(SUMMARY)).ok());
    let place = text.and_then(|text| serde_json::from_slice::<ModelPlace>(&text).ok()).and_then(|place| place.model);
    let other = place.filter(|model| model.is_absolute() || folder_url(model).is_some());
    other.map(|model| open(&model, timeout)).transpose()
}

pub(crate) fn open(named: &Path, timeout: Duration) -> Result<Folder, Failure> {
    match folder_url(named) {
        Some(url) => Folder::open(url, timeout).map_err(refused),
        None => Ok(Folder::on_disk(named)),
    }
}

pub(crate) fn folder_url(named: &Path) -> Option<&str> {
    named.to_str().filter(|text| text.contains("://"))
}

pub(crate) fn refused(error: StoreError) -> Failure {
    failed(error)
}

fn has_manifest(folder: &Folder) -> Result<bool, Failure> {
    folder.has_file(MANIFEST).map_err(refused)
}

/// The error for a folder without a model. It says what is there.
pub(crate) fn no_model(place: &Folder) -> Failure {
    if place.path().is_some_and(|path| !path.exists()) {
        return Failure::with_help(Exit::Data, format!("{place} does not exist"), HELP);
    }
    if [place.clone(), place.join(MODEL)].iter().filter_map(Folder::path).any(has_rows) {
        // Rows without a manifest belong to a save that did not finish.
        let what = format!("{place} has rows but no {MANIFEST}: the save did not finish");
        return Failure::with_help(Exit::Data, what, "name one of its .zrows files for `zagros inspect` alone");
    }
    let what = format!("{place} holds no model: there is no {MANIFEST}, nor one in {MODEL}/");
    // Only this request shows that a bucket does not exist: a request for one object only says that the object does not.
    match place.path().map_or_else(|| place.folder_names(), |_| Ok(Vec::new())) {
        Err(error) => refused(error),
        Ok(inside) if inside.is_empty() => Failure::with_help(Exit::Data, what, HELP),
        Ok(mut inside) => {
            inside.sort_unstable();
            Failure::with_help(Exit::Data, what, format!("give one of the folders in it: {}", inside.join(", ")))
        }
    }
}

const HELP: &str = "give a run folder, or the folder of a model or checkpoint, also s3://bucket/…; a run that failed, or \
                    one with output.save_model = false, has no model";

fn has_rows(folder: &Path) -> bool {
    let is_rows = |entry: std::fs::DirEntry| entry.path().extension().is_some_and(|ending| ending == "zrows");
    std::fs::read_dir(folder).is_ok_and(|entries| entries.filter_map(Result::ok).any(is_rows))
}

/// A file beside those of a saved model, or of a copy of one, cannot be written.
pub(crate) fn not_written(folder: &Folder, name: &str, error: io::Error) -> Failure {
    match error.downcast::<StoreError>() {
        Ok(error) => refused(error),
        Err(error) => {
            let what = format!("{folder}/{name} cannot be written: {error}");
            let help = "the saved model is as it was; make room, and give the same command again";
            Failure::with_help(Exit::Storage, what, help)
        }
    }
}

/// A damaged file is bad data. An unknown table is a usage error. A store has its own errors.
pub(crate) fn snapshot_failure(error: SnapshotError) -> Failure {
    let error = match error {
        SnapshotError::Read { path, source } => match source.downcast::<StoreError>() {
            Ok(store) => return refused(store),
            Err(source) => SnapshotError::Read { path, source },
        },
        error => error,
    };
    let SnapshotError::UnknownTable { path, name, known } = &error else {
        return Failure::from_error(Exit::Data, error);
    };
    let help = table_help(name, &known.iter().map(String::as_str).collect::<Vec<_>>(), "its");
    Failure::usage(format!("there is no table `{name}` in {}", path.display()), help)
}

/// The table that was meant by a name, or all tables.
pub(crate) fn table_help(name: &str, known: &[&str], whose: &str) -> String {
    match zagros_job::nearest_name(name, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("{whose} tables are {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);

    /// The message in one line, because its line breaks depend on the lengths of paths.
    fn refusal<T: std::fmt::Debug>(refused: Result<T, Failure>) -> String {
        format!("{:?}", refused.unwrap_err()).replace("\n  │ ", " ")
    }

    #[test]
    fn a_run_says_where_its_model_is() {
        let (run, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let summary = |model: &str| std::fs::write(run.path().join(SUMMARY), format!("{{\"model\":{model}}}")).unwrap();
        let own = run.path().join(MODEL);
        std::fs::create_dir(&own).unwrap();
        std::fs::write(own.join(MANIFEST), "{}").unwrap();
        let find = || SavedModel::find(run.path(), TIMEOUT);
        for inside in ["null", "\"model\""] {
            summary(inside);
            assert_eq!(find().unwrap().folder.path(), Some(own.as_path()));
        }
        summary(&format!("\"{}\"", other.path().display()));
        assert!(refusal(find()).contains("but there is no manifest.json any more"));
        std::fs::write(other.path().join(MANIFEST), "{}").unwrap();
        assert_eq!(find().unwrap().folder.path(), Some(other.path()));
    }

    #[test]
    fn a_folder_without_a_model_is_refused_with_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let find = |path: &Path| refusal(SavedModel::find(path, TIMEOUT));
        assert!(find(&folder.path().join("none")).contains("none does not exist"));
        assert!(find(folder.path()).contains("holds no model: there is no manifest.json"));
        std::fs::write(folder.path().join("rows-0-of-1.zrows"), "").unwrap();
        assert!(find(folder.path()).contains("the save did not finish"));
        let scheme = find(Path::new("gs://models/ads"));
        assert!(scheme.contains("Usage") && scheme.contains("only s3:// and file:// are supported"), "{scheme}");
    }
}
