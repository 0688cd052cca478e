//! Finds the files of a saved model: by its run folder, its own folder, or one file of rows.

use std::path::Path;
use std::time::Duration;

use zagros_dense_worker::{MANIFEST, Manifest};
use zagros_shell::{Exit, Failure};
use zagros_snapshot::SavedFile;
use zagros_store::Folder;

use crate::saved::{self, SavedModel};

/// Files of rows, and what the model says of itself.
#[derive(Debug)]
pub(super) struct Model {
    /// `None` when a single file was named.
    pub(super) manifest: Option<Manifest>,
    pub(super) files: Vec<SavedFile>,
    bytes: u64,
}

impl Model {
    /// Opens a run folder, a model folder or a file of rows, on a disk or in a store.
    pub(super) fn open(named: &Path, patience: Duration) -> Result<Self, Failure> {
        if named.is_file() {
            return Ok(Self::of_files(None, vec![SavedFile::disk(named)]));
        }
        if let Some((folder, file)) = saved::url(named).and_then(single_file) {
            let folder = saved::open(Path::new(folder), patience)?;
            return Ok(Self::of_files(None, vec![file_of(&folder, file)]));
        }
        Self::of_folder(&SavedModel::find(named, patience)?.folder)
    }

    fn of_folder(folder: &Folder) -> Result<Self, Failure> {
        let text = folder.read(MANIFEST).map_err(saved::refused)?;
        let manifest: Manifest = serde_json::from_slice(&text).map_err(|error| {
            let help = "name a .zrows file to look at it alone";
            Failure::with_help(Exit::Data, format!("{folder}/{MANIFEST} is damaged: {error}"), help)
        })?;
        let files = manifest.row_files.iter().map(|file| file_of(folder, file)).collect();
        Ok(Self::of_files(Some(manifest), files))
    }

    fn of_files(manifest: Option<Manifest>, files: Vec<SavedFile>) -> Self {
        // Those that are missing are told when they are read.
        let bytes = files.iter().map(|file| file.input().map_or(0, |(_, bytes)| bytes)).sum();
        Self { manifest, files, bytes }
    }

    /// Size of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Read where it is: what is left out of a file of rows is not brought here either.
fn file_of(folder: &Folder, file: &str) -> SavedFile {
    let (path, folder, file) = (format!("{folder}/{file}"), folder.clone(), file.to_owned());
    SavedFile::new(path, move || folder.input(&file))
}

/// Folder and name, where one file of rows is named.
fn single_file(url: &str) -> Option<(&str, &str)> {
    url.rsplit_once('/').filter(|(_, file)| file.ends_with(".zrows"))
}
