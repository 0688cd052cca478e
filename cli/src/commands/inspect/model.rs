//! Finds the files of a saved model: by its run folder, its own folder, or one file of rows.

use std::path::{Path, PathBuf};

use zagros_dense_worker::Manifest;

use crate::exit::{Exit, Failure};

const MANIFEST: &str = "manifest.json";

/// Files of rows, and what the model says of itself.
#[derive(Debug)]
pub(super) struct Model {
    /// `None` when a single file was named.
    pub(super) manifest: Option<Manifest>,
    pub(super) files: Vec<PathBuf>,
}

impl Model {
    /// Opens a run folder, a model folder or a file of rows.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        if path.is_file() {
            return Ok(Self { manifest: None, files: vec![path.to_owned()] });
        }
        let candidates = [path.to_owned(), path.join("model")];
        match candidates.iter().find(|folder| folder.join(MANIFEST).is_file()) {
            Some(folder) => Self::of_folder(folder),
            None => Err(no_model(path, &candidates)),
        }
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
        Ok(Self { manifest: Some(manifest), files })
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
