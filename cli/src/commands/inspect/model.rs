//! Finds the files of a saved model: by its run folder, its own folder, or one file of rows.

use std::io::copy;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use zagros_dense_worker::{Manifest, WorkerError};
use zagros_shell::{Exit, Failure, OrInternal};
use zagros_store::Folder;

use crate::resume::failed;

const MANIFEST: &str = "manifest.json";
/// How long a request to an object store may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Files of rows, and what the model says of itself.
#[derive(Debug)]
pub(super) struct Model {
    /// `None` when a single file was named.
    pub(super) manifest: Option<Manifest>,
    pub(super) files: Vec<PathBuf>,
    /// Where the files of an object store were brought.
    _copy: Option<TempDir>,
}

impl Model {
    /// Opens a run folder, a model folder or a file of rows.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        if let Some(url) = path.to_str().filter(|text| text.starts_with("s3://")) {
            return Self::fetch(url);
        }
        if path.is_file() {
            return Ok(Self { manifest: None, files: vec![path.to_owned()], _copy: None });
        }
        let candidates = [path.to_owned(), path.join("model")];
        match candidates.iter().find(|folder| folder.join(MANIFEST).is_file()) {
            Some(folder) => Self::of_folder(folder),
            None => Err(no_model(path, &candidates)),
        }
    }

    /// Brings a checkpoint here: all that is asked of a model reads its files from end to end, some of it twice.
    fn fetch(url: &str) -> Result<Self, Failure> {
        let store = |error| failed(WorkerError::from(error));
        let folder = Folder::open(url, PATIENCE).map_err(store)?;
        if !folder.has(MANIFEST).map_err(store)? {
            let inside: Vec<String> = folder.folders().map_err(store)?;
            let help = match inside.as_slice() {
                [] => "give the folder of a checkpoint, s3://bucket/prefix/<run>/resume-…".to_owned(),
                inside => format!("give one of the folders in it: {}", inside.join(", ")),
            };
            return Err(Failure::with_help(Exit::Data, format!("{url} holds no model: there is no {MANIFEST}"), help));
        }
        let to = tempfile::tempdir().or_internal()?;
        std::fs::write(to.path().join(MANIFEST), folder.read(MANIFEST).map_err(store)?).or_internal()?;
        let model = Self::of_folder(to.path())?;
        for file in &model.files {
            let name = super::file_name(file);
            let (mut from, _) = folder.input(&name).map_err(|error| Failure::from_error(Exit::Data, error))?;
            let mut to = std::fs::File::create(file).or_internal()?;
            copy(&mut from, &mut to).map_err(|error| Failure::from_error(Exit::Data, error))?;
        }
        Ok(Self { _copy: Some(to), ..model })
    }

    fn of_folder(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join(MANIFEST);
        let bad = |reason: String| {
            Failure::with_help(
                Exit::Data,
                format!("{}: {reason}", path.display()),
                "name a .zrows file to look at it alone",
            )
        };
        let text = std::fs::read(&path).map_err(|error| bad(error.to_string()))?;
        let manifest: Manifest = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
        let files = manifest.row_files.iter().map(|file| folder.join(file)).collect();
        Ok(Self { manifest: Some(manifest), files, _copy: None })
    }

    /// Size of all files; those that are missing are told when they are read.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| std::fs::metadata(file).map_or(0, |data| data.len())).sum()
    }
}

/// Rows without a manifest are of a save that did not end.
fn no_model(path: &Path, folders: &[PathBuf]) -> Failure {
    let is_rows = |entry: std::fs::DirEntry| entry.path().extension().is_some_and(|ending| ending == "zrows");
    let entries = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    if entries.filter_map(Result::ok).any(is_rows) {
        let what = format!("{} has rows but no {MANIFEST}: the save did not finish", path.display());
        return Failure::with_help(Exit::Data, what, "name one of its .zrows files to look at it alone");
    }
    let what = match path.exists() {
        true => format!("{} holds no model: there is no {MANIFEST}", path.display()),
        false => format!("{} does not exist", path.display()),
    };
    Failure::with_help(Exit::Data, what, "give a run folder, the model folder inside it, or a .zrows file")
}
